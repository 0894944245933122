"""Everything that can go wrong with the network is one sentence that names the address, and the key or variable to change."""

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dara.data import hub, network
from dara.data.hub import Fetch, check_available
from dara.loading import ConfigurationError, load_preset
from hub_fakes import COMMIT, pin, write_lock
from project import ROOT

PAGE = b"<!DOCTYPE html><html><body>Welcome to the hotel</body></html>"


class Host(BaseHTTPRequestHandler):
    """Answers everything with one status and a web page, or never."""

    status = 200
    released = threading.Event()

    def log_message(self, *_):
        pass

    def answer(self):
        if self.status == 0:
            self.released.wait(60)
            return
        self.send_response(self.status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(PAGE)

    do_HEAD = do_GET = do_CONNECT = answer


@contextlib.contextmanager
def running(status: int, tls: ssl.SSLContext | None = None):
    handler = type("Answering", (Host,), {"status": status, "released": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    handler.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No proxy, token or certificate of this machine's own, and a hub library that has opened no connection yet."""
    from huggingface_hub.utils import close_session

    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "HF_TOKEN"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its attempts
    close_session()
    yield
    close_session()


@pytest.fixture
def fetch(tmp_path):
    """How things are fetched from an address."""
    pins = {"sums": pin(1, file="data/train-*.jsonl"), "one": pin(1), "tools": pin(1, host="github")}
    lock = write_lock(tmp_path / "data.lock.yaml", pins)
    return lambda address: Fetch(tmp_path / "cache", lock, mirror=address)


def errors_of(fetch: Fetch) -> list[str]:
    """What is said by each way to fetch: a listing, a file, a model."""
    said = []
    for get in (
        lambda: fetch.dataset("sums"),
        lambda: fetch.dataset("one"),
        lambda: fetch.model("owner/model", COMMIT),
    ):
        with pytest.raises(ValueError, match="is missing: ") as caught:
            get()
        said.append(str(caught.value))
    return said


def check(fetch: Fetch) -> None:
    check_available(["one"], [], fetch)


STATUSES = {
    401: "answers 401 Unauthorized: .*HF_TOKEN",
    403: "answers 403 Forbidden: .*HF_TOKEN",
    404: "answers 404 Not Found: .*has no such repository or revision",
    407: "answers 407 Proxy Authentication Required: .*HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
    429: "answers 429 Too Many Requests: .*later",
    500: "answers 500 Internal Server Error: .*later",
    503: "answers 503 Service Unavailable: .*later",
}


@pytest.mark.parametrize("status", STATUSES)
def test_what_a_host_refuses_with(fetch, status):
    with running(status) as address:
        for said in errors_of(fetch(address)):
            assert f"is missing: {address}" in said
            assert_matches(said, STATUSES[status])
        if status == 407 or status >= 500:
            with pytest.raises(ValueError, match=STATUSES[status]):
                check(fetch(address))
        else:  # it may refuse its front page only
            check(fetch(address))


def assert_matches(said: str, pattern: str) -> None:
    assert re.search(pattern, said), said
    assert "\n" not in said


def test_a_web_page_instead_of_a_hub(fetch):
    with running(200) as address:
        check(fetch(address))
        for said in errors_of(fetch(address)):
            assert f"{address} does not answer as the hub does" in said
            assert "hub_mirror: ADDRESS" in said


def test_a_host_that_is_mute(fetch, monkeypatch):
    monkeypatch.setattr(network, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(hub, "READ_SECONDS", 0.2)
    with running(0) as address:
        with pytest.raises(ValueError, match=f"{address} gave no answer in time"):
            check(fetch(address))
        for said in errors_of(fetch(address)):
            assert f"{address} gave no answer in time" in said


def test_a_name_that_nobody_knows_and_a_port_where_nobody_is(fetch, monkeypatch):
    known = socket.getaddrinfo

    def look_up(host, *arguments, **options):
        if host == "nowhere.test":
            raise socket.gaierror(-2, "Name or service not known")
        return known(host, *arguments, **options)

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    for address, reason in (("http://nowhere.test", "Name or service not known"), (nobody(), "Connection refused")):
        with pytest.raises(ValueError, match=rf"{address} does not answer \(.*{reason}"):
            check(fetch(address))
        for said in errors_of(fetch(address)):
            assert_matches(said, rf"is missing: {address} does not answer \(.*{reason}")


def nobody() -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    server.server_close()
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture(scope="module")
def own_certificate(tmp_path_factory):
    """A certificate that no authority has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here, which makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    names = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate"), "-subj", "/CN=localhost"]
    names += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names], check=True, capture_output=True
    )
    return folder


def test_a_certificate_that_nobody_knows(fetch, own_certificate, monkeypatch):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own_certificate / "certificate", own_certificate / "key")
    with running(200, tls) as address:
        pattern = f"the certificate of {address} is not accepted .*self-signed.*SSL_CERT_FILE"
        with pytest.raises(ValueError, match=pattern):
            check(fetch(address))
        for said in errors_of(fetch(address)):
            assert_matches(said, pattern)
        monkeypatch.setenv("SSL_CERT_FILE", str(own_certificate / "certificate"))
        check(fetch(address))
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(ValueError, match=r"SSL_CERT_FILE is /nowhere/ca\.pem, which does not exist"):
        check(fetch(address))


def test_https_where_only_http_is_spoken(fetch):
    with running(200) as address:
        secure = address.replace("http:", "https:")
        with pytest.raises(ValueError, match=f"{secure} does not speak HTTPS"):
            check(fetch(secure))


@pytest.mark.parametrize("name", ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "http_proxy"])
@pytest.mark.parametrize("kind", ["socks5", "socks5h", "socks4", "socks"])
def test_a_proxy_of_a_kind_that_is_not_installed(fetch, monkeypatch, name, kind):
    monkeypatch.setenv(name, f"{kind}://user:secret@proxy.test:1080")
    pattern = rf"{name} names a proxy of the kind {kind}, .*http://HOST:PORT"
    for get in (check, lambda fetch: fetch.dataset("one"), lambda fetch: fetch.model("owner/model", COMMIT)):
        with pytest.raises(ValueError, match=pattern) as caught:
            get(fetch("http://mirror.test"))
        assert "secret" not in str(caught.value)


def test_a_proxy_of_no_kind(fetch, monkeypatch):
    for value in ("htp://127.0.0.1:9", "http://127.0.0.1:port", "http://"):
        monkeypatch.setenv("HTTPS_PROXY", value)
        with pytest.raises(ValueError, match=r"HTTPS_PROXY .*http://HOST:PORT"):
            check(fetch("http://mirror.test"))


def test_the_proxy_that_a_request_went_through_is_named(fetch, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", nobody().removeprefix("http://").replace("127", "user:secret@127"))  # no scheme
    with pytest.raises(ValueError, match=r"mirror\.test does not answer through HTTP_PROXY 127.*refused") as caught:
        check(fetch("http://mirror.test"))
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running(200) as address:
        check(fetch(address))
    with running(407) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        for address in ("http://mirror.test", "https://mirror.test"):
            with pytest.raises(ValueError, match=r"407 Proxy Authentication Required.*USER:PASSWORD@HOST:PORT"):
                check(fetch(address))


def test_github_is_fetched_through_the_same_proxies(fetch, monkeypatch):
    with running(404) as address:
        monkeypatch.setattr(hub, "GITHUB", address)
        with pytest.raises(ValueError, match=r"data set tools .* is missing: .* answers 404 Not Found"):
            fetch(None).dataset("tools")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(ValueError, match="ALL_PROXY names a proxy of the kind socks5"):
        fetch(None).dataset("tools")


def test_an_address_without_its_scheme(fetch, monkeypatch):
    for get in (check, lambda fetch: fetch.dataset("one"), lambda fetch: fetch.model("owner/model", COMMIT)):
        with pytest.raises(ValueError, match=r"hub_mirror is 'mirror\.test'; .* such as https://mirror\.test"):
            get(fetch("mirror.test"))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "mirror.test")
        with pytest.raises(ValueError, match=r"HF_ENDPOINT is 'mirror\.test'; .* such as https://mirror\.test"):
            get(fetch(None))


def test_the_key_of_a_mirror_is_named_with_its_file(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("extends: laptop\nhub_mirror: mirror.test\n")
    with pytest.raises(
        ConfigurationError, match=r"own\.yaml: hub_mirror: must begin with https:// or http://.*'mirror"
    ):
        load_preset(ROOT, path)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), r"it cannot be written \(.*No space left"),
        (
            RuntimeError("Data processing error: CAS service error : error sending request"),
            r"the storage that http://mirror\.test names cannot be read \(.*CAS service.*HF_HUB_DISABLE_XET=1",
        ),
    ],
)
def test_a_full_disk_and_a_storage_that_a_firewall_hides(fetch, monkeypatch, error, message):
    def fail(*_):
        raise error

    monkeypatch.setattr(Fetch, "cached", lambda *_: None)
    monkeypatch.setattr(Fetch, "_download", fail)
    with pytest.raises(ValueError, match=f"data set one .* is missing: {message}"):
        fetch("http://mirror.test").dataset("one")
    with pytest.raises(ValueError, match=f"model owner/model .* is missing: {message}"):
        fetch("http://mirror.test").model("owner/model", COMMIT)


def test_a_machine_that_is_told_to_be_offline(fetch, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        check(fetch("http://mirror.test"))
