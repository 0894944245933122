"""Files of a run: reading and checking spec.json, manifest.json, metrics.jsonl and rewards.npz."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, StrictFloat, TypeAdapter, ValidationError

from dara.files import read_text
from dara.runs import run_id
from dara.specs import RunSpec
from dara.store import spec_sha256

SCHEMA = 1
"""Version of the metrics that this analysis supports."""

STEP = TypeAdapter(dict[str, StrictFloat])
"""A line of metrics.jsonl; every value is a number."""


class RecordError(ValueError):
    """A file of a run is missing, damaged or belongs to something else; the message names file and place."""


class Checkpoint(BaseModel):
    """A manifest's entry for a checkpoint: the checksum of each of its files."""

    sha256: dict[str, str]


class Manifest(BaseModel):
    """The fields of a finished run's manifest that the analysis needs."""

    run_id: str
    spec_sha256: str
    outcome: Literal["completed", "diverged"]
    steps: int
    checkpoints: dict[int, Checkpoint]


@dataclass(frozen=True)
class Run:
    """A planned run: its identity, its directory, and its outcome (None: the run is missing).

    sums: for each checkpoint, file -> sha256.
    """

    run_id: str
    directory: Path
    spec: RunSpec
    outcome: str | None = None
    steps: int = 0
    sums: dict[int, dict[str, str]] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, Any]:
        """Return the columns that name a run in a frame."""
        spec = self.spec
        names = {"task": spec.task, "model": spec.model.name, "method": spec.method.name}
        return {"run_id": self.run_id} | names | {"group_size": spec.group_size, "seed": spec.seed}


def read_run(name: str, directory: Path) -> Run:
    """Read the run in a directory. Without a manifest.json, which is written last, the run is missing.

    Raise RecordError without its specification, or if the specification or the manifest belongs to another run.
    """
    path = directory / "spec.json"
    try:
        spec = RunSpec.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path}: run {name} has no specification; the workflow writes it before training") from None
    except ValidationError as error:
        raise RecordError(f"{path}: not the specification of a run: {error.errors()[0]['msg']}") from None
    if run_id(spec) != name:
        raise RecordError(f"{path}: this is the specification of {run_id(spec)}, not of {name}")
    path = directory / "manifest.json"
    if not path.is_file():
        return Run(name, directory, spec)
    manifest = _read_manifest(path)
    if manifest.run_id != name or manifest.spec_sha256 != spec_sha256(spec):
        raise RecordError(f"{path}: not of the specification in the spec.json beside it; train {name} again")
    if manifest.outcome == "completed" and manifest.steps != spec.steps:
        raise RecordError(f"{path}: completed with {manifest.steps} steps; the specification plans {spec.steps}")
    sums = {step: checkpoint.sha256 for step, checkpoint in manifest.checkpoints.items()}
    return Run(name, directory, spec, manifest.outcome, manifest.steps, sums)


def _read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate(read_json(path))
    except ValidationError as error:
        problem = error.errors()[0]
    key, *inner = problem["loc"] or ("run_id",)
    if inner:
        text = f"checkpoint {inner[0]} has no 'sha256', the checksums of its files; train it again"
    elif problem["type"] == "literal_error":
        text = f"{key} is {problem['input']!r}; it must be {problem['ctx']['expected'].replace(chr(39), '')}"
    else:
        text = f"{key!r} is missing; it is not the manifest of a run"
    raise RecordError(f"{path}: {text}")


def read_metrics(run: Run) -> pd.DataFrame:
    """Read the steps of a finished run: one float64 column per metric, indexed by step from 1.

    Raises:
        RecordError: not schema 1, a step with a gap or a repeat, a number of steps other than the manifest's, a value
            that is not a number, a metric that some steps lack, or (unless the run diverged) a value that is not
            finite.
    """
    if run.steps == 0:  # the run diverged before it finished a step
        return pd.DataFrame(index=pd.RangeIndex(1, 1))
    path = run.directory / "metrics.jsonl"
    lines = _text(path).splitlines()
    steps = [_metrics_line(line, number, run, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]
    if len(steps) != run.steps:
        raise RecordError(f"{path}: {len(steps)} steps; the manifest of {run.run_id} says {run.steps}")
    for number, step in enumerate(steps, start=1):
        if step.keys() != steps[0].keys():
            names = ", ".join(sorted(step.keys() ^ steps[0].keys()))
            raise RecordError(f"{path}: line {number}: other metrics than in line 1: {names}")
    metrics = pd.DataFrame(steps, index=pd.RangeIndex(1, len(steps) + 1)).drop(columns=["schema", "step"])
    wrong = np.argwhere(~np.isfinite(metrics.to_numpy())) if run.outcome != "diverged" else []
    if len(wrong):
        row, column = wrong[0]
        found = f"{metrics.columns[column]} is {metrics.iat[row, column]}"
        raise RecordError(f"{path}: line {row + 1}: {found} in run {run.run_id}, which did not diverge")
    return metrics


def _metrics_line(line: str, number: int, run: Run, where: str) -> dict[str, float]:
    try:
        step = STEP.validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "json_invalid":
            detail = problem["ctx"]["error"]
            raise RecordError(f"{where}: not JSON ({detail}); every line is one object a step") from None
        metric = problem["loc"][0] if problem["loc"] else "the line"
        raise RecordError(f"{where}: {metric} is {problem['input']!r}; it must be a number") from None
    if step.get("schema") != SCHEMA:
        raise RecordError(f"{where}: the key 'schema' must be {SCHEMA}")
    if step.get("step") != number:
        found = f"step is {step.get('step', math.nan):g}, step {number} is due"
        raise RecordError(f"{where}: run {run.run_id}: {found}; steps have no gap and no repeat")
    return step


def read_rewards(run: Run) -> np.ndarray:
    """Read the raw rewards (steps, B, G, K) of a finished run, K in the order of the specification.

    Raise RecordError if the file or an array is missing, or names, number of steps or shape are not those of the run.
    """
    path = run.directory / "rewards.npz"
    if not path.is_file():
        raise RecordError(f"{path}: the file does not exist")
    with np.load(path, allow_pickle=False) as arrays:
        if not {"rewards", "names"} <= set(arrays.files):
            raise RecordError(f"{path}: needs the arrays rewards and names (has: {', '.join(arrays.files)})")
        rewards, names = np.asarray(arrays["rewards"], dtype=np.float64), tuple(map(str, arrays["names"]))
    if names != run.spec.rewards:
        expected = ", ".join(run.spec.rewards)
        raise RecordError(f"{path}: names are {', '.join(names)}; the run has the rewards {expected}")
    shape = (run.steps, run.spec.prompts_per_step, run.spec.group_size, len(names))
    if rewards.shape != shape:
        raise RecordError(f"{path}: rewards has shape {rewards.shape}; it must be (steps, B, G, K) = {shape}")
    return rewards


def read_json(path: Path) -> Any:
    """Read a JSON file. Raise RecordError if it is missing or damaged."""
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise RecordError(f"{path}: not JSON: {error.msg} in line {error.lineno}") from None


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise RecordError(f"{path}: the file does not exist") from None
