"""Explains why an address cannot be reached, in one sentence that names the key or the variable to change."""

from __future__ import annotations

import errno
import json
import os
import re
import ssl
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from huggingface_hub.errors import FileMetadataError

ANSWER_SECONDS = 10.0
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
TOKEN = "name a token that may read it in HF_TOKEN"
ADVICE = {
    401: TOKEN,
    403: f"{TOKEN}, or ask whoever runs the firewall",
    404: "it has no such repository or revision",
    407: "give the proxy its user and password: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
    429: f"try again later, or {TOKEN}",
}
"""Status of an answer -> advice; for a fault of the host (500 and above), to try again later."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
ERRORS = (OSError, json.JSONDecodeError, httpx.HTTPError, httpx.InvalidURL, RuntimeError)
"""Errors of fetching: faults of the network, of a host, or of its content. RuntimeError: the hub's storage, Xet."""


class FetchError(ValueError):
    """A file is not here and cannot be fetched, or is not the pinned one."""


def unreachable(address: str) -> str | None:
    """Return why a host cannot be reached, asked as the hub library does; None if it answers with any status."""
    if fault := settings_fault():
        return fault
    try:
        response = httpx.head(address, timeout=ANSWER_SECONDS)
    except ERRORS as error:
        return reason(error, address)
    return refusal(response) if response.status_code == 407 or response.status_code >= 500 else None


def settings_fault() -> str | None:
    """Return what is wrong with the environment variables that apply to every connection of this process."""
    kinds = {"http", "https", *(("socks5", "socks5h") if find_spec("socksio") else ())}
    for name, value in os.environ.items():
        if name.lower() in PROXIES and value:
            address = value if "://" in value else f"http://{value}"
            kind = address.partition("://")[0]
            if kind not in kinds:
                needs = "needs the package socksio" if kind.startswith("socks5") else "is not known"
                return f"{name} names a proxy of the kind {kind}, which {needs}; name another, http://HOST:PORT"
            try:
                host = httpx.URL(address).host
            except httpx.InvalidURL:
                host = ""
            if not host:
                return f"{name} is no address of a proxy; it must be http://HOST:PORT"
        if name in ("SSL_CERT_FILE", "SSL_CERT_DIR") and value and not Path(value).exists():
            return f"{name} is {value}, which does not exist"
    return None


def reason(error: BaseException, address: str) -> str:
    """Return the explanation of an error raised while fetching from an address: that of its first known cause."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    response = next((item.response for item in causes if getattr(item, "response", None) is not None), None)
    if response is not None:
        return refusal(response)
    if getattr(causes[-1], "errno", None) in DISK:
        return f"it cannot be written ({causes[-1]})"
    told = " ".join(shown(f"{causes[-1]}").split()) or type(causes[-1]).__name__
    host, through = shown(address), _through(address)
    for item in causes:
        match item:
            case ssl.SSLCertVerificationError():
                signed = "name the file of the authority that has signed it in SSL_CERT_FILE"
                return f"the certificate of {host} is not accepted ({item.verify_message}); {signed}"
            case ssl.SSLError():
                return f"{host} does not speak HTTPS ({told})"
            case RuntimeError():
                return f"the storage that {host} names cannot be read ({told}); HF_HUB_DISABLE_XET=1 fetches without it"
            case httpx.TimeoutException():
                return f"{host} gave no answer in time{through} ({told})"
            case json.JSONDecodeError() | FileMetadataError():
                return f"{host} does not answer as the hub does{through}, but with a web page or the like"
    advice = f"; {ADVICE[407]}" if told.startswith("407") else ""
    return f"{host} does not answer{through} ({told}){advice}"


def refusal(response: httpx.Response) -> str:
    """Return a description of an unexpected answer of a host."""
    status = response.status_code
    advice = ADVICE.get(status, "try again later" if status >= 500 else "this is not what the hub answers")
    return f"{shown(str(response.url))} answers {status} {response.reason_phrase}: {advice}"


def shown(address: str) -> str:
    """Return an address without user, password and query, or a text with such addresses."""
    return re.sub(r"(^|//)[^/@\s]*@", r"\1", address.partition("?")[0])


def _through(address: str) -> str:
    """Return the proxy that a request to an address uses, as words of a sentence."""
    url, proxies = urlsplit(address), urllib.request.getproxies()
    kind = url.scheme if url.scheme in proxies else "all"
    if kind not in proxies or urllib.request.proxy_bypass(url.netloc):
        return ""
    names = [name for name in os.environ if name.lower() == f"{kind}_proxy"]
    return f" through {names[0] if names else 'the proxy'} {shown(proxies[kind])}"
