"""The files of scores, and whether they are what they seem to be: made alike, of these checkpoints, and unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dara.analysis.records import RecordError, read_json
from dara.evaluation.score import identity_path, read_scores, scores_path
from dara.files import gunzip

Sums = Mapping[int, Mapping[str, str]]
"""Step -> file of its checkpoint -> sha256."""
Evaluations = Mapping[str, Mapping[str, Sequence[int]]]
"""Run id or base id -> benchmark -> the steps at which it was evaluated (a diverged run may lack some of them)."""


@dataclass(frozen=True)
class Scored:
    """What has scores: a run or a base model.

    columns: what names it in a frame; directory: of its scores; steps: those whose scores are read; sums: of its
    checkpoints, as its manifest has them (None: a base model's manifest is not among the results that are kept).
    """

    name: str
    columns: dict[str, Any]
    directory: Path
    steps: tuple[int, ...]
    sums: Sums | None


def check_identities(scored: Collection[Scored], benchmark: str) -> None:
    """Responses of a benchmark must come from the same cases, sampler, versions, decoding and seed, and each from the
    checkpoints that it is said to be of."""
    first: tuple[str, dict[str, Any]] | None = None
    for one in sorted(scored, key=lambda one: one.name):
        path = identity_path(one.directory, benchmark)
        identity = read_json(path)
        _check_checkpoints(identity.pop("checkpoints", {}), one, path)
        other, expected = first = first or (one.name, identity)
        unlike = sorted(key for key in {*expected, *identity} if expected.get(key) != identity.get(key))
        if unlike:
            raise RecordError(
                f"{path}: {one.name} was evaluated with another {', '.join(unlike)} than {other}; scores are compared "
                "only when they were made alike, so evaluate one of them again"
            )


def _check_checkpoints(evaluated: Mapping[str, Mapping[str, str]], one: Scored, path: Path) -> None:
    """The responses must be of the run's checkpoints. A file that only one of the two sides lists is not compared,
    but the weights must be among those that are."""
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


def listed_scores(one: Scored, benchmark: str) -> dict[str, str]:
    """Score file -> sha256, as scoring wrote it down when it was done."""
    path = one.directory / f"{benchmark}.scored.json"
    listed = read_json(path)
    files = {scores_path(one.directory, step, benchmark).relative_to(one.directory).as_posix() for step in one.steps}
    if absent := sorted(files - set(listed)):
        raise RecordError(f"{path}: {one.name}: does not list the scores {', '.join(absent)}; score it again")
    return listed


def read_listed(one: Scored, step: int, benchmark: str, listed: Mapping[str, str]) -> pd.DataFrame:
    """The scores of a checkpoint, from a file that is still as it was written."""
    path = scores_path(one.directory, step, benchmark)
    frame = read_scores(path, benchmark)
    content = path.read_bytes() if path.is_file() else gunzip(path.with_name(f"{path.name}.gz"))
    if hashlib.sha256(content).hexdigest() != listed[path.relative_to(one.directory).as_posix()]:
        raise RecordError(
            f"{path}: {one.name}: not the file whose sha256 {benchmark}.scored.json lists; it was changed, so score "
            "it again"
        )
    return frame
