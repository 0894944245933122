"""Public data sets and models, fetched by id and pinned commit.

A commit pins the bytes. The hub's own client downloads, resumes, locks and caches; each use compares the files with the
hashes by which the hub names them. A file of GitHub is compared with git's id of its content: the pinned one, or that
of the first download. A machine without a network has local files instead, or a mirror of the hub.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import logging
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import huggingface_hub
import yaml
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from huggingface_hub.utils.sha import git_hash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dara.data import network
from dara.data.network import FetchError
from dara.data.public import Row, read_rows
from dara.files import sha256, write_atomically
from dara.specs import HubModel
from dara.store import write_manifest

logger = logging.getLogger(__name__)

GITHUB = "https://github.com"
READ_SECONDS = 60.0  # until the next bytes come
# How things are fetched, by the names of a preset: from the hub itself, into .scratch/hub.
FETCHING: dict[str, Any] = {"scratch": ".scratch", "data_local": {}, "models_local": {}, "hub_mirror": None}
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
TOKENIZER_FILES = ("config.json", "tokenizer*", "vocab*", "merges.txt", "*_tokens*.json", "chat_template*")
NOT_WANTED = ("*/*", "README*", "LICENSE*")  # of models: other formats of the weights are in folders
Explain = Callable[[str], str]
"""Reason why something is missing -> the message of an error that says what it is, and how to get it."""


class Pin(BaseModel):
    """A file of a data set, as `config/data.lock.yaml` pins it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: Literal["hub", "github"]
    repository: str
    revision: str = Field(pattern="^[0-9a-f]{40}$")
    file: str  # its path in the repository, or a pattern that exactly one path matches
    rows: int | None  # None: unknown
    blob: str | None = Field(None, pattern="^[0-9a-f]{40}$")  # git's id of the content; the hub gives its own hashes

    @property
    def origin(self) -> str:
        """Return repository and commit, in words."""
        return f"{self.repository} at revision {self.revision}"


def read_pin(lock: Path, source_id: str) -> Pin:
    """Return the pin of a data set. ValueError, naming the file, if there is none or it is not complete."""
    try:
        content = yaml.safe_load(lock.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{lock}: the file does not exist; it pins every data set, and is in git") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{lock}: not valid YAML ({' '.join(str(error).split())})") from None
    pins = content.get("datasets") if isinstance(content, dict) else None
    if not isinstance(pins, dict):
        raise ValueError(f"{lock}: must have the mapping datasets")
    if source_id not in pins:
        raise ValueError(f"{lock}: has no data set {source_id!r}; it has {', '.join(pins)}")
    try:
        return Pin.model_validate(pins[source_id])
    except ValidationError:
        raise ValueError(
            f"{lock}: datasets.{source_id} must have host (hub or github), repository, revision (40 digits), file, "
            "rows and, where it is known, blob (40 digits)"
        ) from None


@dataclass(frozen=True)
class Fetch:
    """The source of data sets and models.

    Attributes:
        cache: directory of all fetched files.
        lock: the file of pins.
        data_local, models_local: data set or model id -> local file or directory that is used instead.
        mirror: endpoint of a mirror of the hub; None: the hub itself.
    """

    cache: Path
    lock: Path
    data_local: Mapping[str, Path | str] = field(default_factory=dict)
    models_local: Mapping[str, Path | str] = field(default_factory=dict)
    mirror: str | None = None

    def dataset(self, source_id: str) -> Path:
        """Return the file of a data set: the local one if there is one, else the cached one, fetched if absent.

        A local file in the pinned format must have the pinned content where that is known; in another format its rows
        are taken as they are, and a warning says so. FetchError if the file is missing and cannot be fetched (names id,
        revision and how to get it), or if it is not the pinned one (names file and both hashes).
        """
        pin = read_pin(self.lock, source_id)
        missing = functools.partial(_no_data, source_id, pin)
        if source_id in self.data_local:
            path = Path(self.data_local[source_id])
            if not path.is_file():
                raise FetchError(missing(f"{path} does not exist"))
            if pin.blob and path.suffix == Path(pin.file).suffix:
                _check_content(path, pin.blob, f"{source_id} ({pin.origin})")
            elif pin.blob:
                logger.warning(
                    "%s: stands in for %s in another format, so its content cannot be checked", path, source_id
                )
            return path
        if pin.host == "github":
            return self._github_file(pin, missing)
        folder = self._snapshot("dataset", pin.repository, pin.revision, (pin.file,), missing)
        fitting = [path for path in _files(folder) if fnmatch.fnmatch(path.relative_to(folder).as_posix(), pin.file)]
        if len(fitting) != 1:
            raise FetchError(f"{pin.origin}: {len(fitting)} files fit {pin.file!r}, the file of {source_id}; one must")
        return fitting[0]

    def model(self, hub_id: str, revision: str, files: tuple[str, ...] = MODEL_FILES) -> Path:
        """Return the directory of a model with its tokenizer, complete and checked: local, cached, or fetched now.

        revision: all 40 digits of a commit. FetchError as for a data set; also when a directory is not complete.
        """
        missing = functools.partial(_no_model, hub_id, revision)
        if not re.fullmatch(r"[0-9a-f]{40}", revision):
            raise FetchError(
                f"model {hub_id}: revision {revision!r} must be all 40 digits of a commit, which the hub needs"
            )
        if hub_id in self.models_local:
            folder = Path(self.models_local[hub_id])
            if not folder.is_dir():
                raise FetchError(missing(f"{folder} does not exist"))
            logger.warning("%s: this copy of %s is used as it is; it cannot be checked", folder, hub_id)
        else:
            folder = self._snapshot("model", hub_id, revision, files, missing)
        needed = {"config.json"}
        if files == MODEL_FILES:
            index = folder / "model.safetensors.index.json"
            whole = json.loads(index.read_text("utf-8"))["weight_map"].values() if index.is_file() else ()
            needed |= set(whole) or {"model.safetensors"}
        absent = sorted(name for name in needed if not (folder / name).is_file())
        if absent:
            raise FetchError(missing(f"{folder} has no {', '.join(absent)}"))
        return folder

    def tokenizer(self, hub_id: str, revision: str) -> Path:
        """Return the directory of a model's tokenizer and configuration: see `model`."""
        return self.model(hub_id, revision, TOKENIZER_FILES)

    def rows(self, source_id: str) -> list[Row]:
        """Return the rows of a data set. ValueError, naming the set, if their number is not the pinned one."""
        path, pin = self.dataset(source_id), read_pin(self.lock, source_id)
        rows = read_rows(path)
        if pin.rows is not None and len(rows) != pin.rows:
            raise ValueError(f"{path}: has {len(rows)} rows; {source_id} has {pin.rows}, so this is another set")
        return rows

    def describe(self, source_id: str) -> dict[str, Any]:
        """Return the manifest entry of a data set that was used."""
        pin, path = read_pin(self.lock, source_id), self.dataset(source_id)
        origin = {"repository": pin.repository, "revision": pin.revision}
        return {**origin, "file": path.name, "sha256": sha256(path), "local": source_id in self.data_local}

    def _snapshot(self, kind: str, repository: str, revision: str, files: tuple[str, ...], missing: Explain) -> Path:
        """Return the directory with the wanted files of a commit, fetched if any are absent, and checked."""
        wanted = (kind, repository, revision, files)
        folder = self.cached(*wanted)
        if folder is None:
            logger.info("fetching %s at revision %s", repository, revision)
            huggingface_hub.utils.logging.disable_propagation()  # it shows its messages by itself
            huggingface_hub.set_client_factory(_client)
            folder = _attempt(lambda: self._download(*wanted), missing, hub_address(self.mirror))
        for path in map(Path.resolve, _files(folder)):
            # The cache names a file by the hash that the hub gives: sha256, or git's id.
            _check_content(path, path.name, f"{repository} at revision {revision}")
        return folder

    def cached(self, kind: str, repository: str, revision: str, files: tuple[str, ...]) -> Path | None:
        """Return the cached directory of a commit, without asking a host; None if it lacks a wanted file."""
        try:
            return self._download(kind, repository, revision, files, here=True)
        except LocalEntryNotFoundError:
            return None

    def _download(self, kind: str, repository: str, revision: str, files: tuple[str, ...], here: bool = False) -> Path:
        folder = huggingface_hub.snapshot_download(
            repository,
            repo_type=kind,
            revision=revision,
            cache_dir=self.cache,
            endpoint=self.mirror,
            allow_patterns=[*files],
            ignore_patterns=[*NOT_WANTED] if kind == "model" else None,
            local_files_only=here,
        )
        return self.cache / Path(folder).relative_to(self.cache.resolve())

    def has_dataset(self, pin: Pin) -> bool:
        """Return whether the cache has the file of a data set, without asking a host."""
        if pin.host == "github":
            return self._github_path(pin).is_file()
        return self.cached("dataset", pin.repository, pin.revision, (pin.file,)) is not None

    def _github_path(self, pin: Pin) -> Path:
        return self.cache / "github" / pin.repository.replace("/", "--") / pin.revision / pin.file

    def _github_file(self, pin: Pin, missing: Explain) -> Path:
        """Return a file of a GitHub repository, fetched if absent, and checked. A mirror of the hub has none."""
        path = self._github_path(pin)
        first = path.with_name(f"{path.name}.blob")  # git's id of the fetched file, if the pin has none
        if not path.is_file():
            logger.info("fetching %s of %s", pin.file, pin.origin)
            address = f"{GITHUB}/{pin.repository}/raw/{pin.revision}/{pin.file}"
            get = functools.partial(httpx.get, address, follow_redirects=True, timeout=READ_SECONDS)
            content = _attempt(lambda: get().raise_for_status().content, missing, GITHUB)
            write_atomically(first, git_hash(content))
            write_atomically(path, content)
        _check_content(path, pin.blob or first.read_text("utf-8"), pin.origin)
        return path


def fetch_as_configured(root: Path, settings: Mapping[str, Any]) -> Fetch:
    """Return a workflow's Fetch, from keys of a preset, any of FETCHING. ValueError for other keys."""
    unknown = sorted(settings.keys() - FETCHING.keys())
    if unknown:
        raise ValueError(f"--fetch: {unknown[0]!r} is no key of it; the keys are {', '.join(FETCHING)}")
    chosen = {**FETCHING, **settings}
    cache, lock = Path(chosen["scratch"]) / "hub", root / "config" / "data.lock.yaml"
    return Fetch(cache, lock, chosen["data_local"], chosen["models_local"], chosen["hub_mirror"])


def write_model_manifest(spec: HubModel, manifest: Path, *, fetch: Fetch) -> None:
    """Fetch a model if it is not on this machine, and write its directory and checksums into `manifest`."""
    folder = fetch.model(spec.hub, spec.revision)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    wanted = filter_repo_objects(names, allow_patterns=[*MODEL_FILES], ignore_patterns=[*NOT_WANTED])
    content = {
        "model": spec.model_dump(mode="json"),
        "directory": str(folder),
        "sha256": {name: sha256(folder / name) for name in wanted},
        "versions": {"python": platform.python_version(), "huggingface_hub": huggingface_hub.__version__},
    }
    write_manifest(manifest, content)


def check_available(datasets: Iterable[str], models: Iterable[tuple[str, str]], fetch: Fetch) -> None:
    """Raise one FetchError that lists everything that is neither on this machine nor at a reachable host.

    Nothing is fetched. datasets: ids; models: (hub id, revision). ValueError for a local file of an unknown data set.
    """
    missing = []

    @functools.cache  # each host is asked once
    def unreachable(host: str) -> str | None:
        address = hub_address(fetch.mirror) if host == "hub" else GITHUB
        offline = host == "hub" and constants.is_offline_mode()
        return "HF_HUB_OFFLINE is set" if offline else network.unreachable(address)

    def check(explain: Explain, local: Path | str | None, host: str, cached: bool) -> None:
        if local is not None:
            reason = None if Path(local).exists() else f"{local} does not exist"
        else:
            reason = None if cached else unreachable(host)
        if reason:
            missing.append(explain(reason))

    for source_id in fetch.data_local:
        read_pin(fetch.lock, source_id)  # a wrong name would be ignored, and its data be fetched
    for source_id in sorted(set(datasets)):
        pin = read_pin(fetch.lock, source_id)
        explain = functools.partial(_no_data, source_id, pin)
        check(explain, fetch.data_local.get(source_id), pin.host, fetch.has_dataset(pin))
    for model in sorted(set(models)):
        cached = fetch.cached("model", *model, MODEL_FILES) is not None
        check(functools.partial(_no_model, *model), fetch.models_local.get(model[0]), "hub", cached)
    if missing:
        raise FetchError("\n  ".join([f"{len(missing)} needed and neither here nor within reach:", *missing]))


def hub_address(mirror: str | None) -> str:
    """Return the address of the hub. FetchError, naming the key or variable, if it has no scheme."""
    address = mirror or constants.ENDPOINT
    if not re.match("https?://[^/]", address):
        named = "hub_mirror" if mirror else "HF_ENDPOINT"
        raise FetchError(f"{named} is {address!r}; it must be a whole address, such as https://{address}")
    return address


def _attempt(download: Callable[[], Any], missing: Explain, address: str) -> Any:
    """Return the result of a download from an address; turn any error into a FetchError."""
    if fault := network.settings_fault():
        raise FetchError(missing(fault))
    try:
        return download()
    except network.ERRORS as error:
        raise FetchError(missing(network.reason(error, address))) from None


def _no_data(source_id: str, pin: Pin, reason: str) -> str:
    ways = f"give the file in the configuration (data_local: {{{source_id}: PATH}})"
    ways += " or a mirror (hub_mirror: ADDRESS)" if pin.host == "hub" else ", or fetch where the host can be reached"
    return f"data set {source_id} ({pin.origin}, file {pin.file}) is missing: {reason}; {ways}"


def _no_model(hub_id: str, revision: str, reason: str) -> str:
    return (
        f"model {hub_id} at revision {revision} is missing: {reason}; give its directory in the configuration "
        f"(models_local: {{{hub_id}: DIRECTORY}}) or a mirror (hub_mirror: ADDRESS)"
    )


def _check_content(path: Path, expected: str, of: str) -> None:
    """Raise FetchError unless a file has the expected hash (sha256, or git's id). Without one, compare nothing."""
    if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", expected):
        return
    found = sha256(path) if len(expected) == 64 else git_hash(path.read_bytes())
    if found != expected:
        raise FetchError(
            f"{path}: its hash is {found}, but {expected} is pinned for {of}; remove the file so that it is fetched "
            "again, or correct the pin"
        )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _client() -> httpx.Client:
    """Return the hub's own client, which here times out if a host does not respond."""
    from huggingface_hub.utils._http import default_client_factory  # private: only what downloads needs it

    def limit(request: httpx.Request) -> None:
        limits = request.extensions["timeout"].items()
        request.extensions["timeout"] = {kind: min(seconds or READ_SECONDS, READ_SECONDS) for kind, seconds in limits}

    client = default_client_factory()
    client.event_hooks["request"].append(limit)
    return client
