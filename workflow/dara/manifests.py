"""Reads references to other files from the manifests of runs, base models and data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.files import read_json

if TYPE_CHECKING:
    from dara.specs import RunSpec


def model_directory(manifest: Path) -> Path:
    """Return the directory with the weights of a base model; raise ValueError if they are gone."""
    directory = Path(_of_model(manifest)["directory"])
    if not directory.is_dir():
        raise ValueError(
            f"{directory}, the weights that {manifest} names, is gone; delete {manifest} to make them again"
        )
    return directory


def model_sums(manifest: Path) -> dict[str, str]:
    """Return file -> sha256 of a base model."""
    return _of_model(manifest)["sha256"]


def checkpoints(manifest: Path) -> dict[int, Path]:
    """Return step -> directory, from the manifest of a run or of a base model (step 0)."""
    content = read_json(manifest)
    if "checkpoints" not in content:
        return {0: model_directory(manifest)}
    return {int(step): Path(entry["directory"]) for step, entry in content["checkpoints"].items()}


def saved_steps(manifest: Path) -> list[int]:
    """Return the steps that have a checkpoint, from the manifest of a run or of a base model."""
    return [int(step) for step in read_json(manifest).get("checkpoints", {0: {}})]


def checksums(manifest: Path) -> dict[int, dict[str, str]]:
    """Return step -> file -> sha256, as a run's or a base model's manifest has them."""
    content = read_json(manifest)
    if "checkpoints" not in content:
        return {0: model_sums(manifest)}
    return {int(step): entry["sha256"] for step, entry in content["checkpoints"].items()}


def check_inputs(spec: RunSpec, data: Path, model: Path) -> None:
    """Raise ValueError if the manifests are of other data or of another base model than the specification's."""
    for key, manifest, wanted in (("data", data, spec.data), ("model", model, spec.model)):
        if read_json(manifest).get(key) != wanted.model_dump(mode="json"):
            raise ValueError(
                f"{manifest} is not of the {key} that the run's specification names; give the manifest of it"
            )


def _of_model(manifest: Path) -> dict[str, Any]:
    content = read_json(manifest)
    if not {"model", "directory", "sha256"} <= set(content):
        raise ValueError(f"{manifest} is not the manifest of a base model, which results/<preset>/models/ has")
    return content
