"""Intervals (percentile bootstrap, Student's t, Wilson), and medians, quartiles and means over runs.

docs/statistics.md gives the use of each, and the reasons.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

RESAMPLES = 2000
"""Bootstrap resamples, as in the paper."""

LEVEL = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    `n`: number of values. `degenerate`: the values are all equal, so `low` = `high` says nothing about the spread.
    """

    low: float
    high: float
    n: int
    kind: Literal["bootstrap", "t", "wilson", "hierarchical bootstrap"]
    degenerate: bool = False


def keyed_generator(*key: str) -> np.random.Generator:
    """Return a random generator that depends on the strings of `key` alone, such as (figure, metric, method)."""
    if not key or not all(isinstance(part, str) and part for part in key):
        raise ValueError(f"key must be strings that are not empty, such as ('curves', 'format') (given: {key})")
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def bootstrap_interval(
    values: Sequence[float] | np.ndarray,
    *,
    key: str | tuple[str, ...],
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval | None:
    """Return the percentile bootstrap interval of a mean over questions or over seeds.

    The order of the values does not matter: they are sorted before they are drawn from.

    Args:
        values: (n,) one value a question or a seed.
        key: the key of the resamples, such as ("scores", "accuracy", "gdpo").
        resamples: number of resamples.
        level: confidence level.

    Returns:
        None for a single value; [x, x] marked degenerate where the values are equal.
    """
    sample = np.sort(_checked(values))
    one, groups = np.ones((len(sample), 1)), np.zeros(len(sample), dtype=int)
    totals = bootstrap_intervals(sample[:, None], one, groups, key=key, resamples=resamples, level=level)[0]
    if totals is None:
        return None
    if totals.degenerate:  # the mean is that value, which sum / n may miss in the last digit
        return replace(totals, low=float(sample[0]), high=float(sample[0]))
    return replace(totals, low=totals.low / len(sample), high=totals.high / len(sample))


def bootstrap_intervals(
    values: np.ndarray,
    weights: np.ndarray,
    groups: np.ndarray,
    *,
    key: str | tuple[str, ...],
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> list[Interval | None]:
    """Return stratified bootstrap intervals of M weighted sums over the same n questions, with the same resamples.

    The m-th statistic is sum_i weights[i, m] values[i, m]. A question that is drawn enters with the weight of its
    group, so the weights must be equal within a group: a mean of category means has the weight
    1 / (categories x questions of the category). The rows must come in an order that does not depend on how they
    were stored (sorted by question): the resamples are drawn by position.

    Args:
        values: (n, M).
        weights: (n, M), constant within a group; 0 if a question does not belong to a statistic.
        groups: (n,) integers; questions with equal numbers are resampled together and keep their count.
        key: the key of the resamples.

    Returns:
        M intervals, each as in `bootstrap_interval`, with n the number of questions of a weight above 0.
    """
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"resamples must be at least 1 and level between 0 and 1 (given: {resamples}, {level})")
    rng = keyed_generator(*((key,) if isinstance(key, str) else key))
    terms = values * weights
    constant = np.ones(values.shape[1], dtype=bool)
    sums = np.zeros((resamples, values.shape[1]))
    for group in np.unique(groups):
        rows = terms[groups == group]
        constant &= (rows == rows[0]).all(axis=0)
        # Each group is resampled on its own, so every resample has the same number of questions of each category.
        sums += resampled_sums(rows, resamples, rng)
    sums.sort(axis=0)
    low, high = sums[percentile_rank((1 - level) / 2, resamples)], sums[percentile_rank((1 + level) / 2, resamples)]
    intervals: list[Interval | None] = []
    for m, n in enumerate((weights > 0).sum(axis=0)):
        point = math.fsum(terms[:, m])
        ends = (point, point) if constant[m] else (float(low[m]), float(high[m]))
        intervals.append(Interval(*ends, int(n), "bootstrap", bool(constant[m])) if n > 1 else None)
    return intervals


def resampled_sums(rows: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Return the sums (resamples, M) of n rows drawn with replacement from `rows` (n, M)."""
    n = len(rows)
    drawn = rng.integers(n, size=(resamples, n))
    drawn += np.arange(resamples)[:, None] * n
    counts = np.bincount(drawn.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)
    # einsum adds in one fixed order; a BLAS product may depend on its number of threads in the last digit.
    return np.einsum("rn,nm->rm", counts, rows)


def percentile_rank(quantile: float, resamples: int) -> int:
    """Return the position in the sorted resamples, the paper's int(q R); the small term undoes (1 - .95) / 2 < .025."""
    return min(int(quantile * resamples + 1e-9), resamples - 1)


def t_interval(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> Interval | None:
    """Return Student's t interval of a mean over seeds: mean +- t(n - 1) s / sqrt(n), s with n - 1.

    Args:
        values: (n,) one value a seed.
        level: confidence level.

    Returns:
        None for a single value; [x, x] marked degenerate where all values are equal.
    """
    sample = np.sort(_checked(values))
    n = len(sample)
    if n == 1:
        return None
    if sample[0] == sample[-1]:
        return Interval(float(sample[0]), float(sample[0]), n, "t", True)
    from scipy.special import stdtrit  # here, because most tables and figures need no interval

    mean = math.fsum(sample) / n
    half = float(stdtrit(n - 1, (1 + level) / 2)) * float(sample.std(ddof=1)) / math.sqrt(n)
    return Interval(mean - half, mean + half, n, "t")


def wilson_interval(k: int, n: int, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval of a share k of n, such as the runs that crossed (Wilson 1927).

    Unlike mean +- z sd it stays inside [0, 1] and has a width at k = 0 and k = n.

    Raises:
        ValueError: n below 1, or k outside 0..n.
    """
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"a share needs n >= 1 and 0 <= k <= n (given: k {k}, n {n})")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, correction = k / n, z * z / n
    centre = (share + correction / 2) / (1 + correction)
    half = z * math.sqrt(share * (1 - share) / n + correction / (4 * n)) / (1 + correction)
    # At k = 0 and k = n the exact ends are 0 and 1; rounding must not move them outside.
    low = 0.0 if k == 0 else centre - half
    high = 1.0 if k == n else centre + half
    return Interval(low, high, n, "wilson")


def median(values: Sequence[float] | np.ndarray) -> float:
    """Return the median over runs; infinity is a run that did not cross, which is later than every crossing.

    Infinite if the middle run did not cross (or one of the two middle ones).

    Raises:
        ValueError: no values, or NaN among them.
    """
    ordered = np.sort(_not_nan(values))
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def quartiles(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 25, 50 and 75 % quantiles over runs, linear between order statistics (of five runs: 2nd, 3rd and 4th).

    Args:
        values: (runs, ...) finite; runs are the first axis.

    Returns:
        q25, median, q75, each of the shape (...).

    Raises:
        ValueError: no run, or a value that is not finite.
    """
    array = _not_nan(values)
    if not np.isfinite(array).all():
        raise ValueError("quartiles need finite values; take `median` where some runs did not cross")
    low, middle, high = np.quantile(array, [0.25, 0.5, 0.75], axis=0)
    return low, middle, high


def _not_nan(values: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or not len(array) or np.isnan(array).any():
        raise ValueError(f"need at least one run and no NaN (given: shape {array.shape})")
    return array


def _checked(values: Sequence[float] | np.ndarray) -> np.ndarray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ValueError(f"an interval needs one or more values in one dimension (given: shape {sample.shape})")
    wrong = np.flatnonzero(~np.isfinite(sample))
    if len(wrong):
        place = f"value {wrong[0] + 1} of {len(sample)}"
        raise ValueError(f"an interval needs finite values; {place} is {sample[wrong[0]]}")
    return sample
