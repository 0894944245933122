"""The hierarchical bootstrap: exact small cases, known variances, invariances, and its width."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.analysis.hierarchical import hierarchical_interval, metric_differences
from dara.analysis.intervals import Interval, bootstrap_interval
from dara.evaluation.records import Metric


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


@pytest.mark.parametrize("shared", [True, False])
def test_one_seed_has_the_bootstrap_over_its_questions_and_a_constant_one_is_marked(shared):
    values = [0, 1, 1, 0, 1, 0, 1, 1, 1, 1] * 10
    found = hierarchical_interval({1: metric(values)}, key="k", shared=shared)
    questions = bootstrap_interval(values, key="q")
    assert (found.low, found.high) == (pytest.approx(questions.low, abs=0.02), pytest.approx(questions.high, abs=0.02))
    assert found.n == 1
    same = {seed: metric([1, 1, 0], ["a", "a", "b"]) for seed in (1, 2, 3)}
    assert hierarchical_interval(same, key="k", shared=shared) == Interval(0.5, 0.5, 3, "hierarchical bootstrap", True)


@pytest.mark.parametrize("shared", [True, False])
def test_constant_questions_leave_a_bootstrap_of_the_seeds(shared):
    scores = [0.1, 0.3, 0.4, 0.8]
    found = hierarchical_interval(
        {s: metric([x] * 10) for s, x in enumerate(scores)}, key="a", shared=shared, resamples=20_000
    )
    seeds = bootstrap_interval(scores, key="b", resamples=20_000)
    assert (found.low, found.high) == (pytest.approx(seeds.low, abs=0.03), pytest.approx(seeds.high, abs=0.03))
    assert (found.n, found.kind, found.degenerate) == (4, "hierarchical bootstrap", False)


def test_width_has_the_variance_of_seeds_and_of_shared_or_own_questions():
    rng = np.random.default_rng(4)
    runs = made(40, 120, between=0.02, rng=rng)
    values = np.stack([run.values for run in runs.values()])
    seeds = values.mean(axis=1).var() / 40
    for shared, questions in ((True, values.mean(axis=0).var() / 120), (False, values.var(axis=1).mean() / 120 / 40)):
        found = hierarchical_interval(runs, key="k", shared=shared, resamples=4000)
        # shared: what is left of the questions of one seed after the mean over seeds adds a little
        extra = (values - values.mean(axis=0)).var(axis=1).mean() / 120 / 40 if shared else 0
        assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(seeds + questions + extra), rel=0.08)


def test_strata_keep_their_size_and_their_weight():
    # Each category is constant, so only the seeds are left; without strata the questions would vary.
    runs = {s: metric([x] * 30 + [1 - x] * 3, ["a"] * 30 + ["b"] * 3) for s, x in enumerate((0.2, 0.9))}
    for shared in (True, False):
        found = hierarchical_interval(runs, key="k", shared=shared)
        assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.5))


def test_it_is_wider_than_a_bootstrap_of_the_questions_and_covers_other_seeds():
    rng = np.random.default_rng(8)
    covered = {"questions": 0, "shared": 0, "nested": 0}
    repetitions = 100
    for i in range(repetitions):
        runs = made(5, 100, between=0.1, rng=rng)
        means = np.mean([run.values for run in runs.values()], axis=0)
        found = {
            "questions": bootstrap_interval(means, key=str(i), resamples=400),
            "shared": hierarchical_interval(runs, key=str(i), shared=True, resamples=400),
            "nested": hierarchical_interval(runs, key=str(i), shared=False, resamples=400),
        }
        for name, interval in found.items():
            covered[name] += interval.low <= 0.5 <= interval.high
        assert found["shared"].high - found["shared"].low > found["questions"].high - found["questions"].low
    assert covered["questions"] < 0.8 * repetitions
    assert covered["shared"] >= 0.84 * repetitions
    assert covered["nested"] <= covered["shared"]


def test_own_questions_may_differ_in_number():
    runs = {1: metric([0, 1, 1, 1]), 2: metric([0, 1], ["a", "b"]), 3: metric([0.5])}
    found = hierarchical_interval(runs, key="k", shared=False)
    assert 0 <= found.low < 0.58 < found.high <= 1


VALUES = st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=2, max_size=4)


@settings(max_examples=30, deadline=None)
@given(values=VALUES, shared=st.booleans(), data=st.data())
def test_neither_the_order_of_seeds_nor_of_questions_matters(values, shared, data):
    strata = np.array(["a", "a", "a", "b", "b"])
    runs = {seed: metric(row, strata) for seed, row in enumerate(values)}
    expected = hierarchical_interval(runs, key="k", shared=shared, resamples=100)
    order = data.draw(st.permutations(range(5)))
    moved = {
        seed: metric(np.array(values[seed])[order], strata[order])
        for seed in data.draw(st.permutations(range(len(values))))
    }
    found = hierarchical_interval(moved, key="k", shared=shared, resamples=100)
    assert (found.low, found.high) == (pytest.approx(expected.low, abs=1e-12), pytest.approx(expected.high, abs=1e-12))
    assert found.degenerate == expected.degenerate


def test_key_alone_decides_the_resamples():
    runs = made(3, 20, between=0.1, rng=np.random.default_rng(0))
    np.random.seed(1)
    first = hierarchical_interval(runs, key=("t", "a"), shared=True)
    np.random.seed(2)
    assert hierarchical_interval(runs, key=("t", "a"), shared=True) == first
    assert hierarchical_interval(runs, key=("t", "b"), shared=True) != first


def test_differences_are_paired_in_seeds_and_questions():
    rng = np.random.default_rng(2)
    gdpo = made(4, 60, between=0.1, rng=rng)
    dara = {seed: metric(run.values + 0.05) for seed, run in gdpo.items()} | {9: metric([0.5] * 60)}
    differences = metric_differences(dara, gdpo)
    assert sorted(differences) == [0, 1, 2, 3]
    found = hierarchical_interval(differences, key="k", shared=True)
    assert (found.low, found.high) == (pytest.approx(0.05), pytest.approx(0.05))


@pytest.mark.parametrize(
    ("runs", "shared", "message"),
    [
        ({}, True, "at least one seed"),
        ({1: metric([0.5, math.nan]), 2: metric([0, 1])}, True, "seed 1: question 2 has the value nan"),
        ({1: metric([0, 1]), 2: metric([0, 1, 1])}, True, "seed 2: other questions, strata or weights than seed 1"),
        ({1: metric([0, 1]), 2: metric([0, 1], ["a", "b"])}, True, "seed 2: other questions"),
        ({1: Metric(np.zeros(2), np.array(["a", "a"]), np.array([0.3, 0.7]))}, False, "the stratum 'a' differ"),
        ({1: Metric(np.zeros(2), np.array(["a"]), np.ones(2))}, False, "one entry a question"),
    ],
)
def test_errors(runs, shared, message):
    with pytest.raises(ValueError, match=message):
        hierarchical_interval(runs, key="k", shared=shared)


def test_wrong_resamples_and_keys_are_errors():
    runs = {1: metric([0, 1]), 2: metric([1, 1])}
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        hierarchical_interval(runs, key="k", shared=True, resamples=0)
    with pytest.raises(ValueError, match="key must be"):
        hierarchical_interval(runs, key="", shared=True)
