"""The file of pins: which revision of each data set and model is meant, and what its files must be (sha256).

It is kept in git (`config/data.lock.yaml`). Revisions stand there by hand; a checksum is recorded by the first fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from dara.files import write_atomically

KEYS = ("host", "repository", "revision", "file", "rows", "sha256")
HOSTS = ("hub", "github")


@dataclass(frozen=True)
class Pin:
    """One file of a data set.

    Attributes:
        file: its path in the repository, or a pattern that exactly one path fits.
        rows: how many rows it has; None until somebody has fetched it, where nobody states it.
        sha256: 64 hex digits; None until somebody has fetched it.
    """

    id: str
    host: Literal["hub", "github"]
    repository: str
    revision: str
    file: str
    rows: int | None
    sha256: str | None


def read_pin(lock: Path, source_id: str) -> Pin:
    """The pin of a data set. Raises ValueError where it has none, or one that is not complete."""
    pins = _read(lock)["datasets"]
    if source_id not in pins:
        raise ValueError(f"{lock}: has no data set {source_id!r}; it has {', '.join(pins)}")
    entry = pins[source_id]
    if not isinstance(entry, dict) or sorted(entry) != sorted(KEYS) or entry["host"] not in HOSTS:
        raise ValueError(f"{lock}: datasets.{source_id} must have {', '.join(KEYS)}, with host {' or '.join(HOSTS)}")
    return Pin(source_id, **entry)


def record_pin(lock: Path, pin: Pin) -> None:
    """Keep the file name, the number of rows and the checksum of what was fetched."""
    content = _read(lock)
    content["datasets"][pin.id] |= {"file": pin.file, "rows": pin.rows, "sha256": pin.sha256}
    _write(lock, content)


def model_sums(lock: Path, hub_id: str, revision: str) -> dict[str, str]:
    """File name -> sha256 of a model's files, as far as they are known."""
    return dict(_read(lock)["models"].get(f"{hub_id}@{revision}", {}))


def record_model(lock: Path, hub_id: str, revision: str, sums: Mapping[str, str]) -> None:
    """Keep the checksums of a model's files beside those that are there."""
    content = _read(lock)
    known = content["models"].setdefault(f"{hub_id}@{revision}", {})
    content["models"][f"{hub_id}@{revision}"] = dict(sorted({**known, **sums}.items()))
    _write(lock, content)


def _read(lock: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(lock.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{lock}: the file does not exist; it pins every data set and model, and is in git") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{lock}: not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(key), dict) for key in ("datasets", "models")):
        raise ValueError(f"{lock}: must have the mappings datasets and models")
    return content


def _write(lock: Path, content: Mapping[str, Any]) -> None:
    """The same file with other values; the comment at its top stays."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = "".join(f"{line}\n" for line in lines[:end])
    write_atomically(lock, comment + yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=120))
