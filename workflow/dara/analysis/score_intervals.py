"""Scores at the end of training with their uncertainty over seeds, and over seeds and questions together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dara.analysis.frames import rows_to_frame
from dara.analysis.hierarchical import hierarchical_interval, metric_differences
from dara.analysis.intervals import t_interval
from dara.analysis.records import Run
from dara.analysis.scores import DECIMALS
from dara.evaluation.records import Metric
from dara.evaluation.score import read_scores, scores_path, summarise

METRICS = {
    "tool_calling": ("average_accuracy", "average_format"),
    "math": ("acc", "exceed", "joint", "strict", "math_verify"),
}
"""The scores of each task that are compared at the end."""

BASELINES = {"static_asym": "dara_asym", "static_sym": "dara_sym"}
"""What a method of fixed weights is to be set against: the difference is adaptive minus fixed."""

BASELINE = "gdpo"
"""What every other method is set against, where an experiment has it."""

Seeds = dict[tuple[int, int], dict[str, Metric]]
"""The metrics of each run of a method, by (seed, repeat)."""


@dataclass(frozen=True)
class Setting:
    """The completed runs of one model and group size in an experiment, at the last step that all of them have."""

    experiment: str
    task: str
    model: str
    group_size: int
    step: int
    benchmark: str
    runs: dict[str, Seeds]  # by method


def score_intervals_frame(
    runs: Mapping[str, Run],
    score_dirs: Mapping[str, Path],
    experiments: Mapping[str, Sequence[str]],
    benchmarks: Mapping[str, Sequence[str]],
) -> pd.DataFrame:
    """The frame score_intervals: a row an experiment, setting, metric and method, or difference of two methods.

    All of a setting's rows are at the last step that its completed runs share. Intervals are keyed by what they are of,
    not by the experiment, so that two experiments that share runs show the same interval of them.

    Args:
        runs: every planned run; missing and diverged ones are in no row.
        score_dirs: for each run id, the directory of its scores.
        experiments: for each experiment, the run ids of its matrix.
        benchmarks: for each task, the names of its benchmarks.

    Raises:
        ValueError: a score file that is missing or damaged, or runs of one benchmark with unlike questions.
    """
    rows = [
        row
        for experiment, names in experiments.items()
        for setting in _settings(experiment, [runs[name] for name in names], score_dirs, benchmarks)
        for row in _rows(setting)
    ]
    return rows_to_frame(rows, "score_intervals")


def _settings(
    experiment: str, runs: Iterable[Run], score_dirs: Mapping[str, Path], benchmarks: Mapping[str, Sequence[str]]
) -> Iterable[Setting]:
    by_place: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        if run.outcome == "completed":
            by_place.setdefault((run.spec.task, run.spec.model.name, run.spec.group_size), []).append(run)
    for (task, model, size), found in by_place.items():
        common = set.intersection(*(set(run.checkpoints) for run in found))
        for benchmark in benchmarks.get(task, ()) if common else ():
            scored: dict[str, Seeds] = {}
            for run in found:
                frame = read_scores(scores_path(Path(score_dirs[run.run_id]), max(common), benchmark), benchmark)
                key = (run.spec.seed, run.spec.repeat)
                scored.setdefault(run.spec.method.name, {})[key] = summarise(frame, benchmark)
            yield Setting(experiment, task, model, size, max(common), benchmark, scored)


def _rows(setting: Setting) -> Iterable[dict[str, Any]]:
    for metric in METRICS[setting.task]:
        by_method = {
            method: {seed: metrics[metric] for seed, metrics in seeds.items() if metric in metrics}
            for method, seeds in setting.runs.items()
        }
        for method, seeds in by_method.items():
            if seeds:
                yield _row(setting, metric, method, "", seeds)
        for method, baseline in differences(by_method):
            if paired := metric_differences(by_method[method], by_method[baseline]):
                yield _row(setting, metric, method, baseline, paired)


def differences(methods: Iterable[str]) -> list[tuple[str, str]]:
    """The pairs (method, what it is set against) among `methods`, which are compared in an experiment."""
    methods = list(methods)
    pairs = [(method, BASELINE) for method in methods if BASELINE in methods and method != BASELINE]
    return pairs + [(adaptive, fixed) for fixed, adaptive in BASELINES.items() if {fixed, adaptive} <= set(methods)]


def _row(setting: Setting, metric: str, method: str, baseline: str, seeds: Mapping[Any, Metric]) -> dict[str, Any]:
    scores = [seeds[seed].score for seed in sorted(seeds)]
    over_seeds = t_interval(scores)
    place = (setting.task, setting.benchmark, setting.model, f"G={setting.group_size}", f"step {setting.step}")
    key = ("score_intervals", *place, metric, f"{method}-{baseline}" if baseline else method)
    both = hierarchical_interval(seeds, key=key, shared=True)
    values = {"value": math.fsum(scores) / len(scores)}
    for prefix, interval in (("t_", over_seeds), ("", both)):
        values |= {f"{prefix}low": interval.low, f"{prefix}high": interval.high} if interval else {}
    return {
        "experiment": setting.experiment,
        "model": setting.model,
        "group_size": setting.group_size,
        "step": setting.step,
        "benchmark": setting.benchmark,
        "metric": metric,
        "method": method,
        "baseline": baseline,
        **{name: round(value, DECIMALS) for name, value in values.items()},
        "n_seeds": len(scores),
        "n_questions": len(next(iter(seeds.values())).values),
    }
