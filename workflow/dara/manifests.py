"""What the manifests of runs, base models and data say about files that are elsewhere."""

from __future__ import annotations

import json
from pathlib import Path


def model_directory(manifest: Path) -> Path:
    """Where the weights of a base model are. ValueError if they are gone."""
    directory = Path(_content(manifest)["directory"])
    if not directory.is_dir():
        raise ValueError(
            f"{directory}, the weights that {manifest} names, is gone; delete {manifest} to make them again"
        )
    return directory


def model_sums(manifest: Path) -> dict[str, str]:
    """File -> sha256 of a base model."""
    return _content(manifest)["sha256"]


def checkpoints(manifest: Path) -> dict[int, Path]:
    """Step -> directory, from the manifest of a run or of a base model (step 0)."""
    content = _content(manifest)
    if "checkpoints" not in content:
        return {0: model_directory(manifest)}
    return {int(step): Path(entry["directory"]) for step, entry in content["checkpoints"].items()}


def checksums(manifest: Path) -> dict[int, dict[str, str]]:
    """Step -> file -> sha256, as a run's or a base model's manifest has them."""
    content = _content(manifest)
    if "checkpoints" not in content:
        return {0: content["sha256"]}
    return {int(step): entry["sha256"] for step, entry in content["checkpoints"].items()}


def cases_directory(benchmark: str, manifest: Path) -> Path:
    """Where the cases of a benchmark are, beside the manifest of the data that holds them."""
    return manifest.parent / ("validation" if benchmark.endswith("_validation") else "benchmark")


def _content(manifest: Path) -> dict:
    return json.loads(manifest.read_text(encoding="utf-8"))
