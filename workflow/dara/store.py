"""The artifact store: specification -> identity -> directory -> lock, journals, manifest.

Data sets, base models, runs and evaluations are kept so. `spec_hash` names a directory, `directory_lock` keeps other
processes out, `Journal` keeps work line by line, `assembled` gives a complete directory its name, and `write_manifest`
comes last. `record_owner` records which results a directory in scratch belongs to, because clones may share scratch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from pydantic import BaseModel

from dara.files import read_json, remove, sha256, write_atomically

log = logging.getLogger(__name__)

Key = TypeVar("Key")
Entry = TypeVar("Entry")

POLL_SECONDS = 0.2
HANDOVER_SECONDS = 30
"""Seconds that a job waits for a lock: a job whose Snakemake was killed notices it within a second or two, and ends."""
MANIFEST = "manifest.json"
OWNERS = "owners.json"
"""File in a run's directory in scratch: the absolute directories into which trainings there publish."""


def canonical_json(spec: BaseModel, *, defaults: bool = True) -> str:
    """Return the specification as canonical JSON: sorted keys, no spaces; with every default or none."""
    content = spec.model_dump(mode="json", exclude_defaults=not defaults)
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def spec_sha256(spec: BaseModel) -> str:
    """Return the checksum (64 hex digits) of a specification: its identity.

    Values equal to their default are left out, so a key that is added later, with a default that reproduces the
    previous behaviour, changes no identity. Hence a default never changes: a new `contract` does that.
    """
    return hashlib.sha256(canonical_json(spec, defaults=False).encode()).hexdigest()


def spec_hash(spec: BaseModel) -> str:
    """Return the first 8 hex digits of a specification's checksum, which are used in names."""
    return spec_sha256(spec)[:8]


class LockedError(ValueError):
    """Another live process holds the lock."""


@contextmanager
def directory_lock(directory: Path, *, seconds: float = HANDOVER_SECONDS) -> Iterator[None]:
    """Hold the lock of `directory` (made if absent) in the body of the `with`; wait up to `seconds` for it.

    It is an advisory `flock` on `<directory>/lock`, so nothing needs cleaning up after a crash: the file stays, but its
    lock ends with its process. The file names the holder. On a network file system the lock is only as good as `flock`.

    Raises LockedError, naming the holder's process and host, if the lock is still held after `seconds`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with (directory / "lock").open("a+") as file:
        while not _locks(file, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                file.seek(0)
                holder = json.loads(file.read() or "null")  # it may have locked the file but not yet written to it
                who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
                raise LockedError(f"{directory} is in use by {who}; wait until it ends, or stop it, and start again")
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        yield


def is_held(lock: Path) -> bool:
    """Return whether a live process holds a lock file, without waiting and without acquiring it."""
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        return not _locks(file, fcntl.LOCK_SH)


def _locks(file: IO, how: int) -> bool:
    """Lock an open file in a directory without waiting; return whether that was possible."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        why, directory = f"the file system has no locks ({error.strerror})", Path(file.name).parent
        raise OSError(error.errno, f"{why}; put {directory} on one that has flock") from None
    return True


@contextmanager
def assembled(directory: Path) -> Iterator[Path]:
    """Yield an empty directory to fill; it becomes `directory`, in place of an older one, if the body succeeds.

    No reader sees a partial directory: after an error or a kill, `directory` is unchanged.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as name:
        staging = Path(name) / directory.name
        staging.mkdir()
        yield staging
        remove(directory)
        os.replace(staging, directory)


def checksums(directory: Path) -> dict[str, str]:
    """Return path below `directory` -> sha256 of each file in it, sorted by path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): sha256(path) for path in files}


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write a manifest: indented JSON, atomically. NaN is an error."""
    write_atomically(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def base_model(manifest: Path) -> dict[str, Any]:
    """Return the manifest of a base model: the `directory` of its weights, and file -> checksum as `sha256`.

    ValueError if it is the manifest of something else, or if the weights are gone.
    """
    content = read_json(manifest)
    if not {"model", "directory", "sha256"} <= set(content):
        raise ValueError(f"{manifest} is not the manifest of a base model, which results/<preset>/models/ has")
    if not Path(content["directory"]).is_dir():
        raise ValueError(
            f"{content['directory']}, the weights that {manifest} names, is gone; delete {manifest} to make them again"
        )
    return content


def checkpoints(manifest: Path) -> dict[int, dict[str, Any]]:
    """Return step -> directory and sha256, from the manifest of a run or of a base model (step 0)."""
    made = read_json(manifest).get("checkpoints")
    return {0: base_model(manifest)} if made is None else {int(step): entry for step, entry in made.items()}


def saved_steps(manifest: Path) -> list[int]:
    """Return the steps that have a checkpoint, from the manifest of a run or of a base model."""
    return [int(step) for step in read_json(manifest).get("checkpoints", {0: {}})]


class Journal(AbstractContextManager, Generic[Key, Entry]):
    """Work in progress on disk, one line per entry; a context manager that keeps the file open for appending.

    A line is written at once, so a kill loses at most the entry that it interrupts: an incomplete line is cut off when
    the file is opened again.

    parse: (row from 1, line without its end) -> key and entry; ValueError, naming the file, for a wrong line, which no
    kill can cause. head: first line, which identifies the entries; a file with another head is started again. The
    attribute `done` has the entries by key.
    """

    def __init__(self, path: Path, parse: Callable[[int, str], tuple[Key, Entry]], head: str | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        lines = _whole_lines(path)
        if head is not None and lines and lines[0] != head:
            log.info("%s: of other work; begun again", path)
            path.unlink()
            lines = []
        self.done: dict[Key, Entry] = {}
        for row, line in enumerate(lines, 1):
            if row > 1 or head is None:
                key, entry = parse(row, line)
                if key in self.done:
                    raise ValueError(f"{path}, row {row}: {key} again; delete the file")
                self.done[key] = entry
        self._stream = path.open("a", encoding="utf-8", newline="\n")
        if head is not None and not lines:
            self._write(head)

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def add(self, key: Key, entry: Entry, line: str) -> None:
        """Append an entry as `line`; raise ValueError for a key that already exists."""
        if key in self.done:
            raise ValueError(f"{self._path}: {key} is already there")
        self._write(line)
        self.done[key] = entry

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def _whole_lines(path: Path) -> list[str]:
    """Return the complete lines of `path`, and cut off what follows them."""
    if not path.is_file():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
    try:
        return whole.decode("utf-8").split("\n")[:-1]  # not splitlines: a text may contain U+2028
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: not UTF-8 text ({error}); delete it to have it made again") from None


def owners(directory: Path) -> list[str]:
    """Return the directories into which the content of `directory` is published; empty without a record."""
    path = directory / OWNERS
    return read_json(path) if path.is_file() else []


def record_owner(directory: Path, out: Path) -> None:
    """Record `out` as an owner of a directory in scratch, which clones may share; earlier owners are kept."""
    # Not resolved: the results of a preset may be a link to a disk shared with other results.
    absolute = out.absolute()
    results = absolute.parents[min(2, len(absolute.parents) - 1)]
    before, own = owners(directory), str(results.resolve() / absolute.relative_to(results))
    if own not in before:
        write_atomically(directory / OWNERS, json.dumps([*before, own], indent=2) + "\n")


def reason_to_keep(directory: Path, results: Path) -> str | None:
    """Return why nothing in `directory` may be deleted for `results`; None if `results` is its only owner."""
    own = owners(directory)
    if not own:
        return f"it has no {OWNERS}, which says whose it is"
    # <results>/<preset>/runs/<run>: a results tree nested in another is a separate owner.
    others = [out for out in own if [*Path(out).parents][2:3] != [results.resolve()]]
    return f"it belongs to {others[0]}" if others else None
