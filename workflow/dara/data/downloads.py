"""Downloads from the hub and from GitHub; nothing here looks at what is already there."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from dara.data.network import ERRORS, reason, settings_fault
from dara.data.pins import Pin

GITHUB = "https://github.com"
READ_SECONDS = 60.0  # until the next bytes come
NOT_WANTED = ("*/*", "README*", "LICENSE*")  # other formats of the weights stand in folders


class FetchError(ValueError):
    """A file is not there and cannot be fetched, or is not what is pinned."""


def attempt(download: Callable[[], Any], message: Callable[[str], str], address: str) -> Any:
    """The result of a download from an address; what stands in its way becomes one FetchError."""
    if fault := settings_fault():
        raise FetchError(message(fault))
    try:
        return download()
    except FetchError:
        raise
    except ERRORS as error:
        raise FetchError(message(reason(error, address))) from None


def hub_file(pin: Pin, folder: Path, mirror: str | None) -> str:
    """Fetch a data set's file from the hub into `folder`; its path below it."""
    from huggingface_hub import HfApi, hf_hub_download

    _prepare_library()
    name = pin.file
    if any(character in name for character in "*?["):
        names = HfApi(endpoint=mirror).list_repo_files(pin.repository, revision=pin.revision, repo_type="dataset")
        fitting = fnmatch.filter(names, pin.file)
        if len(fitting) != 1:
            raise FetchError(
                f"{pin.repository} at revision {pin.revision}: {len(fitting)} files fit {pin.file!r}, the file of "
                f"{pin.id}; exactly one must, of {', '.join(names)}"
            )
        name = fitting[0]
    hf_hub_download(pin.repository, name, repo_type="dataset", revision=pin.revision, endpoint=mirror, local_dir=folder)
    return name


def github_file(pin: Pin, folder: Path, mirror: str | None) -> str:
    """Fetch a file of a GitHub repository into `folder`; its path below it. A mirror of the hub does not have it."""
    target = folder / pin.file
    target.parent.mkdir(parents=True, exist_ok=True)
    address = f"{GITHUB}/{pin.repository}/raw/{pin.revision}/{pin.file}"
    with (
        httpx.stream("GET", address, follow_redirects=True, timeout=READ_SECONDS) as response,
        target.open("wb") as file,
    ):
        response.raise_for_status()
        file.writelines(response.iter_bytes())
    return pin.file


def snapshot(hub_id: str, revision: str, patterns: tuple[str, ...], folder: Path, mirror: str | None) -> None:
    """Fetch a model's files into `folder`; an interrupted fetch goes on where it was."""
    from huggingface_hub import snapshot_download

    _prepare_library()
    snapshot_download(
        hub_id,
        revision=revision,
        endpoint=mirror,
        local_dir=folder,
        allow_patterns=list(patterns),
        ignore_patterns=list(NOT_WANTED),
    )


def _prepare_library() -> None:
    """Give the hub library the limits that it lacks: messages once, and no waiting for ever for a host that is mute."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import logging as hub_logging

    hub_logging.disable_propagation()  # it shows its messages by itself
    set_client_factory(_client)


def _client() -> httpx.Client:
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], _limit]}
    return client


def _limit(request: httpx.Request) -> None:
    limits = request.extensions["timeout"]
    request.extensions["timeout"] = {
        name: min(seconds or READ_SECONDS, READ_SECONDS) for name, seconds in limits.items()
    }
