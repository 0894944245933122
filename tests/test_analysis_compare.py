"""Paired differences: hand-computed examples, SciPy's test, and pairs with a censored member; what is compared."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dara.analysis.compare import Difference, compared_pairs, nearest_step, paired, paired_steps
from dara.analysis.crossing import CrossingTimes

SCORES = st.dictionaries(st.integers(0, 9), st.floats(0, 1), min_size=1, max_size=8)


def test_scores_agree_with_the_paired_t_test():
    a, b = [0.50, 0.55, 0.61, 0.40, 0.58], [0.52, 0.60, 0.60, 0.49, 0.66]
    theirs = stats.ttest_rel(a, b).confidence_interval()
    found = paired(dict(enumerate(a)), dict(enumerate(b)))
    assert found == Difference(pytest.approx(-0.046), pytest.approx(theirs.low), pytest.approx(theirs.high), 5)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({1: 0.5, 2: 0.6, 9: 0.1}, {2: 0.5, 3: 0.9}, (0.1, math.nan, math.nan, 1)),  # what is not paired is left out
        ({1: 0.5}, {2: 0.5}, (math.nan, math.nan, math.nan, 0)),
        ({1: 3.0, 2: 4.0}, {1: 5.0, 2: 6.0}, (-2, -2, -2, 2)),
    ],
)
def test_pairs_by_hand(first, second, found):
    made = paired(first, second)
    assert (made.value, made.low, made.high, made.pairs) == pytest.approx(found, nan_ok=True)


def test_a_run_that_does_not_cross_counts_as_the_last_step_that_was_watched():
    method = CrossingTimes((1, 2, 3, 5), (20.0, 30.0, 60.0, 60.0), (True, True, False, False), 60.0)
    baseline = CrossingTimes((1, 2, 4, 5), (60.0, 40.0, 10.0, 60.0), (False, True, True, False), 60.0)
    difference, tau, late = paired_steps(method, baseline)
    assert (difference.value, difference.pairs, tau, late) == (pytest.approx(-50 / 3), 3, 60.0, [1, 0, 2])


@settings(max_examples=60, deadline=None)
@given(first=SCORES, second=SCORES, data=st.data())
def test_order_does_not_matter_and_swapping_turns_the_sign(first, second, data):
    shuffled = dict(data.draw(st.permutations(list(first.items()))))
    found = paired(first, second)
    assert repr(paired(shuffled, second)) == repr(found)
    assert paired(second, first).value == pytest.approx(-found.value, abs=0, nan_ok=True)


def test_the_step_that_is_compared_is_a_share_of_a_shorter_training():
    assert nearest_step([10, 20, 30, 40, 50, 60, 70, 80], 60, 80) == 50  # 48 of 80
    assert nearest_step([10, 20, 50, 110], 50, 110) == 50
    assert nearest_step([40, 60], 50, 100) == 40  # the earlier of two equally near


def test_what_is_compared():
    four = compared_pairs(["grpo", "gdpo", "dara_sym", "mine"])
    assert four == [
        ("grpo", "gdpo"), ("dara_sym", "gdpo"), ("dara_sym", "grpo"), ("mine", "gdpo"), ("mine", "dara_sym"),
    ]  # fmt: skip
    assert compared_pairs(["dara_asym", "static_asym", "static_sym"]) == [("dara_asym", "static_asym")]
    assert compared_pairs(["grpo"]) == []
