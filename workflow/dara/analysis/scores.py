"""Scores of checkpoints with their bootstrap intervals over questions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dara.analysis.frames import rows_to_frame
from dara.analysis.intervals import Interval, bootstrap_intervals
from dara.analysis.records import RecordError, Run, read_json
from dara.evaluation.records import Metric
from dara.evaluation.score import check_scorers, identity_path, read_scores, scores_path, summarise
from dara.runs import base_id

BASE = "base"
"""The method of a base model, which is scored once, at step 0."""

DECIMALS = 12
"""Scores are rounded to this: sums of weights give 1.0000000000000002, and an interval that misses its own value by
as much breaks an error bar."""


def checkpoint_scores_frame(
    runs: Collection[Run], score_dirs: Mapping[str, Path], benchmarks: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """The frame checkpoint_scores: one row a checkpoint, benchmark and metric, base models (step 0) included.

    Args:
        runs: the planned runs; a missing one has no rows.
        score_dirs: for each run id and base id, the directory of its scores.
        benchmarks: for each task, the names of its benchmarks.

    Raises:
        RecordError: a run or base model without a directory; responses of one benchmark that were made with unlike
            settings, or on other questions.
        ValueError: a score file that is missing or damaged.
    """
    scored = _scored(runs)
    for name in scored:
        if name not in score_dirs:
            raise RecordError(f"{name}: the directory of its scores is not given")
    rows = []
    for benchmark in sorted({name for names in benchmarks.values() for name in names}):
        of_benchmark = {name: one for name, one in scored.items() if benchmark in benchmarks.get(one[0]["task"], ())}
        _check_identities({name: Path(score_dirs[name]) for name in of_benchmark}, benchmark)
        check_scorers({name: Path(score_dirs[name]) for name, (_, steps) in of_benchmark.items() if steps}, benchmark)
        for name, (identity, steps) in of_benchmark.items():
            for step in steps:
                frame = read_scores(scores_path(Path(score_dirs[name]), step, benchmark), benchmark)
                rows += [
                    identity | {"step": step, "benchmark": benchmark} | row
                    for row in score_rows(summarise(frame, benchmark), (name, str(step), benchmark))
                ]
    return rows_to_frame(rows, "checkpoint_scores")


def _scored(runs: Collection[Run]) -> dict[str, tuple[dict[str, Any], tuple[int, ...]]]:
    """Everything that has scores: id -> (the columns that name it, its steps)."""
    scored = {}
    for run in runs:
        base = {"run_id": base_id(run.spec.model), "method": BASE, "group_size": None, "seed": None}
        scored[base["run_id"]] = (run.identity | base, (0,))
        if run.outcome:
            scored[run.run_id] = (run.identity, run.checkpoints)
    return scored


def score_rows(metrics: Mapping[str, Metric], key: tuple[str, ...]) -> list[dict[str, Any]]:
    """Metric, value, low, high and n_questions of each metric of a checkpoint.

    Metrics over the same questions share their resamples, which `key` and the categories decide: so no metric's
    interval depends on which others are computed.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, metric in metrics.items():
        alike.setdefault(tuple(metric.strata), []).append(name)
    rows = []
    for strata, names in alike.items():
        categories, groups = np.unique(np.array(strata, dtype=str), return_inverse=True)
        values = np.stack([metrics[name].values for name in names], axis=1)
        weights = np.stack([metrics[name].weights for name in names], axis=1)
        intervals = bootstrap_intervals(values, weights, groups, key=("checkpoint_scores", *key, *map(str, categories)))
        rows += [_row(name, metrics[name], interval) for name, interval in zip(names, intervals, strict=True)]
    return rows


def _row(name: str, metric: Metric, interval: Interval | None) -> dict[str, Any]:
    return {
        "metric": name,
        "value": round(metric.score, DECIMALS),
        "low": round(interval.low, DECIMALS) if interval else None,
        "high": round(interval.high, DECIMALS) if interval else None,
        "n_questions": len(metric.values),
    }


def _check_identities(directories: Mapping[str, Path], benchmark: str) -> None:
    """Responses of a benchmark must come from the same cases, sampler, versions, decoding and seed."""
    first: tuple[str, dict[str, Any]] | None = None
    for name, directory in sorted(directories.items()):
        path = identity_path(directory, benchmark)
        identity = {key: value for key, value in read_json(path).items() if key != "checkpoints"}
        if first is None:
            first = (name, identity)
        unlike = sorted(key for key in {*first[1], *identity} if first[1].get(key) != identity.get(key))
        if unlike:
            raise RecordError(
                f"{path}: {name} was evaluated with another {', '.join(unlike)} than {first[0]}; scores are compared "
                "only when they were made alike, so evaluate one of them again"
            )
