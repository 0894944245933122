"""Results that are kept in git: finished runs with their scores, small enough to commit, found by their identity.

Text is gzipped (`dara.files.read_text` reads both forms); checkpoints are not kept. `<benchmark>.benchmark.json` says
how its scores were made, so that other settings of the evaluation do not take them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from dara.config import Benchmark, RunSpec
from dara.evaluation.scorers import covers
from dara.files import gzipped, write_atomically
from dara.manifests import saved_steps
from dara.runs import Evaluation
from dara.store import canonical_json, spec_sha256

log = logging.getLogger(__name__)

GZIPPED = (".jsonl", ".csv")


def store(run: Path | None, scores: Path, benchmarks: Sequence[Benchmark], cached: Path) -> None:
    """Keep a finished run (none for a base model) and its scores in `cached`, which appears complete or not at all.

    Args:
        run: directory of the published files of the run.
        scores: directory of its responses and scores.
        benchmarks: the settings that the scores were made with.
        cached: `results/cached/<run_id>`; an older copy is replaced.
    """
    staging = cached.with_name(f".{cached.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    if run is not None:
        _copy(run, staging)
    _copy(scores, staging / "scores")
    for benchmark in benchmarks:
        write_atomically(staging / _settings_file(benchmark), canonical_json(benchmark) + "\n")
    shutil.rmtree(cached, ignore_errors=True)
    staging.replace(cached)


def holds_run(cached: Path, spec: RunSpec, evaluation: Evaluation) -> bool:
    """Whether `cached` is complete, of this identity, and scored as `evaluation` says; a misfit is logged."""
    if not cached.is_dir():
        return False
    try:
        made = RunSpec.model_validate_json((cached / "spec.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        log.warning("%s is ignored: its spec.json is not the specification of a run", cached)
        return False
    if spec_sha256(made) != spec_sha256(spec) or not (cached / "manifest.json").is_file():
        log.warning("%s is ignored: it is incomplete, or its specification is another", cached)
        return False
    made = saved_steps(cached / "manifest.json")  # of a diverged run less than planned
    return holds_scores(cached, {one: [step for step in steps if step in made] for one, steps in evaluation.items()})


def holds_scores(cached: Path, evaluation: Mapping[Benchmark, Sequence[int]]) -> bool:
    """Whether `cached` has scores that were made as `evaluation` says, of these steps; a misfit is logged."""
    if not cached.is_dir():
        return False
    for benchmark, steps in evaluation.items():
        if not _scored_as(cached / _settings_file(benchmark), benchmark):
            log.warning("%s is ignored: its scores were made with other settings of %s", cached, benchmark.name)
            return False
        if not covers(cached / "scores", benchmark.name, steps):
            log.warning("%s is ignored: it has no scores of %s at each of %s", cached, benchmark.name, list(steps))
            return False
    return True


def _settings_file(benchmark: Benchmark) -> str:
    return f"{benchmark.name}.benchmark.json"


def _scored_as(path: Path, benchmark: Benchmark) -> bool:
    """Whether the settings in `path` are these; a key that it lacks has its default, as in identities."""
    try:
        return Benchmark.model_validate_json(path.read_text(encoding="utf-8")) == benchmark
    except (FileNotFoundError, ValidationError):
        return False


def _copy(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if (
            path.is_dir()
            or path.suffix == ".done"
            or any(part.startswith(".") for part in path.relative_to(source).parts)
        ):
            continue
        copy = target / path.relative_to(source)
        if path.suffix in GZIPPED:
            write_atomically(copy.with_name(f"{copy.name}.gz"), gzipped(path.read_bytes()))
        else:
            write_atomically(copy, path.read_bytes())
