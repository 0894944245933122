"""How many steps earlier a method crosses than a baseline, with an interval over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dara.analysis.intervals import LEVEL, RESAMPLES, Interval, keyed_generator, percentile_rank
from dara.analysis.survival import CrossingTimes, median_step, median_text, restricted_mean

Centre = Literal["median", "restricted_mean"]

Bounds = tuple[np.ndarray, np.ndarray]
"""Lower and upper bounds (R,) of a median or a mean, of each resample."""


@dataclass(frozen=True)
class SpeedUp:
    """Crossing steps of a method against those of a baseline.

    Attributes:
        of: what stands for the runs of a method: their median, or their restricted mean up to the common horizon.
        method, baseline: that step; infinite for a median beyond the budget.
        difference: method - baseline in steps, negative where the method is earlier. NaN: not estimable.
        ratio: method / baseline.
        difference_interval, ratio_interval: over seeds; None with a single run of either, or where not estimable. An
            infinite end (or 0 of the ratio) is one that the budget leaves open.
        runs, baseline_runs, pairs: the runs of each, and the seeds that both have, which are drawn together.
        reason: why it is not estimable; empty otherwise.
    """

    of: Centre
    method: float
    baseline: float
    difference: float
    ratio: float
    difference_interval: Interval | None
    ratio_interval: Interval | None
    runs: int
    baseline_runs: int
    pairs: int
    reason: str = ""

    @property
    def saved(self) -> float:
        """Share of the baseline's steps that the method saves, 1 - ratio: the paper's speed-up. NaN: not estimable."""
        return 1 - self.ratio

    @property
    def saved_interval(self) -> tuple[float, float] | None:
        """Ends of the interval of `saved`, at most 1."""
        return (1 - self.ratio_interval.high, 1 - self.ratio_interval.low) if self.ratio_interval else None

    @property
    def saved_ends(self) -> tuple[float, float] | None:
        """`saved_interval` as it is printed: infinite ends are those that the budget leaves open.

        The upper end is 1 where the baseline's is open, and only there: no method crosses in 0 steps.
        """
        if self.saved_interval is None:
            return None
        low, high = self.saved_interval
        return low, math.inf if high == 1 else high


def speed_up(
    method: CrossingTimes,
    baseline: CrossingTimes,
    *,
    key: str | tuple[str, ...],
    of: Centre = "median",
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> SpeedUp:
    """Difference and ratio of medians (or restricted means), with a percentile bootstrap over seeds.

    Seeds that both methods have are drawn together; what only one has is drawn on its own, so each resample keeps the
    numbers of runs. The median of a resample may be beyond the budget: then its difference and ratio are only known
    to lie in a range, and the lower end of the interval is taken from the lower ends of these ranges, the upper one
    from the upper ends. The interval is thus at least as wide as the one without censoring.

    Args:
        method, baseline: crossing times with keys that pair them.
        key: what the resamples are keyed by.
        of: "median", which is not estimable where it is beyond the budget, or "restricted_mean".
        resamples: number of resamples.
        level: confidence level.
    """
    if of not in ("median", "restricted_mean"):
        raise ValueError(f"of must be 'median' or 'restricted_mean' (given: {of!r})")
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"resamples must be at least 1 and level between 0 and 1 (given: {resamples}, {level})")
    horizon = min(method.horizon, baseline.horizon)
    counts = (len(method.steps), len(baseline.steps), len(set(method.keys) & set(baseline.keys)))
    if of == "median":
        centres = median_step(method), median_step(baseline)
    else:
        centres = tuple(restricted_mean(t, horizon) if horizon > 0 else math.nan for t in (method, baseline))
    if reason := _reason(method, baseline, of, horizon):
        return SpeedUp(of, *centres, math.nan, math.nan, None, None, *counts, reason)
    intervals: tuple[Interval | None, Interval | None] = (None, None)
    if min(counts[:2]) > 1:
        rng = keyed_generator(*((key,) if isinstance(key, str) else key))
        bounds = [_centre(times, rows, of, horizon) for times, rows in _draw(method, baseline, resamples, rng)]
        intervals = _intervals(*bounds, sum(counts[:2]), level)
    return SpeedUp(of, *centres, centres[0] - centres[1], centres[0] / centres[1], *intervals, *counts)


def _reason(method: CrossingTimes, baseline: CrossingTimes, of: Centre, horizon: float) -> str:
    """Why there is no estimate; empty where there is one."""
    if horizon <= 0:
        return "the runs are too short for any crossing to be seen"
    if of == "restricted_mean":
        return ""
    late = {"method": method, "baseline": baseline}
    beyond = [f"the median of the {name} is {median_text(t)}" for name, t in late.items() if median_step(t) == math.inf]
    return " and ".join(beyond)


def _draw(
    method: CrossingTimes, baseline: CrossingTimes, resamples: int, rng: np.random.Generator
) -> list[tuple[CrossingTimes, np.ndarray]]:
    """For each of the two, itself and the positions (R, n) of the drawn runs; common keys come first, in one draw."""
    common = sorted(set(method.keys) & set(baseline.keys))
    together = rng.integers(len(common), size=(resamples, len(common))) if common else None
    result = []
    for times in (method, baseline):
        place = {name: index for index, name in enumerate(times.keys)}
        parts = [] if together is None else [np.array([place[name] for name in common])[together]]
        alone = np.array([index for name, index in place.items() if name not in set(common)], dtype=int)
        if len(alone):
            parts.append(alone[rng.integers(len(alone), size=(resamples, len(alone)))])
        result.append((times, np.concatenate(parts, axis=1)))
    return result


def _centre(times: CrossingTimes, rows: np.ndarray, of: Centre, tau: float) -> Bounds:
    """Median or restricted mean of the runs at the positions `rows` (R, n): the lower and the upper bounds (R,).

    They differ where the median is that of a run which did not cross: it is known to be later than its last step.
    """
    steps = np.array(times.steps)
    if of == "restricted_mean":
        mean = np.minimum(steps, tau)[rows].mean(axis=1)  # nothing is censored before tau: the integral, too
        return mean, mean
    low, high = (np.sort(values[rows], axis=1) for values in (steps, np.where(times.crossed, steps, np.inf)))
    middle = [(rows.shape[1] - 1) // 2, rows.shape[1] // 2]
    return low[:, middle].mean(axis=1), high[:, middle].mean(axis=1)


def _intervals(method: Bounds, baseline: Bounds, n: int, level: float) -> tuple[Interval, Interval]:
    """The intervals of the difference and of the ratio of two methods."""
    (low, high), (low_base, high_base) = method, baseline
    return (
        _interval(low - high_base, high - low_base, n, level),
        _interval(low / high_base, high / low_base, n, level),
    )


def _interval(low: np.ndarray, high: np.ndarray, n: int, level: float) -> Interval:
    """Percentiles of the lower bounds and of the upper bounds (R,)."""
    low, high = np.sort(low), np.sort(high)
    ends = (
        float(low[percentile_rank((1 - level) / 2, len(low))]),
        float(high[percentile_rank((1 + level) / 2, len(high))]),
    )
    return Interval(*ends, n, "bootstrap", bool(low[0] == high[-1] and math.isfinite(low[0])))
