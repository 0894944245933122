"""Intervals against SciPy, against known values, and their independence of row order and global state."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dara.analysis.intervals import (
    Interval,
    bootstrap_interval,
    bootstrap_intervals,
    keyed_generator,
    median,
    quartiles,
    t_interval,
    wilson_interval,
)

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def test_percentile_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(1).gamma(2, size=120)
    ours = bootstrap_interval(values, key="check", resamples=20_000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)
    assert (ours.n, ours.kind, ours.degenerate) == (120, "bootstrap", False)


def test_bootstrap_takes_the_order_statistics_of_the_paper():
    values, key = np.array([0.0, 1.0, 2.0, 5.0]), ("figure", "metric", "method")
    drawn = keyed_generator(*key).integers(4, size=(2000, 4))
    means = np.sort(values[drawn].mean(axis=1))
    interval = bootstrap_interval(values, key=key)
    assert interval.low == pytest.approx(means[50], abs=1e-12)
    assert interval.high == pytest.approx(means[1950], abs=1e-12)


def test_stratified_bootstrap_keeps_each_group():
    values, groups = np.repeat([0.0, 1.0], 50)[:, None], np.repeat([0, 1], 50)
    plain, stratified = (
        bootstrap_intervals(values, np.full_like(values, 0.01), strata, key="k")[0] for strata in (groups * 0, groups)
    )
    assert plain.low < 0.42
    assert plain.high > 0.58
    assert stratified == Interval(pytest.approx(0.5), pytest.approx(0.5), 100, "bootstrap", degenerate=True)


def test_one_value_has_no_interval_and_a_constant_sample_a_marked_one():
    assert bootstrap_interval([0.3], key="k") is None
    assert t_interval([0.3]) is None
    assert bootstrap_interval([0.3] * 6, key="k") == Interval(
        pytest.approx(0.3), pytest.approx(0.3), 6, "bootstrap", True
    )
    assert t_interval([0.3] * 6) == Interval(0.3, 0.3, 6, "t", True)


def test_weighted_sums_equal_single_bootstraps_in_distribution():
    rng = np.random.default_rng(3)
    values = rng.random((90, 2))
    groups = np.repeat([0, 1, 2], [60, 20, 10])
    sizes = np.bincount(groups)[groups]
    weights = np.stack([1 / (3 * sizes), np.where(groups == 1, 1 / 20, 0.0)], axis=1)
    macro, single = bootstrap_intervals(values, weights, groups, key="k", resamples=20_000)
    alone = bootstrap_interval(values[groups == 1, 1], key="other", resamples=20_000)
    assert (macro.n, single.n) == (90, 20)
    assert (single.low, single.high) == (pytest.approx(alone.low, abs=0.01), pytest.approx(alone.high, abs=0.01))
    # A stratified mean of means has the variance sum (1/3)^2 s_c^2 / n_c; 1.96 of its roots is the half width.
    variance = sum(values[groups == c, 0].var() / (groups == c).sum() / 9 for c in range(3))
    assert macro.high - macro.low == pytest.approx(2 * 1.96 * math.sqrt(variance), rel=0.05)


@settings(max_examples=40, deadline=None)
@given(values=VALUES, data=st.data())
def test_row_order_does_not_matter(values, data):
    shuffled = data.draw(st.permutations(values))
    assert bootstrap_interval(values, key="k", resamples=200) == bootstrap_interval(shuffled, key="k", resamples=200)
    assert t_interval(values) == t_interval(shuffled)


def test_key_alone_decides_the_resamples():
    values = np.arange(20.0)
    np.random.seed(1)
    expected = np.random.random(3)
    np.random.seed(1)
    first = bootstrap_interval(values, key=("fig", "format", "gdpo"))
    np.testing.assert_array_equal(np.random.random(3), expected)  # the global state is untouched
    assert bootstrap_interval(values, key=("fig", "format", "gdpo")) == first
    assert bootstrap_interval(values, key=("fig", "format", "grpo")) != first
    assert keyed_generator("a", "b").random() != keyed_generator("ab").random()


@pytest.mark.parametrize(("n", "expected"), [(3, 0.76), (10, 0.90)])
def test_coverage_of_the_bootstrap_over_few_seeds_is_what_the_documentation_says(n, expected):
    samples = np.random.default_rng(11).normal(size=(400, n))
    boot = [bootstrap_interval(sample, key=str(i), resamples=400) for i, sample in enumerate(samples)]
    student = [t_interval(sample) for sample in samples]
    assert np.mean([i.low <= 0 <= i.high for i in boot]) == pytest.approx(expected, abs=0.06)
    assert np.mean([i.low <= 0 <= i.high for i in student]) == pytest.approx(0.95, abs=0.035)


def test_t_interval_agrees_with_scipy():
    values = [24.0, 25.0, 24.0, 26.0, 31.0]
    interval = t_interval(values)
    low, high = stats.t.interval(0.95, 4, loc=26.0, scale=stats.sem(values))
    assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))
    assert (interval.n, interval.kind) == (5, "t")


@pytest.mark.parametrize(("k", "n"), [(0, 3), (1, 3), (3, 3), (3, 5), (37, 60), (0, 1), (1, 1)])
def test_wilson_agrees_with_scipy(k, n):
    interval = wilson_interval(k, n)
    theirs = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert (interval.low, interval.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert 0 <= interval.low <= k / n <= interval.high <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([], key="k"), "one or more values"),
        (lambda: bootstrap_interval([1, float("nan")], key="k"), "value 2 of 2 is nan"),
        (lambda: bootstrap_interval([1, 2], key=""), "key must be"),
        (lambda: bootstrap_interval([1, 2], key="k", resamples=0), "resamples must be at least 1"),
        (lambda: t_interval([[1, 2]]), "one dimension"),
        (lambda: wilson_interval(0, 0), "n >= 1"),
        (lambda: wilson_interval(4, 3), "0 <= k <= n"),
        (lambda: median([]), "at least one run"),
        (lambda: median([1, float("nan")]), "no NaN"),
        (lambda: quartiles([1, float("inf")]), "finite values"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_median_with_runs_that_did_not_get_there():
    inf = math.inf
    assert median([30, 10, 20]) == 20
    assert median([10, inf, 20]) == 20
    assert median([10, 20, 30, inf]) == 25
    assert median([10, inf]) == inf
    assert median([10, inf, inf]) == inf


def test_quartiles_of_five_runs_are_order_statistics():
    low, middle, high = quartiles([[5, 1], [1, 1], [4, 1], [2, 1], [3, 1]])
    np.testing.assert_array_equal([low, middle, high], [[2, 1], [3, 1], [4, 1]])
