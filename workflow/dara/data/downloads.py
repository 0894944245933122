"""Downloads from the hub and from GitHub; nothing here looks at what is already there."""

from __future__ import annotations

import fnmatch
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dara.data.pins import Pin

GITHUB = "https://github.com"
ANSWER_SECONDS = 10.0
NOT_WANTED = ("*/*", "README*", "LICENSE*")  # other formats of the weights stand in folders


class FetchError(ValueError):
    """A file is not there and cannot be fetched, or is not what is pinned."""


def answers(address: str) -> bool:
    """Whether a host answers at all, whatever it says."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=ANSWER_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def attempt(download: Callable[[], Any], message: Callable[[str], str]) -> Any:
    """The result of a download; what the network or the host says becomes one FetchError."""
    import httpx

    try:
        return download()
    except FetchError:
        raise
    except (OSError, httpx.HTTPError) as error:
        raise FetchError(message(" ".join(f"{type(error).__name__}: {error}".split()))) from None


def hub_file(pin: Pin, folder: Path, mirror: str | None) -> str:
    """Fetch a data set's file from the hub into `folder`; its path below it."""
    from huggingface_hub import HfApi, hf_hub_download

    _say_once()
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
    with urllib.request.urlopen(address, timeout=60) as response, target.open("wb") as file:
        shutil.copyfileobj(response, file)
    return pin.file


def snapshot(hub_id: str, revision: str, patterns: tuple[str, ...], folder: Path, mirror: str | None) -> None:
    """Fetch a model's files into `folder`; an interrupted fetch goes on where it was."""
    from huggingface_hub import snapshot_download

    _say_once()
    snapshot_download(
        hub_id,
        revision=revision,
        endpoint=mirror,
        local_dir=folder,
        allow_patterns=list(patterns),
        ignore_patterns=list(NOT_WANTED),
    )


def _say_once() -> None:
    """The hub library shows its messages by itself; without this they would stand in a job's log twice."""
    from huggingface_hub.utils import logging as hub_logging

    hub_logging.disable_propagation()
