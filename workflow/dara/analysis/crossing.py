"""Stable crossings: the step from which on a training curve holds a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

WINDOW = 10
"""Steps in the trailing mean of a stable crossing."""

HOLD = 20
"""Steps that the trailing mean must stay at the threshold after the crossing."""

TOLERANCE = 1e-9
"""Distance below a threshold that counts as equal: the mean of .7 and .9 in floating point is not quite .8.

Means of rewards differ by 1 / (responses in a window), at least 1e-6, so the tolerance changes no decision.
"""


@dataclass(frozen=True)
class Crossing:
    """A stable crossing of a threshold.

    `step` (1-based) is set iff `status` is "reached". "pending": the trailing mean is at the threshold at the end of
    the series, without a break since `pending_step`, but not yet for the whole hold. "not_reached": all other series.
    """

    step: int | None
    status: Literal["reached", "pending", "not_reached"]
    pending_step: int | None


def stable_crossing(
    values: Sequence[float] | np.ndarray, threshold: float, window: int = WINDOW, hold: int = HOLD
) -> Crossing:
    """Return the first step t at which the trailing mean m reaches the threshold and stays there for `hold` more steps.

    m(t) is the mean of the last `window` values and exists for t >= window. The crossing is the first t with
    m(u) >= threshold for every u in t..t+hold, so a series of N steps can confirm none after N - hold.

    Args:
        values: (N,) one value a step; values[0] is step 1.
        threshold: the level, in the unit of the values.
        window: steps in the trailing mean.
        hold: steps after t that must hold too.

    Raises:
        ValueError: values that are not a finite one-dimensional series, or a wrong window, hold or threshold.
    """
    series = _checked(values, threshold)
    if window < 1 or hold < 0:
        raise ValueError(f"window must be at least 1 and hold at least 0 (given: window {window}, hold {hold})")
    if len(series) < window:
        return Crossing(None, "not_reached", None)
    means = np.lib.stride_tricks.sliding_window_view(series, window).mean(axis=1)
    below = np.flatnonzero(means < threshold - TOLERANCE)
    # Stretches of means at or above the threshold lie between two neighbours of this list of breaks.
    breaks = np.concatenate(([-1], below, [len(means)]))
    long_enough = np.flatnonzero(np.diff(breaks) - 1 >= hold + 1)
    if len(long_enough):
        return Crossing(int(breaks[long_enough[0]]) + 1 + window, "reached", None)
    last_start = int(breaks[-2]) + 1
    if last_start < len(means):
        return Crossing(None, "pending", last_start + window)
    return Crossing(None, "not_reached", None)


def first_crossing(values: Sequence[float] | np.ndarray, threshold: float) -> int | None:
    """Return the first step (1-based) whose own value is at least the threshold, or None: the paper's rule for tools.

    Arguments and errors are those of `stable_crossing`.
    """
    hits = np.flatnonzero(_checked(values, threshold) >= threshold - TOLERANCE)
    return int(hits[0]) + 1 if len(hits) else None


def _checked(values: Sequence[float] | np.ndarray, threshold: float) -> np.ndarray:
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"values must be one-dimensional, one value a step (given: shape {series.shape})")
    if not np.isfinite(threshold):
        raise ValueError(f"threshold must be a finite number (given: {threshold})")
    wrong = np.flatnonzero(~np.isfinite(series))
    if len(wrong):
        raise ValueError(f"values: step {wrong[0] + 1} is {series[wrong[0]]}; every step needs a finite value")
    return series
