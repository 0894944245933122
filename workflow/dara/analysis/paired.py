"""Differences between two methods over the seeds that both have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dara.analysis.intervals import Interval, t_interval
from dara.analysis.survival import CrossingTimes


@dataclass(frozen=True)
class PairedDifference:
    """Differences first - second, one a pair.

    keys: the common pairs, sorted. mean: NaN without a pair. interval: Student's t of that mean; None with fewer than
    two pairs.
    """

    keys: tuple[Any, ...]
    differences: tuple[float, ...]
    mean: float
    interval: Interval | None


def paired_scores(first: Mapping[Any, float], second: Mapping[Any, float]) -> PairedDifference:
    """Return the paired differences of finite values by key (such as the seed), for each common key.

    Raise ValueError for a value that is not finite.
    """
    for name, values in (("first", first), ("second", second)):
        for key, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"paired scores: {name}, {key}: {value} is not finite; leave out what was not scored")
    keys = tuple(sorted(first.keys() & second.keys()))
    differences = tuple(float(first[key] - second[key]) for key in keys)
    mean = math.fsum(differences) / len(keys) if keys else math.nan
    return PairedDifference(keys, differences, mean, t_interval(differences) if keys else None)


def paired_steps(first: CrossingTimes, second: CrossingTimes) -> tuple[PairedDifference, float, list[int]]:
    """Return the paired differences of min(crossing, tau), which keeps runs that do not cross.

    Their mean is the difference of the restricted means of the paired runs.

    Returns:
        The differences; tau, the last step at which a crossing could be seen in all runs; and for each pair, the
        number of its runs that did not cross by then.
    """
    tau = min(first.horizon, second.horizon)
    found = []
    for times in (first, second):
        values = zip(times.keys, times.steps, times.crossed, strict=True)
        found.append({key: step if crossed else math.inf for key, step, crossed in values})
    pairs = paired_scores(*({key: min(step, tau) for key, step in of.items()} for of in found))
    return pairs, tau, [sum(of[key] > tau for of in found) for key in pairs.keys]
