"""Paired differences: hand-computed examples, SciPy's tests, and pairs with a censored member."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dara.analysis.intervals import Interval
from dara.analysis.paired import paired_scores, paired_steps
from dara.analysis.survival import CrossingTimes

INF = math.inf
SCORES = st.dictionaries(st.integers(0, 9), st.floats(0, 1), min_size=1, max_size=8)


def times(runs: dict[int, float], horizon: float = 60) -> CrossingTimes:
    keys = sorted(runs)
    crossed = tuple(math.isfinite(runs[key]) for key in keys)
    steps = tuple(runs[key] if math.isfinite(runs[key]) else horizon for key in keys)
    return CrossingTimes(tuple(keys), steps, crossed, horizon)


def test_scores_agree_with_the_paired_t_test():
    a, b = [0.50, 0.55, 0.61, 0.40, 0.58], [0.52, 0.60, 0.60, 0.49, 0.66]
    found = paired_scores(dict(enumerate(a)), dict(enumerate(b)))
    theirs = stats.ttest_rel(a, b).confidence_interval()
    assert found.mean == pytest.approx(-0.046)
    assert (found.interval.low, found.interval.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert found.keys == (0, 1, 2, 3, 4)
    np.testing.assert_allclose(found.differences, np.subtract(a, b))


def test_what_is_not_paired_is_left_out():
    found = paired_scores({1: 0.5, 2: 0.6, 9: 0.1}, {2: 0.5, 3: 0.9})
    assert (found.keys, found.mean, found.interval) == ((2,), pytest.approx(0.1), None)
    nothing = paired_scores({1: 0.5}, {2: 0.5})
    assert (nothing.keys, nothing.interval) == ((), None)
    assert math.isnan(nothing.mean)


def test_equal_differences_are_marked_degenerate():
    found = paired_scores({1: 3.0, 2: 4.0}, {1: 5.0, 2: 6.0})
    assert found.interval == Interval(-2.0, -2.0, 2, "t", True)


def test_a_run_that_does_not_cross_counts_as_the_last_step_that_was_watched():
    method = times({1: 20.0, 2: 30.0, 3: INF, 5: INF})
    baseline = times({1: INF, 2: 40.0, 4: 10.0, 5: INF})
    pairs, tau, late = paired_steps(method, baseline)
    assert (pairs.differences, tau, late) == ((-40.0, -10.0, 0.0), 60.0, [1, 0, 2])


@settings(max_examples=60, deadline=None)
@given(first=SCORES, second=SCORES, data=st.data())
def test_order_does_not_matter_and_swapping_turns_the_sign(first, second, data):
    shuffled = dict(data.draw(st.permutations(list(first.items()))))
    found, other = paired_scores(first, second), paired_scores(second, first)
    assert repr(paired_scores(shuffled, second)) == repr(found)
    if found.keys:
        assert found.mean == -other.mean


def test_a_score_that_is_not_finite_is_an_error():
    with pytest.raises(ValueError, match="second, 7: nan is not finite"):
        paired_scores({7: 0.1}, {7: math.nan})
