"""Files that are complete or absent, and their checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content`, or leave it as it is: no reader sees a part, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    os.replace(partial, path)


def remove(path: Path) -> None:
    """Delete a file, a directory with what is in it, or a link, but never what a link points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_text(path: Path) -> str:
    """The text of `path`, or of `<path>.gz` where only that is there. FileNotFoundError if neither is."""
    compressed = path.with_name(f"{path.name}.gz")
    if not path.is_file() and compressed.is_file():
        return gunzip(compressed).decode("utf-8")
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The content of a JSON file. ValueError, with its name, for one that is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no JSON ({error}); delete it to have it made again") from None


def gunzip(path: Path) -> bytes:
    """The content of a gzip file. ValueError, with its name, for one that is damaged or incomplete."""
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: not a complete gzip file ({error})") from None


def gzipped(content: bytes) -> bytes:
    """`content` compressed; no file name and no time in the header, so equal contents are equal files."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as stream:
        stream.write(content)
    return buffer.getvalue()


def sha256(path: Path) -> str:
    """Checksum (64 hex digits) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
