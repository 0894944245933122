"""Integrity checks of score files: equal settings, and matching checkpoint checksums."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dara.analysis.records import RecordError, read_json
from dara.evaluation.records import SCORES

Sums = Mapping[int, Mapping[str, str]]
"""Step -> file of its checkpoint -> sha256."""
Evaluations = Mapping[str, Mapping[str, Sequence[int]]]
"""Run id or base id -> benchmark -> its evaluated steps (a diverged run may lack some of them)."""
ScoreDirectories = Mapping[str, Mapping[str, Path]]
"""Run id or base id -> benchmark -> the directory of the evaluation."""


@dataclass(frozen=True)
class Scored:
    """A run or a base model with scores of a benchmark.

    columns: its identity columns in a frame; directory: of the evaluation; steps: those whose scores are read; sums: of
    its checkpoints, as in its manifest (None: a base model's manifest is not among the results that are kept).
    """

    name: str
    columns: dict[str, Any]
    directory: Path
    steps: tuple[int, ...]
    sums: Sums | None


def check_identities(scored: Collection[Scored]) -> None:
    """Raise RecordError unless the scores of a benchmark belong in one table.

    Their responses must come from the same cases, sampler, versions, decoding and seed, and from the checkpoints of the
    run or base model.
    """
    first: tuple[str, dict[str, Any]] | None = None
    for one in sorted(scored, key=lambda one: one.name):
        path = one.directory / SCORES
        identity = read_json(path)["responses"]
        _check_checkpoints(identity.pop("checkpoints", {}), one, path)
        other, expected = first = first or (one.name, identity)
        unlike = sorted(key for key in {*expected, *identity} if expected.get(key) != identity.get(key))
        if unlike:
            raise RecordError(
                f"{path}: {one.name} was evaluated with another {', '.join(unlike)} than {other}; scores are compared "
                "only when they were made alike, so evaluate one of them again"
            )


def _check_checkpoints(evaluated: Mapping[str, Mapping[str, str]], one: Scored, path: Path) -> None:
    """Raise RecordError unless the responses come from the run's checkpoints.

    A file that only one of the two records lists is not compared, but the weights must be in both.
    """
    there = sorted(map(int, evaluated))
    if not {*one.steps} <= {*there}:
        found, due = (", ".join(map(str, steps)) or "none" for steps in (there, one.steps))
        raise RecordError(
            f"{path}: {one.name} was evaluated at the steps {found}, but is to be at {due}; evaluate it again"
        )
    for step in one.steps if one.sums is not None else ():
        _check_files(evaluated[str(step)], one.sums[step], f"{path}: step {step} of {one.name}")


def _check_files(evaluated: Mapping[str, str], sums: Mapping[str, str], where: str) -> None:
    weights = {file for file in evaluated if file.endswith(".safetensors")}
    if not weights:
        raise RecordError(f"{where}: no checksum of its weights (*.safetensors); evaluate it again")
    for file in sorted(weights | (evaluated.keys() & sums.keys())):
        if sums.get(file) != evaluated[file]:
            raise RecordError(
                f"{where}: evaluated with a {file} of sha256 {evaluated[file]}, but the run's manifest.json has "
                f"{sums.get(file, 'no such file')}; it is another checkpoint, so evaluate it again"
            )
