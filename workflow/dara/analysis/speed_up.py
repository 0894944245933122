"""The share of a baseline's steps that a method saves before it crosses, with an interval over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dara.analysis.intervals import LEVEL, RESAMPLES, keyed_generator, percentile_rank
from dara.analysis.survival import CrossingTimes, median_step, median_text

Bounds = tuple[np.ndarray, np.ndarray]
"""Lower and upper bounds (R,) of a median, for each resample."""


@dataclass(frozen=True)
class SpeedUp:
    """Median crossing steps of a method and of a baseline.

    Attributes:
        saved: share of the baseline's steps that the method saves, 1 - method / baseline: the paper's speed-up. NaN:
            not estimable.
        saved_interval: its ends over seeds, at most 1; None with a single run of either, or if it is not estimable.
        runs, baseline_runs: number of runs.
        reason: why it is not estimable; empty otherwise.
    """

    saved: float
    saved_interval: tuple[float, float] | None
    runs: int
    baseline_runs: int
    reason: str = ""

    @property
    def saved_ends(self) -> tuple[float, float] | None:
        """Return `saved_interval` in its printed form: infinite ends are those that the budget leaves open.

        The upper end is 1 only if the baseline's is open: no method crosses in 0 steps.
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
    resamples: int = RESAMPLES,
) -> SpeedUp:
    """Return the steps saved by the median run, with a percentile bootstrap over seeds.

    Common seeds of both methods are drawn together; the other seeds are drawn separately, so each resample keeps the
    numbers of runs. The median of a resample may be beyond the budget: then its ratio is only known to lie in a range,
    and the lower end of the interval is taken from the lower ends of these ranges, the upper one from the upper ends.
    The interval is thus at least as wide as the one without censoring. The keys of the crossing times pair the runs;
    `key` is the key of the resamples.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1 (given: {resamples})")
    counts = len(method.steps), len(baseline.steps)
    if reason := _reason(method, baseline):
        return SpeedUp(math.nan, None, *counts, reason)
    interval = None
    if min(counts) > 1:
        rng = keyed_generator(*((key,) if isinstance(key, str) else key))
        (low, high), (low_base, high_base) = (_medians(*drawn) for drawn in _draw(method, baseline, resamples, rng))
        # The ratio is lowest with the method's lower bound over the baseline's upper bound, and the reverse.
        lowest, highest = np.sort(low / high_base), np.sort(high / low_base)
        least = float(lowest[percentile_rank((1 - LEVEL) / 2, resamples)])
        most = float(highest[percentile_rank((1 + LEVEL) / 2, resamples)])
        interval = 1 - most, 1 - least
    return SpeedUp(1 - median_step(method) / median_step(baseline), interval, *counts)


def _reason(method: CrossingTimes, baseline: CrossingTimes) -> str:
    """Return why there is no estimate; empty if there is one."""
    if min(method.horizon, baseline.horizon) <= 0:
        return "the runs are too short for any crossing to be seen"
    late = {"method": method, "baseline": baseline}
    beyond = [f"the median of the {name} is {median_text(t)}" for name, t in late.items() if median_step(t) == math.inf]
    return " and ".join(beyond)


def _draw(
    method: CrossingTimes, baseline: CrossingTimes, resamples: int, rng: np.random.Generator
) -> list[tuple[CrossingTimes, np.ndarray]]:
    """Return, for each of the two, the times and the positions (R, n) of the drawn runs.

    Common keys come first, in one draw.
    """
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


def _medians(times: CrossingTimes, rows: np.ndarray) -> Bounds:
    """Return the lower and upper bounds (R,) of the medians of the runs at the positions `rows` (R, n).

    They differ if the median is that of a run which did not cross: it is known to be later than its last step.
    """
    seen = np.array(times.steps)
    low, high = (np.sort(values[rows], axis=1) for values in (seen, np.where(times.crossed, seen, np.inf)))
    middle = [(rows.shape[1] - 1) // 2, rows.shape[1] // 2]
    return low[:, middle].mean(axis=1), high[:, middle].mean(axis=1)
