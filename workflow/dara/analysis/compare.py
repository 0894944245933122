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

from dara.analysis.names import BASELINE, DARA, FIXED, PAPER_METHODS
from dara.analysis.paired import PairedDifference, paired_scores, paired_steps
from dara.analysis.speed_up import SpeedUp, speed_up
from dara.analysis.survival import CrossingTimes, Kind, times_of
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

    @classmethod
    def of(cls, found: PairedDifference) -> Difference:
        """Return the difference over pairs of runs."""
        ends = (found.interval.low, found.interval.high) if found.interval else (math.nan, math.nan)
        return cls(found.mean, *ends, len(found.keys))


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
    """Return the scored step to compare with the authors' step `at`. Raise ValueError without a step.

    It is the step nearest to `wanted_step`; of two equally near steps, the earlier one.
    """
    wanted = wanted_step(at, budget)
    return min(steps, key=lambda step: (abs(step - wanted), step))


def compare_crossings(
    view: View, kind: Kind, level: Level, pair: tuple[str, str], setting: Setting
) -> Crossings | None:
    """Compare the steps at which the runs of two methods cross a reward's threshold; None if one has no run."""
    times = [times_of(view.marks(kind, *level, method, setting), kind) for method in pair]
    return compare_times(*times, _key(view, kind, level, pair, setting))


def compare_checkpoints(view: RunsView, level: Level, pair: tuple[str, str], setting: Setting) -> Crossings | None:
    """Compare the first checkpoints at which a held-out score is at most a level; None if one has no run."""
    times = [first_checkpoints(view, level, method, setting) for method in pair]
    return compare_times(*times, _key(view, "checkpoint", level, pair, setting))


def first_checkpoints(view: RunsView, level: Level, method: str, setting: Setting) -> CrossingTimes | None:
    """Return the first scored checkpoint of each run whose score is at most a level; None without a scored run.

    A run that has no such checkpoint, or diverged before, is censored at the last checkpoint of all.
    """
    metric, highest = level
    found: dict[Any, int | None] = {}
    last = 0
    for key, values in _by_run(view, view.scores, metric, method, setting):
        below = values.loc[values["value"] <= highest, "step"]
        found[key] = int(below.min()) if len(below) else None
        last = max(last, int(values["step"].max()))
    if not found:
        return None
    keys = tuple(sorted(found))
    crossed = tuple(found[key] is not None for key in keys)
    return CrossingTimes(keys, tuple(float(found[key] or last) for key in keys), crossed, float(last))


def compare_times(
    method: CrossingTimes | None, baseline: CrossingTimes | None, key: tuple[str, ...]
) -> Crossings | None:
    """Compare crossing times; `key` is the key of the speed-up's resamples. Return None if one is missing."""
    if method is None or baseline is None:
        return None
    pairs, tau, late = paired_steps(method, baseline)
    unseen = sum(count == 2 for count in late)
    speed = speed_up(method, baseline, key=key)
    return Crossings(method, baseline, Difference.of(pairs), tau, sum(late), unseen, speed)


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
    present = view.selection.present
    scores = view.scores[view.scores["step"] == step]
    scores = scores[scores["run_id"].isin(present.loc[present["outcome"] != "diverged", "run_id"])]
    values = ({key: rows["value"].iloc[0] for key, rows in _by_run(view, scores, metric, m, setting)} for m in pair)
    return paired(*values)


def _differences(view: RunsView, metric: str, pair: tuple[str, str], setting: Setting) -> pd.DataFrame:
    """Return the rows of a pair of methods in the frame score_intervals, by step."""
    rows = view.frames["score_intervals"]
    rows = rows[(rows["experiment"] == view.experiment.experiment) & (rows["metric"] == metric)]
    rows = view.selection.of_setting(rows, setting)
    return rows[(rows["method"] == pair[0]) & (rows["baseline"] == pair[1])].set_index("step")


def _difference_in(row: pd.Series) -> Difference:
    over = "seeds" if row["n_seeds"] > 1 else "questions"
    ends = (row["t_low"], row["t_high"]) if over == "seeds" else (row["low"], row["high"])
    return Difference(float(row["value"]), *map(float, ends), int(row["n_seeds"]), over)


def densities(view: RunsView, reward: str, steps: int, method: str, setting: Setting) -> dict[Any, float]:
    """Return the mean active-group density of a reward over the first steps, by run."""
    frame = view.frames["training_curves"]
    frame = frame[(frame["step"] <= steps) & frame["value"].notna()]
    return {key: _mean(rows["value"]) for key, rows in _by_run(view, frame, f"density/{reward}", method, setting)}


def energy_shares(view: RunsView, reward: str, method: str, setting: Setting) -> dict[Any, float]:
    """Return the share of a reward in the energy of a method's contributions, mean over the steps, by run."""
    frame = view.frames["energies"]
    frame = frame[(frame["reward"] == reward) & frame["share_after"].notna()]
    runs = _runs(view, method, setting).merge(frame[["run_id", "share_after"]], on="run_id")
    return {key: _mean(values) for key, values in runs.groupby(list(RUN))["share_after"]}


def _mean(values: pd.Series) -> float:
    return math.fsum(values) / len(values)  # exact, independent of the order of rows


def paired(first: Mapping[Any, float], second: Mapping[Any, float]) -> Difference:
    """Return the paired difference of two sets of values by run."""
    return Difference.of(paired_scores(first, second))


def _by_run(
    view: RunsView, frame: pd.DataFrame, metric: str, method: str, setting: Setting
) -> Iterable[tuple[Any, pd.DataFrame]]:
    rows = frame.loc[frame["metric"] == metric, ["run_id", "step", "value"]]
    return _runs(view, method, setting).merge(rows, on="run_id").groupby(list(RUN))


def _runs(view: RunsView, method: str, setting: Setting) -> pd.DataFrame:
    """Return the columns run_id, seed, repeat of the runs of a method at a setting."""
    runs = view.selection.of_setting(view.selection.present, setting)
    return runs.loc[runs["method"] == method, ["run_id", *RUN]]


def _key(view: View, kind: str, level: Level, pair: tuple[str, str], setting: Setting) -> tuple[str, ...]:
    """Return the key of a comparison's resamples, which makes its numbers the same in every table."""
    place = (setting.model, str(setting.group_size))
    return ("crossings", view.source, *place, kind, level[0], f"{level[1]:g}", *pair)
