"""Results kept in git: finished runs and their scores, small enough to commit, found by their identity.

A run has `spec.json`, `manifest.json`, `metrics.jsonl.gz`, `rewards.npz`, `samples.jsonl.gz` and `timings.json`, and a
directory for each evaluation (`dara.evaluation.records`). Text is gzipped; checkpoints are not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from dara.evaluation.records import CACHED_RESPONSES, SCORE_TABLE, SCORES, collected_responses, covers
from dara.files import gzipped, read_json
from dara.runs import Evaluation, evaluation_id
from dara.specs import Benchmark, RunSpec
from dara.store import assembled, saved_steps, spec_sha256

log = logging.getLogger(__name__)


def store(run: Path | None, evaluations: Sequence[Path], cached: Path) -> None:
    """Keep a finished run (None: a base model) and its scores in `cached`, atomically.

    Args:
        run: directory of the published files of the run.
        evaluations: directories of the evaluations.
        cached: `results/cached/<run_id>`; an older copy is replaced.
    """
    with assembled(cached) as staging:
        for path in sorted(run.iterdir()) if run is not None else ():
            if path.is_file() and not path.name.startswith("."):
                text = path.suffix in (".jsonl", ".csv")
                name = f"{path.name}.gz" if text else path.name
                (staging / name).write_bytes(gzipped(path.read_bytes()) if text else path.read_bytes())
        for directory in evaluations:
            kept = staging / directory.name
            kept.mkdir()
            for name in (SCORES, SCORE_TABLE):
                (kept / name).write_bytes((directory / name).read_bytes())
            (kept / CACHED_RESPONSES).write_bytes(collected_responses(directory))


def holds_run(cached: Path, spec: RunSpec, evaluation: Evaluation) -> bool:
    """Return whether `cached` is complete, of this identity, and scored as `evaluation` asks; log a mismatch."""
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
    saved = {*saved_steps(cached / "manifest.json")}  # a diverged run has fewer steps than planned
    return holds_scores(cached, {one: sorted(saved & {*steps}) for one, steps in evaluation.items()})


def holds_scores(cached: Path, evaluation: Mapping[Benchmark, Sequence[int]]) -> bool:
    """Return whether `cached` has the scores that `evaluation` asks for, at these steps; log a mismatch."""
    if not cached.is_dir():
        return False
    for settings, steps in evaluation.items():
        directory = cached / evaluation_id(settings)
        if (cached / "scores").is_dir():
            log.warning("%s is ignored: an older version wrote it; run the preset again with it, or delete it", cached)
            return False
        scorer = read_json(directory / SCORES)["scorer"] if (directory / SCORES).is_file() else None
        wanted = {"length_limit": settings.length_limit, "seconds": settings.seconds_per_case}
        if scorer is None or any(scorer.get(key, value) != value for key, value in wanted.items()):
            log.warning("%s is ignored: its scores were made with other settings of %s", cached, settings.name)
            return False
        if not covers(directory, steps):
            log.warning("%s is ignored: it has no scores of %s at each of %s", cached, settings.name, list(steps))
            return False
    return True
