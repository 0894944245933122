"""Where the runs of a report come from, and a few of their responses to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dara.files import gunzip, sha256
from dara.plan import WorkflowPlan
from dara.store import spec_sha256

RESPONSES = 3
"""Responses shown of each of the two checkpoints of a run."""


@dataclass(frozen=True)
class Responses:
    """Responses that a run kept at a step: prompt, reference, response, n_tokens, rewards by name, advantage."""

    step: int
    rows: list[dict[str, Any]]


@dataclass
class Run:
    """A planned run. `facts` are what its manifest says, as label and text; `checkpoints` have file, checksum, steps.

    outcome: completed, diverged or missing; missing: what is not there, in words.
    """

    id: str
    title: str
    experiments: tuple[str, ...]
    outcome: str
    origin: str
    steps: int
    directory: str
    spec: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    checkpoints: list[tuple[str, str, str]] = field(default_factory=list)
    responses: list[Responses] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def runs_of(flow: WorkflowPlan, frame: pd.DataFrame) -> list[Run]:
    """Every planned run, in the order of the plan; `frame` is the frame runs."""
    rows = frame.drop_duplicates("run_id").set_index("run_id")
    return [_run(flow, name, rows.loc[name] if name in rows.index else None) for name in flow.matrix.runs]


def _run(flow: WorkflowPlan, name: str, row: pd.Series | None) -> Run:
    spec, directory = flow.matrix.runs[name], flow.run_directory(name)
    label = flow.configuration.methods[spec.method.name].label
    repeat = f", repeat {spec.repeat}" if spec.repeat else ""
    run = Run(
        id=name,
        title=f"{label}, {spec.model.name}, G = {spec.group_size}, seed {spec.seed}{repeat}",
        experiments=tuple(experiment for experiment, runs in flow.matrix.experiments.items() if name in runs),
        outcome="missing" if row is None else str(row["outcome"]),
        origin="missing" if row is None else str(row["origin"]),
        steps=0 if row is None else int(row["steps"]),
        directory=directory.as_posix(),
        spec=_json(spec.model_dump(mode="json")),
        responses=_responses(directory / "samples.jsonl.gz"),
    )
    if not run.responses:
        run.missing.append(f"no responses: {directory.as_posix()}/samples.jsonl.gz is not there, or is empty")
    path = directory / "manifest.json"
    if path.is_file():
        _add_manifest(run, _read(path), sha256(path), spec_sha256(spec))
    else:
        run.missing.append(f"no manifest: {path.as_posix()} is not there; the run is not finished")
    return run


def _add_manifest(run: Run, manifest: Mapping[str, Any], checksum: str, identity: str) -> None:
    """Add what the manifest says to a run."""
    made = str(manifest.get("spec_sha256", "not recorded"))
    if made != identity:
        run.missing.append(f"its files were made from another specification ({made[:8]}, planned: {identity[:8]})")
    run.facts = [
        ("Checksum of the specification", made),
        ("Seeds", _listed(manifest.get("seeds"))),
        ("Versions", _listed(manifest.get("versions"))),
        ("Commit", str(manifest.get("git_commit") or manifest.get("git_error") or "not recorded")),
        ("Machine", _listed(manifest.get("machine"))),
        ("Checksum of manifest.json", checksum),
    ]
    run.inputs = [(str(name), str(value)) for name, value in manifest.get("inputs", {}).items()]
    steps: dict[tuple[str, str], list[str]] = {}
    for step, checkpoint in manifest.get("checkpoints", {}).items():
        for file, value in checkpoint["sha256"].items():
            steps.setdefault((file, value), []).append(step)
    run.checkpoints = [(file, value, ", ".join(found)) for (file, value), found in sorted(steps.items())]


def _responses(path: Path) -> list[Responses]:
    """The first responses of the first and of the last step that kept some; empty without the file."""
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(gunzip(path).decode("utf-8").split("\n"), start=1):
        if line:
            rows.append(_row(line, f"{path}: line {number}"))
    steps = sorted({row["step"] for row in rows})
    ends = steps if len(steps) < 3 else [steps[0], steps[-1]]
    return [Responses(step, [row for row in rows if row["step"] == step][:RESPONSES]) for step in ends]


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON ({error.msg})") from None
    absent = [name for name in ("step", "prompt", "reference", "response", "n_tokens", "rewards") if name not in row]
    if absent:
        raise ValueError(f"{where} has no {absent[0]!r}; a response has step, prompt, reference, response and rewards")
    return row


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON (line {error.lineno}: {error.msg}); delete it to make it again") from None


def _listed(values: Mapping[str, Any] | None) -> str:
    """`python 3.11.7, torch 2.13.0`."""
    return ", ".join(f"{name} {value}" for name, value in values.items()) if values else "not recorded"


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
