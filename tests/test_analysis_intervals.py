"""Intervals against SciPy, known values and variances, and their independence of row order and global state."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dara.analysis import intervals
from dara.analysis.intervals import (
    Interval,
    bootstrap_interval,
    bootstrap_intervals,
    hierarchical_interval,
    keyed_generator,
    median,
    metric_differences,
    t_interval,
    wilson_interval,
)
from dara.evaluation.records import Metric

KEY = ("k",)


def bootstrap(values, key: str = "k", **settings) -> Interval | None:
    return bootstrap_interval(values, key=key, **settings)


@pytest.fixture
def many(monkeypatch):
    """Ten times as many resamples."""
    monkeypatch.setattr(intervals, "RESAMPLES", 20_000)


def near(interval, tolerance: float) -> Interval:
    ends = interval if isinstance(interval, tuple) else (interval.low, interval.high)
    return Interval(*(pytest.approx(end, abs=tolerance) for end in ends))


# The bootstrap over questions


def test_percentile_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(1).gamma(2, size=120)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    found = bootstrap(values, resamples=20_000)
    assert found == near(theirs, 0.01)
    assert (found.n, found.kind, found.degenerate) == (120, "bootstrap", False)


def test_bootstrap_takes_the_order_statistics_of_the_paper():
    values = np.array([0.0, 1.0, 2.0, 5.0])
    means = np.sort(values[keyed_generator("key").integers(4, size=(2000, 4))].mean(axis=1))
    assert bootstrap(values, "key") == near(Interval(means[50], means[1950]), 1e-12)


def test_stratified_bootstrap_keeps_each_group():
    values, groups = np.repeat([0.0, 1.0], 50)[:, None], np.repeat([0, 1], 50)
    plain, stratified = (
        bootstrap_intervals(values, np.full_like(values, 0.01), strata, KEY)[0] for strata in (groups * 0, groups)
    )
    assert plain.low < 0.42
    assert plain.high > 0.58
    assert stratified == near(Interval(0.5, 0.5), 1e-12)
    assert bootstrap(values[::-1, 0], strata=["b"] * 50 + ["a"] * 50) == stratified
    assert stratified.degenerate


def test_one_value_has_no_interval_and_a_constant_sample_one_of_no_width():
    assert (bootstrap([0.3]), t_interval([0.3])) == (None, None)
    assert bootstrap([0.3] * 6) == near(Interval(0.3, 0.3), 1e-12)
    assert t_interval([0.3] * 6) == Interval(0.3, 0.3)
    assert t_interval([0.3] * 6).degenerate


def test_weighted_sums_equal_single_bootstraps_in_distribution():
    values = np.random.default_rng(3).random((90, 2))
    groups = np.repeat([0, 1, 2], [60, 20, 10])
    sizes = np.bincount(groups)[groups]
    weights = np.stack([1 / (3 * sizes), np.where(groups == 1, 1 / 20, 0.0)], axis=1)
    macro, single = bootstrap_intervals(values, weights, groups, KEY, 20_000)
    assert single == near(bootstrap(values[groups == 1, 1], "other", resamples=20_000), 0.01)
    # A stratified mean of means has the variance sum (1/3)^2 s_c^2 / n_c; 1.96 of its roots is the half width.
    variance = sum(values[groups == c, 0].var() / (groups == c).sum() / 9 for c in range(3))
    assert macro.high - macro.low == pytest.approx(2 * 1.96 * math.sqrt(variance), rel=0.05)


@pytest.mark.parametrize(("n", "expected"), [(3, 0.76), (10, 0.90)])
def test_coverage_of_the_bootstrap_over_few_seeds_is_what_the_documentation_says(n, expected):
    samples = np.random.default_rng(11).normal(size=(400, n))
    boot = [bootstrap(sample, str(i), resamples=400) for i, sample in enumerate(samples)]
    student = [t_interval(sample) for sample in samples]
    assert np.mean([i.low <= 0 <= i.high for i in boot]) == pytest.approx(expected, abs=0.06)
    assert np.mean([i.low <= 0 <= i.high for i in student]) == pytest.approx(0.95, abs=0.035)


# Over seeds and questions together


def metric(values, strata=None) -> Metric:
    """Every category counts alike, every question of a category counts alike."""
    names = np.array(strata if strata is not None else ["a"] * len(values), dtype=object)
    sizes = np.array([(names == name).sum() for name in names])
    return Metric(np.asarray(values, dtype=float), names, 1 / (len(set(names)) * sizes))


def made(seeds: int, questions: int, *, between: float, rng: np.random.Generator) -> dict[int, Metric]:
    """Scores of seeds around .5: `between` is the spread of the seeds; questions are hard or easy for all of them."""
    hard = rng.normal(0, 0.3, questions)
    shift = rng.normal(0, between, seeds)
    return {s: metric(0.5 + shift[s] + hard + rng.normal(0, 0.3, questions)) for s in range(seeds)}


def test_one_seed_has_the_bootstrap_over_its_questions_and_a_constant_one_no_width():
    values = [0, 1, 1, 0, 1, 0, 1, 1, 1, 1] * 10
    assert hierarchical_interval({1: metric(values)}, KEY) == near(bootstrap(values, "q"), 0.02)
    same = {seed: metric([1, 1, 0], ["a", "a", "b"]) for seed in (1, 2, 3)}
    assert hierarchical_interval(same, KEY) == Interval(0.5, 0.5)


def test_constant_questions_leave_a_bootstrap_of_the_seeds(many):
    scores = [0.1, 0.3, 0.4, 0.8]
    found = hierarchical_interval({s: metric([x] * 10) for s, x in enumerate(scores)}, KEY)
    assert found == near(bootstrap(scores, "b"), 0.03)


def test_width_has_the_variance_of_seeds_and_of_shared_questions():
    runs = made(40, 120, between=0.02, rng=np.random.default_rng(4))
    values = np.stack([run.values for run in runs.values()])
    found = hierarchical_interval(runs, KEY)
    # What is left of the questions of one seed after the mean over seeds adds a little.
    extra = (values - values.mean(axis=0)).var(axis=1).mean() / 120 / 40
    variance = values.mean(axis=1).var() / 40 + values.mean(axis=0).var() / 120 + extra
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(variance), rel=0.08)


def test_strata_keep_their_size_and_their_weight():
    # Each category is constant, so only the seeds are left; without strata the questions would vary.
    runs = {s: metric([x] * 30 + [1 - x] * 3, ["a"] * 30 + ["b"] * 3) for s, x in enumerate((0.2, 0.9))}
    assert hierarchical_interval(runs, KEY) == near(Interval(0.5, 0.5), 1e-9)


def test_it_is_wider_than_a_bootstrap_of_the_questions_and_covers_other_seeds(monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 400)
    rng = np.random.default_rng(8)
    covered = {"questions": 0, "both": 0}
    repetitions = 100
    for i in range(repetitions):
        runs = made(5, 100, between=0.1, rng=rng)
        means = np.mean([run.values for run in runs.values()], axis=0)
        found = {"questions": bootstrap(means, str(i)), "both": hierarchical_interval(runs, (str(i),))}
        for name, interval in found.items():
            covered[name] += interval.low <= 0.5 <= interval.high
        assert found["both"].high - found["both"].low > found["questions"].high - found["questions"].low
    assert covered["questions"] < 0.8 * repetitions
    assert covered["both"] >= 0.84 * repetitions


VALUES = st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=2, max_size=4)


@settings(max_examples=30, deadline=None)
@given(values=VALUES, data=st.data())
def test_neither_the_order_of_seeds_nor_of_questions_matters(values, data):
    strata = np.array(["a", "a", "a", "b", "b"])
    expected = hierarchical_interval({seed: metric(row, strata) for seed, row in enumerate(values)}, KEY)
    order, seeds = data.draw(st.permutations(range(5))), data.draw(st.permutations(range(len(values))))
    moved = {seed: metric(np.array(values[seed])[order], strata[order]) for seed in seeds}
    assert hierarchical_interval(moved, KEY) == near(expected, 1e-12)


def test_key_alone_decides_the_resamples():
    runs, values = made(3, 20, between=0.1, rng=np.random.default_rng(0)), np.arange(20.0)
    np.random.seed(1)
    expected = np.random.random(3)
    np.random.seed(1)
    first, both = bootstrap(values, "a"), hierarchical_interval(runs, ("t", "a"))
    np.testing.assert_array_equal(np.random.random(3), expected)  # the global state is untouched
    assert (bootstrap(values, "a"), hierarchical_interval(runs, ("t", "a"))) == (first, both)
    assert bootstrap(values, "b") != first
    assert hierarchical_interval(runs, ("t", "b")) != both
    assert keyed_generator("a", "b").random() != keyed_generator("ab").random()


def test_differences_are_paired_in_seeds_and_questions():
    gdpo = made(4, 60, between=0.1, rng=np.random.default_rng(2))
    dara = {seed: metric(run.values + 0.05) for seed, run in gdpo.items()} | {9: metric([0.5] * 60)}
    differences = metric_differences(dara, gdpo)
    assert sorted(differences) == [0, 1, 2, 3]
    assert hierarchical_interval(differences, KEY) == near(Interval(0.05, 0.05), 1e-7)


@pytest.mark.parametrize("other", [metric([0, 1, 1]), metric([0, 1], ["a", "b"])])
def test_unlike_questions_are_an_error(other):
    with pytest.raises(ValueError, match="seed 2: other questions, strata or weights than seed 1"):
        hierarchical_interval({1: metric([0, 1]), 2: other}, KEY)


# Over seeds


@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=12), data=st.data())
def test_row_order_does_not_matter(values, data):
    shuffled = data.draw(st.permutations(values))
    assert t_interval(values) == t_interval(shuffled)
    assert bootstrap(values, resamples=200) == bootstrap(shuffled, resamples=200)


def test_t_interval_agrees_with_scipy():
    values = [24.0, 25.0, 24.0, 26.0, 31.0]
    assert t_interval(values) == near(stats.t.interval(0.95, 4, loc=26.0, scale=stats.sem(values)), 1e-9)


@pytest.mark.parametrize(("k", "n"), [(0, 3), (1, 3), (3, 3), (3, 5), (37, 60), (0, 1), (1, 1)])
def test_wilson_agrees_with_scipy(k, n):
    interval = wilson_interval(k, n)
    assert interval == near(stats.binomtest(k, n).proportion_ci(0.95, method="wilson"), 1e-12)
    assert 0 <= interval.low <= k / n <= interval.high <= 1


def test_median_with_runs_that_did_not_get_there():
    inf = math.inf
    for runs, middle in (([30, 10, 20], 20), ([10, inf, 20], 20), ([10, 20, 30, inf], 25), ([10, inf], inf)):
        assert median(runs) == middle
    assert median([10, inf, inf]) == inf


UNEQUAL = Metric(np.array([0.0, 1.0]), np.array(["a", "a"]), np.array([0.3, 0.7]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap([]), "one or more values"),
        (lambda: bootstrap([1, float("nan")]), "value 2 of 2 is nan"),
        (lambda: bootstrap([1, 2], strata=["a"]), "one group for each of the 2 values"),
        (lambda: bootstrap([1, 2], ""), "key must be"),
        (lambda: bootstrap([1, 2], resamples=0), "resamples must be at least 1"),
        (lambda: hierarchical_interval({}, KEY), "at least one seed"),
        (lambda: hierarchical_interval({1: metric([0, math.inf])}, KEY), "seed 1: question 2 has the value inf"),
        (lambda: hierarchical_interval({1: UNEQUAL}, KEY), "seed 1: the weights of the stratum 'a' differ"),
        (lambda: t_interval([[1, 2]]), "one dimension"),
        (lambda: wilson_interval(0, 0), "n >= 1"),
        (lambda: wilson_interval(4, 3), "0 <= k <= n"),
        (lambda: median([]), "at least one run"),
        (lambda: median([1, float("nan")]), "no NaN"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
