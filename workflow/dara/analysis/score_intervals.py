"""Held-out scores, and their differences, with intervals over seeds and over seeds and questions together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dara.analysis.compare import compared_pairs, nearest_step
from dara.analysis.frames import rows_to_frame
from dara.analysis.hierarchical import hierarchical_interval, metric_differences
from dara.analysis.intervals import t_interval
from dara.analysis.names import SCORES
from dara.analysis.records import Run
from dara.analysis.score_files import Evaluations, ScoreDirectories
from dara.analysis.scores import DECIMALS
from dara.analysis.view import Setting
from dara.evaluation.grading import read_scores, summarise
from dara.evaluation.records import Metric
from dara.registries import definition

Seeds = dict[tuple[int, int], dict[str, Metric]]
"""The metrics of each run of a method, by (seed, repeat)."""


@dataclass(frozen=True)
class Group:
    """The completed runs of one setting in an experiment, at a step at which all of them were evaluated."""

    experiment: str
    task: str
    setting: Setting
    step: int
    benchmark: str
    runs: dict[str, Seeds]  # by method


def score_intervals_frame(
    runs: Mapping[str, Run],
    score_dirs: ScoreDirectories,
    experiments: Mapping[str, Sequence[str]],
    evaluations: Evaluations,
    score_steps: Mapping[str, Sequence[int]],
) -> pd.DataFrame:
    """Return the frame score_intervals: one row per score of a method, or per difference of two methods.

    A row belongs to an experiment, setting, step and metric. The steps are those of `score_steps` (`nearest_step`) and
    the last one at which all completed runs of a setting were evaluated. A setting is a model, group size and engine:
    runs of two engines are never pooled. The key of the resamples names the quantity, not the experiment, so that two
    experiments that share runs show the same interval; the key does not include the engine, so two engines have the
    same draws of seeds and questions.

    Args:
        runs: every planned run; missing and diverged ones are in no row.
        score_dirs: for each run id, the directories of its evaluations, by benchmark.
        experiments: for each experiment, the run ids of its matrix.
        evaluations: for each run id, the steps at which it was evaluated, by benchmark.
        score_steps: for each experiment, the authors' steps at which its scores are compared.

    Raises:
        ValueError: a score file that is missing or damaged, runs of one benchmark with unlike questions, or two runs of
            a method, setting, seed and repeat.
    """
    rows = [
        row
        for experiment, names in experiments.items()
        for group in _groups(
            experiment, [runs[name] for name in names], score_dirs, evaluations, score_steps.get(experiment, ())
        )
        for row in _rows(group)
    ]
    return rows_to_frame(rows, "score_intervals")


def _groups(
    experiment: str,
    runs: Iterable[Run],
    score_dirs: ScoreDirectories,
    evaluations: Evaluations,
    score_steps: Sequence[int],
) -> Iterable[Group]:
    by_place: dict[tuple[str, Setting, str], list[Run]] = {}
    for run in runs:
        setting = Setting(run.spec.model.name, run.spec.group_size, run.spec.engine)
        for benchmark in evaluations[run.run_id] if run.outcome == "completed" else ():
            if definition(benchmark).kind != "validation":
                by_place.setdefault((run.spec.task, setting, benchmark), []).append(run)
    for (task, setting, benchmark), found in by_place.items():
        ours = _by_method(experiment, found)
        common = set.intersection(*(set(evaluations[run.run_id][benchmark]) for run in found))
        for step in _steps(common, score_steps, found[0].spec.steps):
            scored = {
                method: {key: _metrics(run, score_dirs, step, benchmark) for key, run in seeds.items()}
                for method, seeds in ours.items()
            }
            yield Group(experiment, task, setting, step, benchmark, scored)


def _steps(common: Collection[int], wanted: Sequence[int], budget: int) -> list[int]:
    return sorted({max(common), *(nearest_step(common, at, budget) for at in wanted)}) if common else []


def _metrics(run: Run, score_dirs: ScoreDirectories, step: int, benchmark: str) -> dict[str, Metric]:
    return summarise(read_scores(score_dirs[run.run_id][benchmark], benchmark, step), benchmark)


def _by_method(experiment: str, runs: Iterable[Run]) -> dict[str, dict[tuple[int, int], Run]]:
    """Return the runs of one setting by method, and by (seed, repeat)."""
    found: dict[str, dict[tuple[int, int], Run]] = {}
    for run in runs:
        seeds, key = found.setdefault(run.spec.method.name, {}), (run.spec.seed, run.spec.repeat)
        if key in seeds:
            raise ValueError(
                f"experiment {experiment}: {seeds[key].run_id} and {run.run_id} are two runs of one method, model, "
                "group size, engine, seed and repeat; what else they differ in needs an experiment of its own"
            )
        seeds[key] = run
    return found


def _rows(group: Group) -> Iterable[dict[str, Any]]:
    for metric in SCORES[group.task]:
        by_method = {
            method: {seed: metrics[metric] for seed, metrics in seeds.items() if metric in metrics}
            for method, seeds in group.runs.items()
        }
        for method, seeds in by_method.items():
            if seeds:
                yield _row(group, metric, method, "", seeds)
        for method, baseline in compared_pairs(by_method):
            if paired := metric_differences(by_method[method], by_method[baseline]):
                yield _row(group, metric, method, baseline, paired)


def _row(group: Group, metric: str, method: str, baseline: str, seeds: Mapping[Any, Metric]) -> dict[str, Any]:
    scores = [seeds[seed].score for seed in sorted(seeds)]
    over_seeds = t_interval(scores)
    setting = group.setting
    place = (group.task, group.benchmark, setting.model, f"G={setting.group_size}", f"step {group.step}")
    key = ("score_intervals", *place, metric, f"{method}-{baseline}" if baseline else method)
    both = hierarchical_interval(seeds, key=key)
    values = {"value": math.fsum(scores) / len(scores)}
    for prefix, interval in (("t_", over_seeds), ("", both)):
        values |= {f"{prefix}low": interval.low, f"{prefix}high": interval.high} if interval else {}
    return {
        "experiment": group.experiment,
        **setting._asdict(),
        "step": group.step,
        "benchmark": group.benchmark,
        "metric": metric,
        "method": method,
        "baseline": baseline,
        **{name: round(value, DECIMALS) for name, value in values.items()},
        "n_seeds": len(scores),
        "n_questions": len(next(iter(seeds.values())).values),
    }
