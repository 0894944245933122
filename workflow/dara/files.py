"""Files that are complete or absent, and their checksums."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content`, or leave it as it is: no reader sees a part, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    os.replace(partial, path)


def sha256(path: Path) -> str:
    """Checksum (64 hex digits) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
