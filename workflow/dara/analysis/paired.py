"""Differences between two methods over the seeds that both have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dara.analysis.intervals import LEVEL, Interval, t_interval
from dara.analysis.survival import CrossingTimes


@dataclass(frozen=True)
class PairedDifference:
    """Differences first - second, one a pair.

    Attributes:
        keys: the pairs (such as seeds), sorted.
        differences: one a pair; NaN where a member is censored, so that only a bound of the difference is known.
        mean: of the known differences; NaN without any.
        interval: Student's t of that mean; None with fewer than two known differences.
        first_lower, second_lower, ties, undecided: pairs by their order. A pair of which one member is censored later
            than the other crossed has a known order; two censored members have none and are undecided.
        sign_p: two-sided exact binomial p of first_lower among the pairs that are neither tied nor undecided; 1
            without any.
        only_first, only_second: keys without a partner, sorted.
    """

    keys: tuple[Any, ...]
    differences: tuple[float, ...]
    mean: float
    interval: Interval | None
    first_lower: int
    second_lower: int
    ties: int
    undecided: int
    sign_p: float
    only_first: tuple[Any, ...]
    only_second: tuple[Any, ...]

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.keys)

    @property
    def known(self) -> int:
        """Number of pairs whose difference is known: those that the mean is over."""
        return sum(not math.isnan(difference) for difference in self.differences)


def paired_scores(first: Mapping[Any, float], second: Mapping[Any, float], level: float = LEVEL) -> PairedDifference:
    """Paired differences of scores (or any finite values), one a key.

    Args:
        first, second: value by key, such as the seed. Keys that only one has are reported, not used.
        level: confidence level of the interval.

    Raises:
        ValueError: a value that is not finite.
    """
    for name, values in (("first", first), ("second", second)):
        for key, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"paired scores: {name}, {key}: {value} is not finite; leave out what was not scored")
    differences = {key: float(first[key] - second[key]) for key in first.keys() & second.keys()}
    return _summary(first, second, differences, differences, level)


def paired_crossings(first: CrossingTimes, second: CrossingTimes, level: float = LEVEL) -> PairedDifference:
    """Paired differences of crossing steps; a negative one is a pair in which the first crosses earlier.

    A pair with one censored member has no known difference, and is not in the mean. It counts in the order where that
    is known: one crossed no later than the other was watched. So the mean is over the pairs in which both crossed,
    which flatters a method whose slow runs are censored: read it with the count of the orders and the restricted mean.
    """
    a, b = (dict(zip(t.keys, zip(t.steps, t.crossed, strict=True), strict=True)) for t in (first, second))
    differences, orders = {}, {}
    for key in a.keys() & b.keys():
        (step_a, crossed_a), (step_b, crossed_b) = a[key], b[key]
        differences[key] = step_a - step_b if crossed_a and crossed_b else math.nan
        orders[key] = differences[key]
        # The crossing of a censored run is later than its step, never at it.
        if crossed_a and not crossed_b and step_a <= step_b:
            orders[key] = -math.inf
        elif crossed_b and not crossed_a and step_b <= step_a:
            orders[key] = math.inf
    return _summary(a, b, differences, orders, level)


def paired_steps(first: CrossingTimes, second: CrossingTimes) -> tuple[PairedDifference, float, list[int]]:
    """Paired differences of min(crossing, tau), so that a run which does not cross is not left out.

    Its mean is the difference of the restricted means of the paired runs.

    Returns:
        The differences; tau, the last step at which a crossing could be seen in all runs; and of each pair, how many of
        its two runs did not cross by then.
    """
    tau = min(first.horizon, second.horizon)
    found = []
    for times in (first, second):
        values = zip(times.keys, times.steps, times.crossed, strict=True)
        found.append({key: step if crossed else math.inf for key, step, crossed in values})
    pairs = paired_scores(*({key: min(step, tau) for key, step in of.items()} for of in found))
    return pairs, tau, [sum(of[key] > tau for of in found) for key in pairs.keys]


def sign_test(lower: int, higher: int) -> float:
    """Two-sided exact p of `lower` against `higher` signs that are equally likely; 1 without any."""
    n, fewer = lower + higher, min(lower, higher)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / 2**n)


def _summary(
    first: Mapping[Any, Any],
    second: Mapping[Any, Any],
    differences: Mapping[Any, float],
    orders: Mapping[Any, float],
    level: float,
) -> PairedDifference:
    """`orders` has the sign of the difference of each pair, NaN where that is not known."""
    keys = sorted(differences)
    known = [differences[key] for key in keys if not math.isnan(differences[key])]
    signs = np.array([orders[key] for key in keys], dtype=np.float64)
    lower, higher, ties = (int(found.sum()) for found in (signs < 0, signs > 0, signs == 0))
    return PairedDifference(
        keys=tuple(keys),
        differences=tuple(differences[key] for key in keys),
        mean=math.fsum(known) / len(known) if known else math.nan,
        interval=t_interval(known, level) if known else None,
        first_lower=lower,
        second_lower=higher,
        ties=ties,
        undecided=len(keys) - lower - higher - ties,
        sign_p=sign_test(lower, higher),
        only_first=tuple(sorted(first.keys() - second.keys())),
        only_second=tuple(sorted(second.keys() - first.keys())),
    )
