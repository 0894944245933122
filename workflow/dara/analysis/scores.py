"""Scores of checkpoints with their bootstrap intervals over questions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dara.analysis.frames import rows_to_frame
from dara.analysis.intervals import Interval, bootstrap_intervals
from dara.analysis.names import BASE
from dara.analysis.records import RecordError, Run
from dara.analysis.score_files import Evaluations, Scored, ScoreDirectories, check_identities
from dara.evaluation.grading import check_scorers, check_version, read_scores, summarise
from dara.evaluation.records import Metric
from dara.runs import base_id

DECIMALS = 12
"""Digits to which scores are rounded: sums of weights give 1.0000000000000002.

An interval that misses its own value by as much breaks an error bar.
"""


def checkpoint_scores_frame(
    runs: Collection[Run], score_dirs: ScoreDirectories, evaluations: Evaluations
) -> pd.DataFrame:
    """Return the frame checkpoint_scores: a row an evaluated checkpoint (base model: step 0), benchmark and metric.

    Args:
        runs: the planned runs; a missing one has no rows.
        score_dirs: for each run id and base id, the directories of its evaluations, by benchmark.
        evaluations: for each run id and base id, the steps at which it was evaluated, by benchmark.

    Raises:
        RecordError: a run or base model without a directory; responses of one benchmark that were made with unlike
            settings, on other questions, or by other checkpoints than the run's manifest names; a score file that is
            not the one that was written.
        ValueError: a score file that is missing or damaged.
    """
    rows = []
    for benchmark in sorted({name for asked in evaluations.values() for name in asked}):
        mine = _scored(
            runs,
            {name: found[benchmark] for name, found in score_dirs.items() if benchmark in found},
            {name: asked.get(benchmark, ()) for name, asked in evaluations.items()},
        )
        check_identities(mine)
        check_scorers({one.name: one.directory for one in mine if one.steps})
        for one in mine:
            if one.steps:
                check_version(one.directory, benchmark)
            for step in one.steps:
                frame = read_scores(one.directory, benchmark, step)
                rows += [
                    one.columns | {"step": step, "benchmark": benchmark} | row
                    for row in score_rows(summarise(frame, benchmark), (one.name, str(step), benchmark))
                ]
    return rows_to_frame(rows, "checkpoint_scores")


def _scored(runs: Collection[Run], score_dirs: Mapping[str, Path], asked: Mapping[str, Sequence[int]]) -> list[Scored]:
    """Return every run and base model with scores of a benchmark; `asked`: its steps, by run id and base id."""
    scored = {}
    for run in runs:
        base = base_id(run.spec.model)
        columns = run.identity | {"run_id": base, "method": BASE, "group_size": None, "seed": None}
        scored[base] = (columns, (0,), None)
        if run.outcome:
            scored[run.run_id] = (run.identity, run.checkpoints, run.sums)
    scored = {name: found for name, found in scored.items() if asked[name]}
    for name in scored:
        if name not in score_dirs:
            raise RecordError(f"{name}: the directory of its scores is not given")
    return [
        Scored(name, columns, Path(score_dirs[name]), tuple(step for step in steps if step in asked[name]), sums)
        for name, (columns, steps, sums) in scored.items()
    ]


def score_rows(metrics: Mapping[str, Metric], key: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return metric, value, low, high and n_questions of each metric of a checkpoint.

    Metrics over the same questions share their resamples, which depend on `key` and the categories only, so a metric's
    interval does not depend on which others are computed.
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
