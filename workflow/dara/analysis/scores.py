"""Held-out scores of checkpoints and their differences, with intervals over questions, seeds, and both together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dara.analysis.compare import compared_pairs, nearest_step
from dara.analysis.frames import rows_to_frame
from dara.analysis.intervals import bootstrap_intervals, hierarchical_interval, metric_differences, t_interval
from dara.analysis.names import BASE
from dara.analysis.names import SCORES as COMPARED
from dara.analysis.records import RecordError, Run, read_json
from dara.analysis.view import Setting
from dara.evaluation.grading import check_scorers, check_version, read_scores, summarise
from dara.evaluation.records import SCORES, Metric
from dara.registries import definition
from dara.runs import base_id

DECIMALS = 12
"""Digits to which scores are rounded: sums of weights give 1.0000000000000002.

An interval that misses its own value by as much breaks an error bar.
"""

Evaluations = Mapping[str, Mapping[str, Sequence[int]]]
"""Run id or base id -> benchmark -> its evaluated steps (a diverged run may lack some of them)."""
ScoreDirectories = Mapping[str, Mapping[str, Path]]
"""Run id or base id -> benchmark -> the directory of the evaluation."""
Seeds = dict[tuple[int, int], dict[str, Metric]]
"""The metrics of each run of a method, by (seed, repeat)."""


@dataclass(frozen=True)
class Scored:
    """A run or a base model with scores of a benchmark.

    columns: its identity columns in a frame; directory: of the evaluation; steps: those whose scores are read; sums:
    for each checkpoint, file -> sha256, as in its manifest (None: that of a base model is not among the kept results).
    """

    name: str
    columns: dict[str, Any]
    directory: Path
    steps: tuple[int, ...]
    sums: Mapping[int, Mapping[str, str]] | None


# --- each checkpoint --------------------------------------------------------------------------------------------------


def checkpoint_scores_frame(
    runs: Collection[Run], score_dirs: ScoreDirectories, evaluations: Evaluations
) -> pd.DataFrame:
    """Return the frame checkpoint_scores: a row an evaluated checkpoint (base model: step 0), benchmark and metric.

    `runs` are the planned ones; a missing one has no rows.

    Raises:
        RecordError: a run or base model without a directory; responses of one benchmark that were made with unlike
            settings, on other questions, or by other checkpoints than the run's manifest names.
        ValueError: a score file that is missing, damaged, or not the one that was written.
    """
    rows = []
    for benchmark in sorted({name for asked in evaluations.values() for name in asked}):
        mine = _scored(runs, score_dirs, evaluations, benchmark)
        check_identities(mine)
        check_scorers({one.name: one.directory for one in mine if one.steps})
        for one in mine:
            if one.steps:
                check_version(one.directory, benchmark)
            for step in one.steps:
                metrics = summarise(read_scores(one.directory, benchmark, step), benchmark)
                place = one.columns | {"step": step, "benchmark": benchmark}
                rows += [place | row for row in score_rows(metrics, (one.name, str(step), benchmark))]
    return rows_to_frame(rows, "checkpoint_scores")


def _scored(
    runs: Collection[Run], score_dirs: ScoreDirectories, evaluations: Evaluations, benchmark: str
) -> list[Scored]:
    """Return every run and base model with scores of a benchmark."""
    found: dict[str, tuple[dict[str, Any], tuple[int, ...], Any]] = {}
    for run in runs:
        base = base_id(run.spec.model)
        found[base] = (run.identity | {"run_id": base, "method": BASE, "group_size": None, "seed": None}, (0,), None)
        if run.outcome:
            found[run.run_id] = (run.identity, tuple(sorted(run.sums)), run.sums)
    scored = []
    for name, (columns, steps, sums) in found.items():
        if asked := evaluations[name].get(benchmark):
            if benchmark not in score_dirs.get(name, {}):
                raise RecordError(f"{name}: the directory of its scores is not given")
            due = tuple(step for step in steps if step in asked)
            scored.append(Scored(name, columns, Path(score_dirs[name][benchmark]), due, sums))
    return scored


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
        where, mine, sums = f"{path}: step {step} of {one.name}", evaluated[str(step)], one.sums[step]
        weights = {file for file in mine if file.endswith(".safetensors")}
        if not weights:
            raise RecordError(f"{where}: no checksum of its weights (*.safetensors); evaluate it again")
        for file in sorted(weights | (mine.keys() & sums.keys())):
            if sums.get(file) != mine[file]:
                raise RecordError(
                    f"{where}: evaluated with a {file} of sha256 {mine[file]}, but the run's manifest.json has "
                    f"{sums.get(file, 'no such file')}; it is another checkpoint, so evaluate it again"
                )


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
        intervals = bootstrap_intervals(values, weights, groups, ("checkpoint_scores", *key, *map(str, categories)))
        for name, interval in zip(names, intervals, strict=True):
            low, high = (round(interval.low, DECIMALS), round(interval.high, DECIMALS)) if interval else (None, None)
            row = {"metric": name, "value": round(metrics[name].score, DECIMALS), "low": low, "high": high}
            rows.append(row | {"n_questions": len(strata)})
    return rows


# --- the runs of a method together ------------------------------------------------------------------------------------


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

    `runs` are all planned ones, of which missing and diverged ones are in no row; `experiments` has the run ids of each
    experiment, and `score_steps` the authors' steps at which its scores are compared.

    Raises:
        ValueError: a score file that is missing or damaged, runs of one benchmark with unlike questions, or two runs of
            a method, setting, seed and repeat.
    """
    rows: list[dict[str, Any]] = []
    for experiment, names in experiments.items():
        by_place: dict[tuple[str, Setting, str], list[Run]] = {}
        for run in (runs[name] for name in names if runs[name].outcome == "completed"):
            setting = Setting(run.spec.model.name, run.spec.group_size, run.spec.engine)
            for benchmark in evaluations[run.run_id]:
                if definition(benchmark).kind != "validation":
                    by_place.setdefault((run.spec.task, setting, benchmark), []).append(run)
        for (task, setting, benchmark), found in by_place.items():
            ours = _by_method(experiment, found)
            common = set.intersection(*(set(evaluations[run.run_id][benchmark]) for run in found))
            wanted = (nearest_step(common, at, found[0].spec.steps) for at in score_steps.get(experiment, ()))
            for step in sorted({max(common), *wanted}) if common else ():
                scored: dict[str, Seeds] = {}
                for method, seeds in ours.items():
                    tables = {
                        key: read_scores(score_dirs[name][benchmark], benchmark, step) for key, name in seeds.items()
                    }
                    scored[method] = {key: summarise(table, benchmark) for key, table in tables.items()}
                place = {"experiment": experiment, **setting._asdict(), "step": step, "benchmark": benchmark}
                rows += _interval_rows(place, task, scored)
    return rows_to_frame(rows, "score_intervals")


def _by_method(experiment: str, runs: Iterable[Run]) -> dict[str, dict[tuple[int, int], str]]:
    """Return the ids of the runs of one setting by method, and by (seed, repeat)."""
    found: dict[str, dict[tuple[int, int], str]] = {}
    for run in runs:
        seeds, key = found.setdefault(run.spec.method.name, {}), (run.spec.seed, run.spec.repeat)
        if key in seeds:
            raise ValueError(
                f"experiment {experiment}: {seeds[key]} and {run.run_id} are two runs of one method, model, "
                "group size, engine, seed and repeat; what else they differ in needs an experiment of its own"
            )
        seeds[key] = run.run_id
    return found


def _interval_rows(place: dict[str, Any], task: str, runs: Mapping[str, Seeds]) -> Iterable[dict[str, Any]]:
    """Yield a row for each score of a method at a place (setting, step, ...), and for each difference of two."""
    for metric in COMPARED[task]:
        compared: dict[tuple[str, str], dict[tuple[int, int], Metric]] = {}
        for method, seeds in runs.items():
            compared[method, ""] = {seed: metrics[metric] for seed, metrics in seeds.items() if metric in metrics}
        for method, baseline in compared_pairs(runs):
            compared[method, baseline] = metric_differences(compared[method, ""], compared[baseline, ""])
        for (method, baseline), seeds in compared.items():
            if seeds:
                yield _interval_row(place, task, metric, (method, baseline), seeds)


def _interval_row(
    place: dict[str, Any], task: str, metric: str, pair: tuple[str, str], seeds: Mapping[Any, Metric]
) -> dict[str, Any]:
    scores = [seeds[seed].score for seed in sorted(seeds)]
    setting = (place["model"], f"G={place['group_size']}", f"step {place['step']}")
    key = ("score_intervals", task, place["benchmark"], *setting, metric, "-".join(filter(None, pair)))
    values = {"value": math.fsum(scores) / len(scores)}
    for prefix, interval in (("t_", t_interval(scores)), ("", hierarchical_interval(seeds, key))):
        values |= {f"{prefix}low": interval.low, f"{prefix}high": interval.high} if interval else {}
    rounded = {name: round(value, DECIMALS) for name, value in values.items()}
    counts = {"n_seeds": len(scores), "n_questions": len(next(iter(seeds.values())).values)}
    return place | {"metric": metric, "method": pair[0], "baseline": pair[1]} | rounded | counts
