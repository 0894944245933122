"""Intervals: percentile bootstrap over questions, hierarchical over seeds and questions, Student's t, and Wilson.

docs/statistics.md gives the use of each, and the reasons.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from dara.evaluation.records import Metric

RESAMPLES = 2000
"""Bootstrap resamples, as in the paper."""

LEVEL = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    `n`: number of values, and `kind` of interval, where they are known. `degenerate`: the values are all equal, so that
    `low` = `high` says nothing about the spread.
    """

    low: float
    high: float
    n: int = field(default=0, compare=False)
    kind: Literal["", "bootstrap", "t", "wilson"] = field(default="", compare=False)
    degenerate: bool = field(default=False, compare=False)


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
    strata: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval | None:
    """Return the percentile bootstrap interval of a mean over questions or over seeds, in whatever order they are.

    Args:
        values: (n,) one value a question or a seed.
        key: the key of the resamples, such as ("scores", "accuracy", "gdpo").
        strata: (n,) group of each value; each group is resampled on its own and keeps its size.
        resamples: number of resamples.
        level: confidence level.

    Returns:
        None for a single value; [x, x] marked degenerate where the values of each stratum are equal.

    Raises:
        ValueError: values that are not finite or not one-dimensional, strata of another length, or a wrong number.
    """
    sample = _checked(values)
    names = np.zeros(len(sample), dtype=int) if strata is None else np.asarray(strata)
    if names.shape != sample.shape:
        raise ValueError(
            f"strata must name one group for each of the {len(sample)} values (given: shape {names.shape})"
        )
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"resamples must be at least 1 and level between 0 and 1 (given: {resamples}, {level})")
    groups = np.unique(names, return_inverse=True)[1]
    order = np.lexsort((sample, groups))
    sample, groups, key = sample[order], groups[order], (key,) if isinstance(key, str) else key
    total = bootstrap_intervals(sample[:, None], np.ones((len(sample), 1)), groups, key, resamples, level)[0]
    if total is None:
        return None
    if sample.min() == sample.max():  # then the mean is that value, which dividing a sum may miss by a digit
        return Interval(float(sample[0]), float(sample[0]), len(sample), "bootstrap", True)
    return Interval(total.low / len(sample), total.high / len(sample), total.n, "bootstrap", total.degenerate)


def bootstrap_intervals(
    values: np.ndarray,
    weights: np.ndarray,
    groups: np.ndarray,
    key: tuple[str, ...],
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
        key: the key of the resamples, such as ("scores", "accuracy", "gdpo").

    Returns:
        M intervals; None for a statistic of a single question.
    """
    rng, terms = keyed_generator(*key), values * weights
    constant = np.ones(values.shape[1], dtype=bool)
    sums = np.zeros((resamples, values.shape[1]))
    for group in np.unique(groups):
        rows = terms[groups == group]
        constant &= (rows == rows[0]).all(axis=0)
        # Each group is resampled on its own, so every resample has the same number of questions of each category.
        sums += _resampled_sums(rows, resamples, rng)
    intervals: list[Interval | None] = []
    for m, n in enumerate((weights > 0).sum(axis=0)):
        point = math.fsum(terms[:, m])
        ends = Interval(point, point) if constant[m] else percentile_interval(sums[:, m], level)
        intervals.append(Interval(ends.low, ends.high, int(n), "bootstrap", bool(constant[m])) if n > 1 else None)
    return intervals


def hierarchical_interval(metrics: Mapping[Any, Metric], key: tuple[str, ...]) -> Interval:
    """Return the percentile bootstrap of the mean score over seeds: S seeds are drawn, then questions in each stratum.

    One draw of questions serves all seeds of a resample: a hard question is hard for every seed, and independent draws
    would average that away. For a single seed it is the bootstrap over questions, which says nothing about other seeds.
    Neither the order of the seeds nor the order of the questions (the same for all seeds) matters.

    Args:
        metrics: for each seed (the keys must sort), values, strata and weights (Q,) of the questions, the same for all.
        key: the key of the resamples.

    Raises:
        ValueError: seeds with other questions, strata or weights than the first.
    """
    seeds = sorted(metrics)
    chosen = [metrics[seed] for seed in seeds]
    if not chosen:
        raise ValueError("a hierarchical bootstrap needs the metric of at least one seed")
    for seed, metric in zip(seeds, chosen, strict=True):
        _check_metric(f"seed {seed}", metric)
    _check_shared(seeds, chosen)
    rng, scores = keyed_generator(*key), [metric.score for metric in chosen]
    names, groups = np.unique(np.asarray(chosen[0].strata, dtype=str), return_inverse=True)
    strata = [groups == group for group in range(len(names))]
    # Equal scores and constant strata give the same mean in every resample.
    if len(set(scores)) == 1 and all(np.ptp(metric.values[mine]) == 0 for metric in chosen for mine in strata):
        point = math.fsum(scores) / len(scores)
        return Interval(point, point)
    drawn = rng.integers(len(chosen), size=(RESAMPLES, len(chosen)))
    terms = np.stack([metric.values * metric.weights for metric in chosen], axis=1)
    sums = np.zeros((RESAMPLES, len(chosen)))
    for mine in strata:
        rows = terms[mine]
        # Sorted, so that the order of questions does not matter.
        sums += _resampled_sums(rows[np.lexsort(rows.T[::-1])], RESAMPLES, rng)
    return percentile_interval(np.take_along_axis(sums, drawn, axis=1).mean(axis=1))


def metric_differences(first: Mapping[Any, Metric], second: Mapping[Any, Metric]) -> dict[Any, Metric]:
    """Return for each common seed the metric of the difference first - second, question by question.

    Its hierarchical bootstrap is paired in seeds and in questions. Its values lie in [-1, 1]. Raise ValueError if the
    two were not scored on the same questions with the same weights.
    """
    differences = {}
    for seed in sorted(first.keys() & second.keys()):
        a, b = first[seed], second[seed]
        _check_shared([f"{seed} (first)", f"{seed} (second)"], [a, b])
        differences[seed] = Metric(a.values - b.values, a.strata, a.weights)
    return differences


def _check_metric(where: str, metric: Metric) -> None:
    wrong = np.flatnonzero(~np.isfinite(metric.values))
    if len(wrong):
        value = metric.values[wrong[0]]
        raise ValueError(f"{where}: question {wrong[0] + 1} has the value {value}; it must be finite")
    names = np.asarray(metric.strata, dtype=str)
    for name in np.unique(names):
        if np.ptp(metric.weights[names == name]) > 1e-12:
            raise ValueError(f"{where}: the weights of the stratum {str(name)!r} differ; its questions count alike")


def _check_shared(seeds: Sequence[Any], metrics: Sequence[Metric]) -> None:
    first = metrics[0]
    for seed, metric in zip(seeds, metrics, strict=True):
        alike = len(metric.values) == len(first.values) and np.array_equal(metric.strata, first.strata)
        if not alike or not np.allclose(metric.weights, first.weights, rtol=0, atol=1e-12):
            raise ValueError(
                f"seed {seed}: other questions, strata or weights than seed {seeds[0]}; shared questions are the same "
                "for all seeds and stand in the same order"
            )


def _resampled_sums(rows: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Return the sums (resamples, M) of n rows drawn with replacement from `rows` (n, M)."""
    n = len(rows)
    drawn = rng.integers(n, size=(resamples, n))
    drawn += np.arange(resamples)[:, None] * n
    counts = np.bincount(drawn.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)
    # einsum adds in one fixed order; a BLAS product may depend on its number of threads in the last digit.
    return np.einsum("rn,nm->rm", counts, rows)


def percentile_interval(drawn: np.ndarray, level: float = LEVEL) -> Interval:
    """Return the interval between the order statistics of the resamples (R,) at the paper's ranks int(q R)."""
    ordered = np.sort(drawn)
    # The small term undoes (1 - .95) / 2 < .025.
    ranks = (min(int((1 + side * level) / 2 * len(drawn) + 1e-9), len(drawn) - 1) for side in (-1, 1))
    return Interval(*(float(ordered[rank]) for rank in ranks))


def t_interval(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> Interval | None:
    """Return Student's t interval of a mean over seeds: mean +- t(n - 1) s / sqrt(n), s with n - 1.

    `values` (n,) has one value a seed, all finite; of a single one there is no interval.
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
    """
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"a share needs n >= 1 and 0 <= k <= n (given: k {k}, n {n})")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, correction = k / n, z * z / n
    centre = (share + correction / 2) / (1 + correction)
    half = z * math.sqrt(share * (1 - share) / n + correction / (4 * n)) / (1 + correction)
    # At k = 0 and k = n the exact ends are 0 and 1; rounding must not move them outside.
    return Interval(0.0 if k == 0 else centre - half, 1.0 if k == n else centre + half, n, "wilson")


def median(values: Sequence[float] | np.ndarray) -> float:
    """Return the median over runs; infinity is a run that did not cross, which is later than every crossing."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or not len(array) or np.isnan(array).any():
        raise ValueError(f"need at least one run and no NaN (given: shape {array.shape})")
    return float(np.median(array))


def _checked(values: Sequence[float] | np.ndarray) -> np.ndarray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ValueError(f"an interval needs one or more values in one dimension (given: shape {sample.shape})")
    wrong = np.flatnonzero(~np.isfinite(sample))
    if len(wrong):
        place = f"value {wrong[0] + 1} of {len(sample)}"
        raise ValueError(f"an interval needs finite values; {place} is {sample[wrong[0]]}")
    return sample
