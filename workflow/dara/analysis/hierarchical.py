"""Hierarchical bootstrap of a score: seeds are drawn, then questions, so the interval covers both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dara.analysis.intervals import LEVEL, RESAMPLES, Interval, keyed_generator, percentile_rank, resampled_sums
from dara.evaluation.records import Metric


def hierarchical_interval(
    metrics: Mapping[Any, Metric],
    *,
    key: str | tuple[str, ...],
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the percentile bootstrap of the mean score over seeds: S seeds are drawn, then questions in each stratum.

    One draw of questions serves all seeds of a resample: a hard question is hard for every seed, and independent draws
    would average that away. For a single seed it is the bootstrap over questions, which says nothing about other seeds.
    Neither the order of the seeds nor the order of the questions (the same for all seeds) matters.

    Args:
        metrics: for each seed (the keys must sort), values, strata and weights (Q,) of the questions, the same for all.
        key: the key of the resamples.

    Returns:
        An interval whose n is the number of seeds; [x, x] marked degenerate where all scores are equal and so are the
        values of each stratum.

    Raises:
        ValueError: no seed; a value that is not finite; weights that differ within a stratum; seeds with other
            questions, strata or weights than the first.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1 (given: {resamples})")
    chosen = _chosen(metrics)
    rng = keyed_generator(*((key,) if isinstance(key, str) else key))
    scores = [metric.score for metric in chosen]
    point = math.fsum(scores) / len(scores)
    # Equal scores and constant strata give the same mean in every resample.
    if len(set(scores)) == 1 and all(_constant(metric) for metric in chosen):
        return Interval(point, point, len(chosen), "hierarchical bootstrap", True)
    drawn = rng.integers(len(chosen), size=(resamples, len(chosen)))
    means = np.sort(_drawn_scores(chosen, drawn, rng).mean(axis=1))
    low, high = (float(means[percentile_rank((1 + side * LEVEL) / 2, resamples)]) for side in (-1, 1))
    return Interval(low, high, len(chosen), "hierarchical bootstrap")


def metric_differences(first: Mapping[Any, Metric], second: Mapping[Any, Metric]) -> dict[Any, Metric]:
    """Return for each common seed the metric of the difference first - second, question by question.

    Its hierarchical bootstrap is paired in seeds and in questions. Its values lie in [-1, 1].

    Raises:
        ValueError: the two were not scored on the same questions with the same weights.
    """
    differences = {}
    for seed in sorted(first.keys() & second.keys()):
        a, b = first[seed], second[seed]
        _check_shared([f"{seed} (first)", f"{seed} (second)"], [a, b])
        differences[seed] = Metric(a.values - b.values, a.strata, a.weights)
    return differences


def _drawn_scores(metrics: list[Metric], drawn: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the scores (R, S) of the drawn seeds (R, S); a resample has one draw of the questions for all of them."""
    terms = np.stack([metric.values * metric.weights for metric in metrics], axis=1)
    names, groups = np.unique(np.asarray(metrics[0].strata, dtype=str), return_inverse=True)
    scores = np.zeros((len(drawn), len(metrics)))
    for group in range(len(names)):
        rows = terms[groups == group]
        rows = rows[np.lexsort(rows.T[::-1])]  # so that the order of the questions does not matter
        scores += resampled_sums(rows, len(drawn), rng)
    return np.take_along_axis(scores, drawn, axis=1)


def _chosen(metrics: Mapping[Any, Metric]) -> list[Metric]:
    """Return the checked metrics in the order of their seeds."""
    if not metrics:
        raise ValueError("a hierarchical bootstrap needs the metric of at least one seed")
    seeds = sorted(metrics)
    chosen = [metrics[seed] for seed in seeds]
    for seed, metric in zip(seeds, chosen, strict=True):
        _check(metric, f"seed {seed}")
    _check_shared(seeds, chosen)
    return chosen


def _constant(metric: Metric) -> bool:
    strata = np.asarray(metric.strata, dtype=str)
    return all(np.ptp(metric.values[strata == name]) == 0 for name in np.unique(strata))


def _check(metric: Metric, where: str) -> None:
    lengths = {len(metric.values), len(metric.strata), len(metric.weights)}
    if len(lengths) != 1 or not len(metric.values):
        raise ValueError(f"{where}: values, strata and weights must have one entry a question (given: {lengths})")
    wrong = np.flatnonzero(~np.isfinite(metric.values))
    if len(wrong):
        raise ValueError(f"{where}: question {wrong[0] + 1} has the value {metric.values[wrong[0]]}; it must be finite")
    strata = np.asarray(metric.strata, dtype=str)
    for name in np.unique(strata):
        weights = metric.weights[strata == name]
        if np.ptp(weights) > 1e-12:
            raise ValueError(f"{where}: the weights of the stratum {str(name)!r} differ; its questions count alike")


def _check_shared(seeds: list[Any], metrics: list[Metric]) -> None:
    first = metrics[0]
    for seed, metric in zip(seeds, metrics, strict=True):
        alike = len(metric.values) == len(first.values) and np.array_equal(metric.strata, first.strata)
        if not alike or not np.allclose(metric.weights, first.weights, rtol=0, atol=1e-12):
            raise ValueError(
                f"seed {seed}: other questions, strata or weights than seed {seeds[0]}; shared questions are the same "
                "for all seeds and stand in the same order"
            )
