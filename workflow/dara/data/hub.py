"""Published data sets and models, fetched by id and pinned revision, checked, and kept in one directory.

What is fetched is compared with the checksums of `config/data.lock.yaml` (`dara.data.pins`) at each use. A machine
without a network has local files instead, or a mirror of the hub.
"""

from __future__ import annotations

import fnmatch
import json
import logging
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dara.data import downloads, network
from dara.data.downloads import GITHUB, NOT_WANTED, FetchError, attempt
from dara.data.pins import Pin, model_sums, read_pin, record_model, record_pin
from dara.data.rows import Row, read_rows
from dara.files import sha256, write_atomically
from dara.specs import HubModel
from dara.store import directory_lock

logger = logging.getLogger(__name__)

FETCH_SECONDS = 6 * 3600.0  # a large model that another job is fetching is waited for
# How things are fetched, by the names of a preset: from the hub itself, into .scratch/hub.
FETCHING: dict[str, Any] = {"scratch": ".scratch", "data_local": {}, "models_local": {}, "hub_mirror": None}
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
TOKENIZER_FILES = (
    "config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)


@dataclass(frozen=True)
class Fetch:
    """Where data sets and models come from.

    Attributes:
        cache: directory of everything that is fetched.
        lock: the file of pins.
        data_local, models_local: data set or model id -> local file or directory that stands in for it.
        mirror: endpoint of a mirror of the hub; None: the hub itself.
    """

    cache: Path
    lock: Path
    data_local: Mapping[str, Path | str] = field(default_factory=dict)
    models_local: Mapping[str, Path | str] = field(default_factory=dict)
    mirror: str | None = None

    def dataset(self, source_id: str) -> Path:
        """The file of a data set: see `dataset_file`."""
        return dataset_file(source_id, cache=self.cache, local=self.data_local, mirror=self.mirror, lock=self.lock)

    def model(self, hub_id: str, revision: str) -> Path:
        """The directory of a model: see `model_directory`."""
        return model_directory(
            hub_id, revision, cache=self.cache, local=self.models_local, mirror=self.mirror, lock=self.lock
        )

    def tokenizer(self, hub_id: str, revision: str) -> Path:
        """The directory of a model's tokenizer: see `tokenizer_directory`."""
        return tokenizer_directory(
            hub_id, revision, cache=self.cache, local=self.models_local, mirror=self.mirror, lock=self.lock
        )

    def rows(self, source_id: str) -> list[Row]:
        """The rows of a data set. Raises ValueError, naming the set, when it has not as many as are pinned."""
        path, pin = self.dataset(source_id), read_pin(self.lock, source_id)
        rows = read_rows(path)
        if pin.rows is not None and len(rows) != pin.rows:
            raise ValueError(f"{path}: has {len(rows)} rows; {source_id} has {pin.rows}, so this is another set")
        return rows

    def describe(self, source_id: str) -> dict[str, Any]:
        """What a manifest says about a data set that was used."""
        pin, path = read_pin(self.lock, source_id), self.dataset(source_id)
        return {
            "repository": pin.repository,
            "revision": pin.revision,
            "file": path.name,
            "sha256": sha256(path),
            "local": source_id in self.data_local,
        }


def dataset_file(
    source_id: str, *, cache: Path, local: Mapping[str, Path | str], mirror: str | None, lock: Path
) -> Path:
    """The file of a data set: the local one if there is one, else the cached one, fetched where it is not there.

    A local file in the pinned format must be the pinned file; in another format its rows are taken as they are, and a
    warning says so.

    Raises:
        FetchError: the file is missing and cannot be fetched (names id, revision and how to get it), or its sha256 is
            not the pinned one (names file and both sums).
    """
    pin = read_pin(lock, source_id)
    if source_id in local:
        return _local_file(pin, Path(local[source_id]))
    folder = _dataset_folder(pin, cache)
    with directory_lock(cache, seconds=FETCH_SECONDS):
        path = _only_file(folder)
        if path is not None:
            _check_file(pin, path)
        else:
            path, pin = _fetched_file(pin, folder, mirror)
        if read_pin(lock, source_id).sha256 is None:
            rows = len(read_rows(path)) if pin.rows is None else pin.rows
            record_pin(lock, replace(pin, rows=rows, sha256=sha256(path)))
            logger.info("%s: its sha256 is now in %s; commit that file", source_id, lock)
    return path


def model_directory(
    hub_id: str, revision: str, *, cache: Path, local: Mapping[str, Path | str], mirror: str | None, lock: Path
) -> Path:
    """The directory of a model with its tokenizer, complete and checked: local, cached, or fetched now.

    revision: all 40 digits of a commit.

    Raises:
        FetchError: as `dataset_file`; also when a local directory is not complete.
    """
    fetch = Fetch(cache, lock, models_local=local, mirror=mirror)
    return _model(hub_id, revision, MODEL_FILES, cache / "models", fetch)


def tokenizer_directory(
    hub_id: str, revision: str, *, cache: Path, local: Mapping[str, Path | str], mirror: str | None, lock: Path
) -> Path:
    """The directory of a model's tokenizer and configuration; the model's own where that is there already."""
    whole = _model_folder(cache / "models", hub_id, revision)
    place = whole.parents[1] if whole.is_dir() else cache / "tokenizers"
    fetch = Fetch(cache, lock, models_local=local, mirror=mirror)
    return _model(hub_id, revision, TOKENIZER_FILES, place, fetch)


def write_model_manifest(spec: HubModel, manifest: Path, *, fetch: Fetch) -> None:
    """Have the model on this machine, and say in `manifest` where it is and what it is made of."""
    import huggingface_hub

    folder = fetch.model(spec.hub, spec.revision)
    pinned = model_sums(fetch.lock, spec.hub, spec.revision)  # the files have just been compared with these
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and _wanted(path.name, MODEL_FILES))
    content = {
        "model": spec.model_dump(mode="json"),
        "directory": str(folder),
        "sha256": {name: pinned.get(name) or sha256(folder / name) for name in names},
        "versions": {"python": platform.python_version(), "huggingface_hub": huggingface_hub.__version__},
    }
    write_atomically(manifest, json.dumps(content, indent=2) + "\n")


def fetch_as_configured(root: Path, settings: Mapping[str, Any]) -> Fetch:
    """How a workflow fetches: keys of a preset, of which those of FETCHING may be left out. ValueError for others."""
    unknown = sorted(settings.keys() - FETCHING.keys())
    if unknown:
        raise ValueError(f"--fetch: {unknown[0]!r} is no key of it; the keys are {', '.join(FETCHING)}")
    chosen = {**FETCHING, **settings}
    return Fetch(
        cache=Path(chosen["scratch"]) / "hub",
        lock=root / "config" / "data.lock.yaml",
        data_local=chosen["data_local"],
        models_local=chosen["models_local"],
        mirror=chosen["hub_mirror"],
    )


def check_available(datasets: Iterable[str], models: Iterable[tuple[str, str]], fetch: Fetch) -> None:
    """Raise one FetchError that lists everything that is neither on this machine nor at a host that answers.

    Nothing is fetched. datasets: ids; models: (hub id, revision). ValueError for a local file of an unknown data set.
    """
    from huggingface_hub import constants

    answers: dict[str, str | None] = {}

    def unreachable(address: str) -> str | None:
        if address not in answers:
            offline = address != GITHUB and constants.is_offline_mode()
            answers[address] = "HF_HUB_OFFLINE is set" if offline else network.unreachable(address)
        return answers[address]

    for source_id in fetch.data_local:
        read_pin(fetch.lock, source_id)  # a wrong name would stand for nothing, and its data be fetched
    missing = []
    for source_id in sorted(set(datasets)):
        pin = read_pin(fetch.lock, source_id)
        local, address = fetch.data_local.get(source_id), GITHUB if pin.host == "github" else _hub(fetch.mirror)
        here = Path(local).is_file() if local is not None else _only_file(_dataset_folder(pin, fetch.cache)) is not None
        reason = None if here else f"{local} does not exist" if local is not None else unreachable(address)
        if reason:
            missing.append(_missing_dataset(pin, reason))
    for hub_id, revision in sorted(set(models)):
        local, address = fetch.models_local.get(hub_id), _hub(fetch.mirror)
        here = Path(local) if local is not None else _model_folder(fetch.cache / "models", hub_id, revision)
        reason = None if here.is_dir() else f"{local} does not exist" if local is not None else unreachable(address)
        if reason:
            missing.append(_missing_model(hub_id, revision, reason))
    if missing:
        raise FetchError("\n  ".join([f"{len(missing)} needed and neither here nor within reach:", *missing]))


def _hub(mirror: str | None) -> str:
    """The address of the hub. FetchError, naming the key or the variable, for one without its scheme."""
    from huggingface_hub import constants

    address = mirror or constants.ENDPOINT
    if not re.match("https?://[^/]", address):
        named = "hub_mirror" if mirror else "HF_ENDPOINT"
        raise FetchError(f"{named} is {address!r}; it must be a whole address, such as https://{address}")
    return address


def _missing_dataset(pin: Pin, reason: str) -> str:
    ways = f"give the file in the configuration (data_local: {{{pin.id}: PATH}})"
    ways += " or a mirror (hub_mirror: ADDRESS)" if pin.host == "hub" else ", or fetch where the host can be reached"
    return (
        f"data set {pin.id} ({pin.repository} at revision {pin.revision}, file {pin.file}) is missing: {reason}; {ways}"
    )


def _missing_model(hub_id: str, revision: str, reason: str) -> str:
    return (
        f"model {hub_id} at revision {revision} is missing: {reason}; give its directory in the configuration "
        f"(models_local: {{{hub_id}: DIRECTORY}}) or a mirror (hub_mirror: ADDRESS)"
    )


def _dataset_folder(pin: Pin, cache: Path) -> Path:
    return cache / "data" / pin.id / pin.revision


def _only_file(folder: Path) -> Path | None:
    """The file of a finished fetch."""
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    return files[0] if files else None


def _local_file(pin: Pin, path: Path) -> Path:
    if not path.is_file():
        raise FetchError(_missing_dataset(pin, f"{path} does not exist"))
    if path.suffix == Path(pin.file).suffix:
        _check_file(pin, path)
    elif pin.sha256 is not None:
        logger.warning("%s: stands in for %s in another format, so its sha256 cannot be checked", path, pin.id)
    return path


def _check_file(pin: Pin, path: Path) -> None:
    if pin.sha256 is not None and sha256(path) != pin.sha256:
        raise FetchError(
            f"{path}: its sha256 is {sha256(path)}, but {pin.sha256} is pinned for {pin.id} ({pin.repository} at "
            f"revision {pin.revision}); remove the file so that it is fetched again, or correct the pin"
        )


def _fetched_file(pin: Pin, folder: Path, mirror: str | None) -> tuple[Path, Pin]:
    """Fetch a file beside its place, check it, and move it there; the pin with the file's own name."""
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    logger.info("fetching %s from %s at revision %s", pin.id, pin.repository, pin.revision)
    download = downloads.github_file if pin.host == "github" else downloads.hub_file
    address = GITHUB if pin.host == "github" else _hub(mirror)
    name = attempt(lambda: download(pin, partial, mirror), lambda reason: _missing_dataset(pin, reason), address)
    try:
        _check_file(pin, partial / name)
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(partial / name, folder / Path(name).name)
    finally:
        shutil.rmtree(partial)
    return folder / Path(name).name, replace(pin, file=name)


def _model_folder(place: Path, hub_id: str, revision: str) -> Path:
    return place / hub_id.replace("/", "--") / revision


def _model(hub_id: str, revision: str, patterns: tuple[str, ...], place: Path, fetch: Fetch) -> Path:
    lock = fetch.lock
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise FetchError(
            f"model {hub_id}: revision {revision!r} must be all 40 digits of a commit, which the hub needs"
        )
    if hub_id in fetch.models_local:
        return _local_model(hub_id, revision, patterns, Path(fetch.models_local[hub_id]), lock)
    folder = _model_folder(place, hub_id, revision)
    with directory_lock(fetch.cache, seconds=FETCH_SECONDS):
        if folder.is_dir():
            _check_sums(hub_id, revision, folder, patterns, lock)
            return folder
        partial = folder.with_name(f".{revision}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        logger.info("fetching %s at revision %s", hub_id, revision)
        attempt(
            lambda: downloads.snapshot(hub_id, revision, patterns, partial, fetch.mirror),
            lambda reason: _missing_model(hub_id, revision, reason),
            _hub(fetch.mirror),
        )
        shutil.rmtree(partial / ".cache", ignore_errors=True)  # the hub library's notes for an interrupted fetch
        _check_complete(hub_id, revision, partial, patterns)
        sums = _check_sums(hub_id, revision, partial, patterns, lock)
        new = sums.keys() - model_sums(lock, hub_id, revision).keys()
        if new:
            record_model(lock, hub_id, revision, {name: sums[name] for name in new})
            logger.info("%s: %d checksums are now in %s; commit that file", hub_id, len(new), lock)
        os.replace(partial, folder)
    return folder


def _local_model(hub_id: str, revision: str, patterns: tuple[str, ...], folder: Path, lock: Path) -> Path:
    if not folder.is_dir():
        raise FetchError(_missing_model(hub_id, revision, f"{folder} does not exist"))
    _check_complete(hub_id, revision, folder, patterns)
    if not model_sums(lock, hub_id, revision):
        logger.warning("%s: no checksum of %s is pinned, so this copy of it cannot be checked", folder, hub_id)
    _check_sums(hub_id, revision, folder, patterns, lock)
    return folder


def _check_complete(hub_id: str, revision: str, folder: Path, patterns: tuple[str, ...]) -> None:
    """A directory of a model has its configuration and, where weights are wanted, every file of them."""
    needed = {"config.json"}
    if patterns == MODEL_FILES:
        index = folder / "model.safetensors.index.json"
        whole = json.loads(index.read_text("utf-8"))["weight_map"].values() if index.is_file() else ()
        needed |= set(whole) or {"model.safetensors"}
    absent = sorted(name for name in needed if not (folder / name).is_file())
    if absent:
        raise FetchError(_missing_model(hub_id, revision, f"{folder} has no {', '.join(absent)}"))


def _check_sums(hub_id: str, revision: str, folder: Path, patterns: tuple[str, ...], lock: Path) -> dict[str, str]:
    """The sha256 of each file that is wanted; FetchError where one is not the pinned one."""
    pinned = model_sums(lock, hub_id, revision)
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and _wanted(path.name, patterns))
    sums = {name: sha256(folder / name) for name in names}
    for name, found in sums.items():
        if pinned.get(name, found) != found:
            raise FetchError(
                f"{folder / name}: its sha256 is {found}, but {pinned[name]} is pinned for {hub_id} at revision "
                f"{revision}; remove {folder} so that it is fetched again, or correct the pin in {lock}"
            )
    return sums


def _wanted(name: str, patterns: tuple[str, ...]) -> bool:
    fits = any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    return fits and not any(fnmatch.fnmatch(name, pattern) for pattern in NOT_WANTED)
