"""Crossings of thresholds: of one training curve, of the runs of a method as censored times, and the steps saved.

A run without a crossing may cross after its last step. docs/statistics.md defines crossing and censoring, with reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dara.analysis.intervals import RESAMPLES, keyed_generator, median, percentile_interval

WINDOW = 10
"""Steps in the trailing mean of a stable crossing."""

HOLD = 20
"""Steps that the trailing mean must stay at the threshold after the crossing."""

TOLERANCE = 1e-9
"""Distance below a threshold that counts as equal: the mean of .7 and .9 in floating point is not quite .8.

Means of rewards differ by 1 / (responses in a window), at least 1e-6, so the tolerance changes no decision.
"""

Kind = Literal["first", "stable"]
"""Kind of crossing: the first step at or above a threshold, or the stable one."""

Status = Literal["reached", "pending", "not_reached"]


@dataclass(frozen=True)
class Crossing:
    """A stable crossing of a threshold.

    `step` (1-based) is set iff `status` is "reached". "pending": the trailing mean is at the threshold at the end of
    the series, without a break since `pending_step`, but not yet for the whole hold. "not_reached": all other series.
    """

    step: int | None
    status: Status
    pending_step: int | None


@dataclass(frozen=True)
class CrossingEvent:
    """One run's crossing of a threshold, as `Crossing`; seed (None: not published) and repeat identify the run."""

    seed: int | None
    step: int | None
    status: Status
    pending_step: int | None
    budget: int
    repeat: int = 0


@dataclass(frozen=True)
class CrossingTimes:
    """Crossing times of the runs of one method, sorted by key.

    keys: names of the runs that pair them with those of another method, such as seeds; steps: the step of the crossing,
    or the last step at which a crossing could have been seen; crossed: whether the run crossed (where not, its crossing
    is later than `steps`); horizon: last step at which a crossing could have been seen in every run, 0 where the runs
    are too short.
    """

    keys: tuple[Any, ...]
    steps: tuple[float, ...]
    crossed: tuple[bool, ...]
    horizon: float

    @property
    def reached(self) -> int:
        """Return the number of runs that crossed."""
        return sum(self.crossed)


@dataclass(frozen=True)
class SpeedUp:
    """Comparison of the median crossing steps of a method and of a baseline.

    saved: share of the baseline's steps that the method saves, 1 - method / baseline: the paper's speed-up (NaN: not
    estimable, for the `reason`); saved_interval: its 95 % interval over seeds, at most 1 (None with a single run of
    either, or without an estimate); runs, baseline_runs: their numbers.
    """

    saved: float
    saved_interval: tuple[float, float] | None
    runs: int
    baseline_runs: int
    reason: str = ""

    @property
    def saved_ends(self) -> tuple[float, float] | None:
        """Return `saved_interval` in its printed form: infinite ends are those that the budget leaves open."""
        # The upper end is 1 only if the baseline's is open: no method crosses in 0 steps.
        ends = self.saved_interval
        return ends and (ends[0], math.inf if ends[1] == 1 else ends[1])


def stable_crossing(values: Sequence[float] | np.ndarray, threshold: float) -> Crossing:
    """Return the first step t at which the trailing mean m reaches the threshold and stays there for HOLD more steps.

    m(t) is the mean of the last WINDOW of the values (N,), one a step from 1, and exists for t >= WINDOW. The crossing
    is the first t with m(u) >= threshold for every u in t..t+HOLD, so a series of N steps can confirm none after
    N - HOLD. Raise ValueError for a value that is not finite.
    """
    series = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(series))
    if len(wrong):
        raise ValueError(f"values: step {wrong[0] + 1} is {series[wrong[0]]}; every step needs a finite value")
    if len(series) < WINDOW:
        return Crossing(None, "not_reached", None)
    means = np.lib.stride_tricks.sliding_window_view(series, WINDOW).mean(axis=1)
    # Stretches of means at or above the threshold lie between two neighbours of this list of breaks.
    breaks = np.concatenate(([-1], np.flatnonzero(means < threshold - TOLERANCE), [len(means)]))
    long_enough = np.flatnonzero(np.diff(breaks) - 1 >= HOLD + 1)
    if len(long_enough):
        return Crossing(int(breaks[long_enough[0]]) + 1 + WINDOW, "reached", None)
    last_start = int(breaks[-2]) + 1
    pending = last_start < len(means)
    return Crossing(None, "pending", last_start + WINDOW) if pending else Crossing(None, "not_reached", None)


def first_crossing(values: Sequence[float] | np.ndarray, threshold: float) -> int | None:
    """Return the first step (1-based) whose own value is at least the threshold, or None: the paper's for tools."""
    hits = np.flatnonzero(np.asarray(values, dtype=np.float64) >= threshold - TOLERANCE)
    return int(hits[0]) + 1 if len(hits) else None


def times_of(events: Sequence[CrossingEvent], kind: Kind) -> CrossingTimes | None:
    """Return the crossings as censored times, keyed by (seed, repeat); None without a run.

    A run without a crossing (a pending one too) is censored at the last step at which one could have been seen: its
    budget, less the steps that a stable crossing must hold. A run that diverged before it crossed is censored there as
    well: it did not cross within the budget. A seed that is not known is -1 and pairs by its place. Raise ValueError
    for a crossing after the last step at which one can be seen.
    """
    rows = []
    for place, event in enumerate(events):
        horizon = max(0, event.budget - (HOLD if kind == "stable" else 0))
        crossed = event.step is not None
        if crossed and event.step > horizon:
            raise ValueError(
                f"crossings: seed {event.seed}: the {kind} crossing at step {event.step} is later than {horizon}, the "
                "last step that its budget allows"
            )
        key = (-1, place) if event.seed is None else (event.seed, event.repeat)
        rows.append((key, float(event.step if crossed else horizon), crossed, horizon))
    if not rows:
        return None
    keys, steps, reached, horizons = zip(*sorted(rows), strict=True)
    return CrossingTimes(keys, steps, reached, float(min(horizons)))


def median_step(times: CrossingTimes) -> float:
    """Return the median crossing step; infinite if beyond the horizon. A run that did not cross is later than all."""
    return median(np.where(times.crossed, times.steps, np.inf))


def median_text(times: CrossingTimes) -> str:
    """Return the median crossing step as text; `>60` if it is only known to be later than step 60.

    With an even number of runs of which one of the two middle ones crossed at 20 and the other not within 60, the
    median is only known to be later than 40.
    """
    value = median_step(times)
    return f"{value:g}" if math.isfinite(value) else f">{median(times.steps):g}"


def speed_up(method: CrossingTimes, baseline: CrossingTimes, key: tuple[str, ...]) -> SpeedUp:
    """Return the steps saved by the median run, with a percentile bootstrap over seeds; `key` is that of its resamples.

    Common seeds of both methods (equal keys of the times) are drawn together; the other seeds are drawn separately, so
    each resample keeps the numbers of runs. The median of a resample may be beyond the budget: then its ratio is only
    known to lie in a range, and the lower end of the interval is taken from the lower ends of these ranges, the upper
    one from the upper ends. The interval is thus at least as wide as the one without censoring.
    """
    counts, medians = (len(method.steps), len(baseline.steps)), (median_step(method), median_step(baseline))
    if min(method.horizon, baseline.horizon) <= 0:
        return SpeedUp(math.nan, None, *counts, "the runs are too short for any crossing to be seen")
    if math.inf in medians:
        named = zip(("method", "baseline"), (method, baseline), medians, strict=True)
        late = [f"the median of the {name} is {median_text(times)}" for name, times, at in named if at == math.inf]
        return SpeedUp(math.nan, None, *counts, " and ".join(late))
    interval = None
    if min(counts) > 1:
        (low, high), (low_base, high_base) = _drawn_medians(method, baseline, key)
        # The ratio is lowest with the method's lower bound over the baseline's upper bound, and the reverse.
        interval = 1 - percentile_interval(high / low_base).high, 1 - percentile_interval(low / high_base).low
    return SpeedUp(1 - medians[0] / medians[1], interval, *counts)


def _drawn_medians(
    method: CrossingTimes, baseline: CrossingTimes, key: tuple[str, ...]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return lower and upper bounds (R,) of each one's medians over drawn runs; common keys are first, in one draw.

    They differ if the median is that of a run which did not cross: it is known to be later than its last step.
    """
    rng, bounds = keyed_generator(*key), []
    common = sorted(set(method.keys) & set(baseline.keys))
    together = rng.integers(len(common), size=(RESAMPLES, len(common))) if common else None
    for times in (method, baseline):
        parts = [np.array([times.keys.index(name) for name in common])[together]] if common else []
        alone = np.array([place for place, name in enumerate(times.keys) if name not in common], dtype=int)
        if len(alone):
            parts.append(alone[rng.integers(len(alone), size=(RESAMPLES, len(alone)))])
        rows, seen = np.concatenate(parts, axis=1), np.array(times.steps)
        middle = [(rows.shape[1] - 1) // 2, rows.shape[1] // 2]
        ends = (np.sort(steps[rows], axis=1) for steps in (seen, np.where(times.crossed, seen, np.inf)))
        bounds.append(tuple(end[:, middle].mean(axis=1) for end in ends))
    return bounds
