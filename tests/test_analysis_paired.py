"""Paired differences: hand-computed examples, SciPy's tests, and pairs with a censored member."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dara.analysis.intervals import Interval
from dara.analysis.paired import paired_crossings, paired_scores, paired_steps
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
    assert (found.n, found.known, found.first_lower, found.second_lower) == (5, 5, 4, 1)
    assert found.sign_p == pytest.approx(12 / 32)  # 4 or 5, 0 or 1 of 5
    assert found.keys == (0, 1, 2, 3, 4)
    np.testing.assert_allclose(found.differences, np.subtract(a, b))


def test_what_is_not_paired_is_reported():
    found = paired_scores({1: 0.5, 2: 0.6, 9: 0.1}, {2: 0.5, 3: 0.9})
    assert (found.keys, found.only_first, found.only_second) == ((2,), (1, 9), (3,))
    assert (found.mean, found.interval) == (pytest.approx(0.1), None)
    nothing = paired_scores({1: 0.5}, {2: 0.5})
    assert (nothing.n, nothing.interval, nothing.sign_p) == (0, None, 1.0)
    assert math.isnan(nothing.mean)


def test_a_tie_is_on_neither_side():
    found = paired_scores({1: 0.5, 2: 0.5, 3: 0.2}, {1: 0.5, 2: 0.5, 3: 0.4})
    assert (found.first_lower, found.second_lower, found.ties, found.undecided) == (1, 0, 2, 0)
    assert found.sign_p == 1.0


def test_equal_differences_are_marked_degenerate():
    found = paired_scores({1: 3.0, 2: 4.0}, {1: 5.0, 2: 6.0})
    assert found.interval == Interval(-2.0, -2.0, 2, "t", True)


def test_a_pair_with_a_censored_member_has_an_order_but_no_difference():
    first = times({1: 20.0, 2: 30.0, 3: INF, 4: INF, 5: 60.0})
    second = times({1: 35.0, 2: INF, 3: 50.0, 4: INF, 5: INF})
    found = paired_crossings(first, second)
    assert found.differences[0] == -15
    assert np.isnan(found.differences[1:]).all()
    assert (found.n, found.known, found.mean, found.interval) == (5, 1, -15, None)
    # 1, 2 and 5 (at 60, the last step that the other was watched): the first is earlier. 3: the second. 4: open.
    assert (found.first_lower, found.second_lower, found.ties, found.undecided) == (3, 1, 0, 1)
    assert found.sign_p == pytest.approx(10 / 16)


def test_a_crossing_after_the_other_was_last_watched_has_no_order():
    found = paired_crossings(times({1: 40.0}), times({1: INF}, horizon=30))
    assert (found.first_lower, found.second_lower, found.undecided) == (0, 0, 1)
    assert paired_crossings(times({1: 30.0}), times({1: INF}, horizon=30)).first_lower == 1


def test_a_run_that_does_not_cross_counts_as_the_last_step_that_was_watched():
    method = times({1: 20.0, 2: 30.0, 3: INF, 5: INF})
    baseline = times({1: INF, 2: 40.0, 4: 10.0, 5: INF})
    pairs, tau, late = paired_steps(method, baseline)
    assert (pairs.differences, tau, late) == ((-40.0, -10.0, 0.0), 60.0, [1, 0, 2])


def test_published_first_crossings_by_seed():
    gdpo = times({0: 18.0, 1: 19.0, 2: 75.0, 4: 16.0, 5: 65.0}, horizon=100)
    asym = times({0: 15.0, 1: 14.0, 2: 13.0, 4: 13.0, 5: 16.0}, horizon=100)
    found = paired_crossings(asym, gdpo)
    assert found.differences == (-3, -5, -62, -3, -49)
    assert (found.mean, found.first_lower, found.n) == (pytest.approx(-24.4), 5, 5)
    assert found.sign_p == pytest.approx(1 / 16)
    assert found.interval.low < 0 < found.interval.high  # two modes of seeds: the t interval is wide


@settings(max_examples=60, deadline=None)
@given(first=SCORES, second=SCORES, data=st.data())
def test_order_does_not_matter_and_swapping_turns_the_sign(first, second, data):
    shuffled = dict(data.draw(st.permutations(list(first.items()))))
    found, other = paired_scores(first, second), paired_scores(second, first)
    assert repr(paired_scores(shuffled, second)) == repr(found)
    assert (found.first_lower, found.second_lower) == (other.second_lower, other.first_lower)
    assert found.ties + found.first_lower + found.second_lower == found.n
    if found.n:
        assert found.mean == -other.mean


def test_a_score_that_is_not_finite_is_an_error():
    with pytest.raises(ValueError, match="second, 7: nan is not finite"):
        paired_scores({7: 0.1}, {7: math.nan})
