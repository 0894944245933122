"""Differences between two methods at one setting: the numbers behind tables of comparisons and the paper's claims.

A pair is two runs of one setting with the same seed and repeat (`view_runs.RUN`). All functions take a view, so that a
table, a figure and a verdict use the same runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dara.analysis.crossing import CrossingTimes, Kind, SpeedUp, speed_up, times_of
from dara.analysis.intervals import t_interval
from dara.analysis.names import BASELINE, DARA, FIXED, PAPER_METHODS
from dara.analysis.view import Setting, View
from dara.analysis.view_runs import RUN, RunsView

PUBLISHED_STEPS = 100
"""Length, in steps, of the authors' trainings for which they print scores."""

Level = tuple[str, float]
"""A training reward and its threshold, or a held-out score and its upper limit."""


@dataclass(frozen=True)
class Difference:
    """Mean difference method - baseline with its 95 % interval.

    value: NaN without a pair; low, high: NaN without an interval; pairs: the number of pairs; over: "seeds" (Student's
    t over pairs) or "questions" (bootstrap over the questions of one pair).
    """

    value: float
    low: float
    high: float
    pairs: int
    over: str = "seeds"


@dataclass(frozen=True)
class Crossings:
    """Comparison of the crossings of a method and of a baseline.

    difference: of min(crossing, tau) over pairs, in steps; tau: the last step at which a crossing could be seen in all
    runs; late: the number of paired runs that had not crossed by then; unseen: the number of pairs of which neither run
    had crossed, so that their difference counts as 0 and is unknown; speed_up: of the medians.
    """

    method: CrossingTimes
    baseline: CrossingTimes
    difference: Difference
    tau: float
    late: int
    unseen: int
    speed_up: SpeedUp


def compared_pairs(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs (method, baseline) of an experiment, in the order of its methods.

    Every method is compared with GDPO, DARA also with GRPO and with its form with fixed weights, and a method that is
    not in the paper's comparison (a user's own) also with both forms of DARA.
    """
    methods = list(methods)
    pairs = []
    for method in methods:
        others = [BASELINE]
        if method in DARA:
            others += ["grpo", FIXED[method]]
        elif method not in PAPER_METHODS:
            others += DARA
        pairs += [(method, other) for other in others if other in methods and other != method]
    return pairs


def wanted_step(at: int, budget: int) -> float:
    """Return the authors' step `at` in a training of `budget` steps: the same share, if it has fewer than their 100.

    Step 60 of 100 is 48 of 80.
    """
    return at * min(1.0, budget / PUBLISHED_STEPS)


def nearest_step(steps: Iterable[int], at: int, budget: int) -> int:
    """Return the scored step nearest to the authors' step `at` (`wanted_step`); of two equally near ones the earlier.

    Raise ValueError without a step.
    """
    wanted = wanted_step(at, budget)
    return min(steps, key=lambda step: (abs(step - wanted), step))


def paired(first: Mapping[Any, float], second: Mapping[Any, float]) -> Difference:
    """Return the mean difference first - second over the keys (runs) that both have, with Student's t interval."""
    differences = [first[key] - second[key] for key in sorted(first.keys() & second.keys())]
    if not differences:
        return Difference(math.nan, math.nan, math.nan, 0)
    low, high = t_interval(differences) or (math.nan, math.nan)
    return Difference(math.fsum(differences) / len(differences), low, high, len(differences))


def paired_steps(first: CrossingTimes, second: CrossingTimes) -> tuple[Difference, float, list[int]]:
    """Return the paired difference of min(crossing, tau), which keeps runs that do not cross.

    It is the difference of the restricted means of the paired runs.

    Returns:
        The difference; tau, the last step at which a crossing could be seen in all runs; and for each pair, the number
        of its runs that did not cross by then.
    """
    tau = min(first.horizon, second.horizon)
    found = []
    for times in (first, second):
        values = zip(times.keys, times.steps, times.crossed, strict=True)
        found.append({key: step if crossed else math.inf for key, step, crossed in values})
    difference = paired(*({key: min(step, tau) for key, step in steps.items()} for steps in found))
    common = sorted(found[0].keys() & found[1].keys())
    return difference, tau, [sum(steps[key] > tau for steps in found) for key in common]


def compare_crossings(
    view: View, kind: Kind, level: Level, pair: tuple[str, str], setting: Setting
) -> Crossings | None:
    """Compare the steps at which the runs of two methods cross a reward's threshold; None if one has no run."""
    times = [times_of(view.marks(kind, *level, method, setting), kind) for method in pair]
    return compare_times(*times, _key(view, kind, level, pair, setting))


def compare_checkpoints(view: RunsView, level: Level, pair: tuple[str, str], setting: Setting) -> Crossings | None:
    """Compare the first checkpoints at which a held-out score is at most a level; None if one has no scored run.

    A run that has no such checkpoint, or diverged before, is censored at the last checkpoint of its method.
    """
    metric, highest = level
    both = []
    for method in pair:
        scores = view.scores[view.scores["metric"] == metric]
        runs = dict(list(_by_run(view, scores, "value", method, setting)))
        below = {key: rows.loc[rows["value"] <= highest, "step"].min() for key, rows in runs.items()}
        last = max((float(rows["step"].max()) for rows in runs.values()), default=0.0)
        steps = tuple(last if pd.isna(step) else float(step) for step in below.values())
        crossed = tuple(bool(pd.notna(step)) for step in below.values())
        both.append(CrossingTimes(tuple(below), steps, crossed, last) if below else None)
    return compare_times(*both, _key(view, "checkpoint", level, pair, setting))


def compare_times(
    method: CrossingTimes | None, baseline: CrossingTimes | None, key: tuple[str, ...]
) -> Crossings | None:
    """Compare crossing times; `key` is the key of the speed-up's resamples. Return None if one is missing."""
    if method is None or baseline is None:
        return None
    difference, tau, late = paired_steps(method, baseline)
    return Crossings(method, baseline, difference, tau, sum(late), late.count(2), speed_up(method, baseline, key))


def score_difference(
    view: RunsView, metric: str, pair: tuple[str, str], setting: Setting, at: int
) -> tuple[int, Difference] | None:
    """Return the difference of a held-out score at the authors' step `at` (`nearest_step`), and the step in our runs.

    It is that of the frame score_intervals: for a single pair of runs with the interval over questions. None if the
    runs of a method have no such score.
    """
    rows = _differences(view, metric, pair, setting)
    if rows.empty:
        return None
    step = nearest_step(rows.index, at, view.budget(setting))
    return int(step), _difference_in(rows.loc[step])


def difference_at(view: RunsView, metric: str, pair: tuple[str, str], setting: Setting, step: int) -> Difference:
    """Return the difference of a held-out score at a step of our runs.

    It is that of the frame score_intervals if the frame has it, else over the completed runs with the same seed.
    """
    rows = _differences(view, metric, pair, setting)
    if step in rows.index:
        return _difference_in(rows.loc[step])
    scores = view.scores[(view.scores["step"] == step) & (view.scores["metric"] == metric)]
    scores = scores[~scores["run_id"].isin(view.diverged)]
    return paired(*(_means(view, scores, "value", method, setting) for method in pair))


def densities(view: RunsView, reward: str, steps: int, method: str, setting: Setting) -> dict[Any, float]:
    """Return the mean active-group density of a reward over the first steps, by run."""
    frame = view.frames["training_curves"]
    frame = frame[(frame["metric"] == f"density/{reward}") & (frame["step"] <= steps)]
    return _means(view, frame, "value", method, setting)


def energy_shares(view: RunsView, reward: str, method: str, setting: Setting) -> dict[Any, float]:
    """Return the share of a reward in the energy of a method's contributions, mean over the steps, by run."""
    frame = view.frames["energies"]
    return _means(view, frame[frame["reward"] == reward], "share_after", method, setting)


def _differences(view: RunsView, metric: str, pair: tuple[str, str], setting: Setting) -> pd.DataFrame:
    """Return the rows of a pair of methods in the frame score_intervals, by step."""
    rows = view.frames["score_intervals"]
    rows = rows[(rows["experiment"] == view.experiment.experiment) & (rows["metric"] == metric)]
    rows = view.selection.of_setting(rows, setting)
    return rows[(rows["method"] == pair[0]) & (rows["baseline"] == pair[1])].set_index("step")


def _difference_in(row: pd.Series) -> Difference:
    over, ends = ("seeds", ("t_low", "t_high")) if row["n_seeds"] > 1 else ("questions", ("low", "high"))
    return Difference(float(row["value"]), *(float(row[end]) for end in ends), int(row["n_seeds"]), over)


def _means(view: RunsView, frame: pd.DataFrame, column: str, method: str, setting: Setting) -> dict[Any, float]:
    """Return the mean of a column by run, over the steps that have it: an exact sum, in any order of the rows."""
    runs = _by_run(view, frame[frame[column].notna()], column, method, setting)
    return {key: math.fsum(rows[column]) / len(rows) for key, rows in runs}


def _by_run(
    view: RunsView, frame: pd.DataFrame, column: str, method: str, setting: Setting
) -> Iterable[tuple[Any, pd.DataFrame]]:
    """Return the steps and values of each run of a method at a setting, by `RUN`."""
    runs = view.selection.of_setting(view.selection.present, setting)
    runs = runs.loc[runs["method"] == method, ["run_id", *RUN]]
    return runs.merge(frame[["run_id", "step", column]], on="run_id").groupby(list(RUN))


def _key(view: View, kind: str, level: Level, pair: tuple[str, str], setting: Setting) -> tuple[str, ...]:
    """Return the key of a comparison's resamples, which makes its numbers the same in every table."""
    place = (setting.model, str(setting.group_size))
    return ("crossings", view.source, *place, kind, level[0], f"{level[1]:g}", *pair)
