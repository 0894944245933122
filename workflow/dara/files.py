"""Atomic writes, reading of plain and gzipped files, checksums, and what git says about files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

GIT_SECONDS = 60.0


class GitError(ValueError):
    """A repository exists but git cannot answer; the message has git's reason."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content`, or leave it unchanged: no reader sees a partial file, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    os.replace(partial, path)


def remove(path: Path) -> None:
    """Delete a file, a directory with its content, or a link, but never the target of a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_text(path: Path) -> str:
    """Return the text of `path`, or of `<path>.gz` if only that exists. FileNotFoundError if neither does."""
    compressed = path.with_name(f"{path.name}.gz")
    if not path.is_file() and compressed.is_file():
        return gunzip(compressed).decode("utf-8")
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise ValueError, with its name, for a damaged one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no JSON ({error}); delete it to have it made again") from None


def gunzip(path: Path) -> bytes:
    """Return the content of a gzip file; raise ValueError, with its name, for a damaged or incomplete one."""
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: not a complete gzip file ({error})") from None


def gzipped(content: bytes) -> bytes:
    """Return `content` compressed, without file name and time in the header: equal contents give equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as stream:
        stream.write(content)
    return buffer.getvalue()


def sha256(path: Path) -> str:
    """Return the checksum (64 hex digits) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def commit(directory: Path) -> str | None:
    """Return the commit of the checkout with `directory`; None without checkout or commit. Raises GitError."""
    said = _ask_git(
        directory, "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno", "--ignore-submodules"
    )
    found = [line.split()[-1] for line in said.splitlines() if line.startswith("# branch.oid")]
    return found[0] if found and found[0] != "(initial)" else None


def tracked(directory: Path, name: str = ".") -> list[str]:
    """Return the tracked files of `name`, relative to `directory`; empty without a checkout. Raises GitError."""
    return _ask_git(directory, "ls-files", "-z", "--", name).split("\0")[:-1]


def _ask_git(directory: Path, *question: str) -> str:
    """Return git's answer; empty if no repository holds `directory`. Raises GitError if one does and git fails."""
    here = directory.resolve()
    top = next((place for place in (here, *here.parents) if os.path.lexists(place / ".git")), None)
    if top is None and "GIT_DIR" not in os.environ:
        return ""
    # A damaged repository must not be skipped in favour of one further up, which has none of its files.
    environment = os.environ | ({"GIT_CEILING_DIRECTORIES": str(top.parent)} if top else {})
    how = {"env": environment, "stdin": subprocess.DEVNULL, "capture_output": True, "timeout": GIT_SECONDS}
    try:
        done = subprocess.run(["git", "-C", str(here), *question], encoding="utf-8", errors="replace", **how)
    except FileNotFoundError:
        why = "it is not installed"
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {GIT_SECONDS:g} seconds"
    except OSError as error:
        why = f"it does not start: {error.strerror}"
    else:
        if done.returncode == 0:
            return done.stdout
        why = " ".join(done.stderr.split()) or f"it ended with status {done.returncode}"
    raise GitError(f"git says nothing about {directory}, which is in the repository {top or here}: {why}")
