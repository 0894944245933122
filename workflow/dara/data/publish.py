"""Prepared data on disk: each file complete or absent, and a manifest that vouches for them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dara.files import sha256, write_atomically


def publish(
    out: Path,
    rows: Mapping[str, list[Mapping[str, Any]]],
    content: Mapping[str, Any],
    add: Callable[[Path], None] | None = None,
) -> None:
    """Write the JSON-lines files `rows` (name -> objects) into `out` and, last, `manifest.json`.

    content: what else the manifest says, before the counts of rows and the checksums of all files. `add` writes further
    files into the directory that it is given.
    """
    out.mkdir(parents=True, exist_ok=True)
    manifest = out / "manifest.json"
    manifest.unlink(missing_ok=True)  # while files change, no manifest vouches for them
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=out) as name:
        staging = Path(name)
        for file, objects in rows.items():
            _write_json_lines(staging / file, objects)
        if add is not None:
            add(staging)
        files = sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file())
        checksums = {file: sha256(staging / file) for file in files}
        for file in files:
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / file, out / file)
        counts = {file: len(objects) for file, objects in rows.items()}
        whole = {**content, "rows": counts, "sha256": checksums}
        write_atomically(manifest, json.dumps(whole, indent=2) + "\n")


def _write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(lines, encoding="utf-8", newline="\n")
