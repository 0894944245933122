"""Crossing times as censored data: hand-computed cases, SciPy on complete data, and the published speed-ups."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dara.analysis.intervals import Interval
from dara.analysis.speed_up import speed_up
from dara.analysis.survival import (
    CrossingTimes,
    kaplan_meier,
    log_rank,
    median_step,
    median_text,
    restricted_mean,
    times_of,
)
from dara.analysis.view import Mark

INF = math.inf


def times(*steps: float, horizon: float = 60, keys: tuple | None = None) -> CrossingTimes:
    """Runs of seeds 1, 2, ... that cross at `steps`; infinity is a run censored at the horizon."""
    crossed = tuple(math.isfinite(step) for step in steps)
    seen = tuple(float(step) if math.isfinite(step) else float(horizon) for step in steps)
    return CrossingTimes(keys or tuple(range(1, len(steps) + 1)), seen, crossed, float(horizon))


RUNS = st.lists(st.integers(10, 60) | st.just(INF), min_size=2, max_size=7)


def marks(steps: list[float], budget: int = 80, first: int = 100) -> list[Mark]:
    """The marks of seeds 100, 101, ...; infinity is a run that did not cross."""
    found = [None if math.isinf(step) else int(step) for step in steps]
    states = ["not_reached" if step is None else "reached" for step in found]
    return [
        Mark(first + i, step, state, None, budget) for i, (step, state) in enumerate(zip(found, states, strict=True))
    ]


def test_times_are_censored_where_a_crossing_could_last_be_seen():
    stable = times_of(marks([30, INF, 60]), "stable")
    keys = ((100, 0), (101, 0), (102, 0))
    assert stable == CrossingTimes(keys, (30.0, 60.0, 60.0), (True, False, True), 60.0)
    first = times_of(marks([14, INF, 80]), "first")
    assert (first.steps, first.crossed, first.horizon) == ((14.0, 80.0, 80.0), (True, False, True), 80.0)
    assert times_of(marks([30, INF, 60])[::-1], "stable") == stable
    assert stable.reached == 2


def test_the_horizon_is_the_shortest_and_a_short_run_has_none():
    found = times_of([*marks([30]), *marks([INF], budget=50, first=101)], "stable")
    assert found == CrossingTimes(((100, 0), (101, 0)), (30.0, 30.0), (True, False), 30.0)
    short = times_of(marks([INF], budget=6), "stable")
    assert (short.steps, short.horizon) == ((0.0,), 0.0)
    assert kaplan_meier(short).share.tolist() == [1.0]
    assert speed_up(short, short, key="k").reason == "the runs are too short for any crossing to be seen"
    assert math.isnan(speed_up(short, short, key="k", of="restricted_mean").difference)


def test_kaplan_meier_equals_a_hand_computed_example():
    # 5 runs: crossings at 10, 20, 20; one watched until 15, one until 60. At 10: 4/5. At 20, of the 3 left: x 1/3.
    found = kaplan_meier(CrossingTimes((1, 2, 3, 4, 5), (10, 15, 20, 20, 60), (True, False, True, True, False), 15))
    at = dict(zip(found.steps.tolist(), found.share.tolist(), strict=True))
    assert (found.steps[0], found.share[0]) == (0.0, 1.0)
    assert (at[10.0], at[15.0]) == (pytest.approx(0.8), pytest.approx(0.8))
    assert (at[20.0], at[60.0]) == (pytest.approx(0.8 / 3), pytest.approx(0.8 / 3))


def test_restricted_mean_is_the_area_under_the_steps():
    # share 1 up to 10, 2/3 up to 40, 1/3 up to 60: 10 + 20 + 6.667
    assert restricted_mean(times(10, 40, INF), 60) == pytest.approx(110 / 3)
    assert restricted_mean(times(10, 40, INF), 30) == pytest.approx(10 + 20 * 2 / 3)
    assert restricted_mean(times(INF, INF), 60) == 60
    assert restricted_mean(times(60, 60), 60) == 60
    for tau in (0, 61):
        with pytest.raises(ValueError, match="at most the horizon of all runs, 60"):
            restricted_mean(times(10, INF), tau)


@settings(max_examples=60, deadline=None)
@given(runs=RUNS, tau=st.integers(1, 60))
def test_restricted_mean_is_the_mean_of_what_was_seen_up_to_tau(runs, tau):
    found = times(*runs)
    assert restricted_mean(found, tau) == pytest.approx(np.minimum(found.steps, tau).mean())
    share = kaplan_meier(found).share
    assert share[0] == 1
    assert (np.diff(share) <= 1e-12).all()
    assert share[-1] == pytest.approx(1 - found.reached / len(runs))


def test_median_and_its_text():
    assert (median_step(times(10, INF, 20)), median_text(times(10, INF, 20))) == (20, "20")
    assert (median_step(times(10, INF, INF)), median_text(times(10, INF, INF))) == (INF, ">60")
    # The middle two are 20 and later than 60, so all that is known is that their mean is later than 40.
    assert (median_step(times(20, INF)), median_text(times(20, INF))) == (INF, ">40")


def test_log_rank_equals_a_hand_computed_example():
    # Steps 10 (of 4 runs, 2 of each) and 20 (of 3, one of the first), then 30. First: 10, 20; second: 30, censored.
    first, second = times(10, 20), times(30, INF)
    expected = 2 / 4 + 1 / 3
    variance = 1 / 4 + 2 / 9
    found = log_rank(first, second)
    assert found.statistic == pytest.approx((2 - expected) / math.sqrt(variance))
    assert found.p == pytest.approx(2 * stats.norm.sf(found.statistic))
    assert found.exact_p == pytest.approx(2 / 6)  # the two most extreme of 6 splits
    assert log_rank(second, first).statistic == pytest.approx(-found.statistic)


def test_log_rank_agrees_with_scipy_on_uncensored_data_and_permutations():
    a, b = [12, 14, 18, 25, 33], [20, 28, 31, 40, 47]
    found = log_rank(times(*a), times(*b))
    theirs = stats.logrank(a, b)
    assert (found.statistic, found.p) == (pytest.approx(theirs.statistic), pytest.approx(theirs.pvalue))
    pool = np.array([*a, *b], dtype=float)

    def observed_minus_expected(chosen):
        mask = np.zeros(10, dtype=bool)
        mask[list(chosen)] = True
        return mask.sum() - sum((pool[mask] >= step).sum() / (pool >= step).sum() for step in pool)

    every = np.array([observed_minus_expected(chosen) for chosen in combinations(range(10), 5)])
    assert found.exact_p == pytest.approx(np.mean(np.abs(every) >= abs(observed_minus_expected(range(5))) - 1e-9))


def test_three_against_three_cannot_be_more_certain_than_one_in_ten():
    found = log_rank(times(10, 11, 12), times(40, 50, INF))
    assert found.p < 0.05
    assert found.exact_p == pytest.approx(0.1)
    assert math.isnan(log_rank(times(*range(10, 20)), times(*range(30, 40))).exact_p)  # 184,756 splits


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ((INF, INF), (INF, INF, INF), "no run crosses"),
        ((10,), (20, 30), "one run in a group"),
        ((20, 20), (20, 20, 20), "all runs cross at the same step"),
    ],
)
def test_where_there_is_no_test_the_reason_is_given(first, second, reason, recwarn):
    found = log_rank(times(*first), times(*second))
    assert found.reason == reason
    assert math.isnan(found.p)
    assert not recwarn.list


def test_no_test_where_one_group_was_not_watched_as_long(recwarn):
    assert log_rank(times(30, 40), times(INF, INF, horizon=20)).reason == (
        "no crossing while both groups have runs left"
    )
    assert not recwarn.list


@pytest.mark.parametrize(
    ("baseline", "method", "percent"),
    [(111, 66, 40.5), (111, 59, 46.8), (142, 56, 60.6), (142, 50, 64.8)],
)
def test_published_stable_crossings_give_the_published_speed_up(baseline, method, percent):
    found = speed_up(times(method, horizon=180), times(baseline, horizon=180), key="published")
    assert round(100 * found.saved, 1) == percent
    assert found.difference == method - baseline
    assert (found.difference_interval, found.ratio_interval, found.saved_interval) == (None, None, None)
    assert (found.runs, found.baseline_runs, found.pairs, found.reason) == (1, 1, 1, "")


def test_speed_up_of_medians_and_of_restricted_means():
    baseline, method = times(30, 40, INF), times(20, 25, 30)
    found = speed_up(method, baseline, key="k")
    assert (found.method, found.baseline, found.difference, found.saved) == (25, 40, -15, pytest.approx(0.375))
    mean = speed_up(method, baseline, key="k", of="restricted_mean")
    assert (mean.method, mean.baseline) == (pytest.approx(25), pytest.approx(130 / 3))
    assert mean.ratio == pytest.approx(75 / 130)
    low, high = mean.saved_interval
    assert low <= mean.saved <= high
    assert mean.difference_interval.n == 6


def test_common_seeds_are_drawn_together():
    # The method is 10 steps earlier for every seed, so every paired resample says 10; unpaired ones do not.
    base = (20, 30, 40, 50, 55)
    method = tuple(step - 10 for step in base)
    paired = speed_up(times(*method), times(*base), key="k", of="restricted_mean")
    assert (paired.pairs, paired.difference) == (5, -10)
    assert (paired.difference_interval.low, paired.difference_interval.high) == (pytest.approx(-10), pytest.approx(-10))
    apart = speed_up(times(*method), times(*base, keys=(6, 7, 8, 9, 10)), key="k", of="restricted_mean")
    assert (apart.pairs, apart.difference) == (0, -10)
    assert apart.difference_interval.high - apart.difference_interval.low > 15
    mixed = speed_up(times(*method), times(*base, keys=(1, 2, 3, 9, 10)), key="k")
    assert (mixed.pairs, mixed.runs, mixed.baseline_runs) == (3, 5, 5)


def test_a_median_beyond_the_budget_is_not_estimable():
    found = speed_up(times(20, 25, 30), times(40, INF, INF), key="k")
    assert found.reason == "the median of the baseline is >60"
    assert (found.method, found.baseline) == (25, INF)
    assert math.isnan(found.difference)
    assert math.isnan(found.saved)
    assert found.saved_interval is None
    both = speed_up(times(INF, INF), times(20, INF), key="k")
    assert both.reason == "the median of the method is >60 and the median of the baseline is >40"
    assert speed_up(times(20, 25), times(INF, INF), key="k", of="restricted_mean").difference == -37.5


def test_what_the_budget_leaves_open_widens_the_interval():
    base = times(*[40] * 3, INF, INF)
    found = speed_up(times(*[20] * 5), base, key="k")
    assert (found.difference, found.saved) == (-20, 0.5)
    # Where the baseline's median is beyond 60, the method saves more than 40 steps, and nobody knows how many more.
    assert (found.difference_interval.low, found.difference_interval.high) == (-INF, -20)
    assert found.saved_interval == (0.5, 1.0)
    back = speed_up(base, times(*[20] * 5), key="k")
    assert (back.difference_interval.low, back.difference_interval.high) == (20, INF)


def test_equal_runs_are_marked_degenerate():
    found = speed_up(times(20, 20, 20), times(40, 40, 40), key="k")
    assert found.difference_interval == Interval(-20, -20, 6, "bootstrap", True)
    assert found.ratio_interval.degenerate


@settings(max_examples=40, deadline=None)
@given(first=RUNS, second=RUNS, data=st.data())
def test_row_order_does_not_matter(first, second, data):
    def made(runs, order):
        found = marks(runs)
        return times_of([found[place] for place in order], "stable")

    orders = [data.draw(st.permutations(range(len(runs)))) for runs in (first, second)]
    one = (made(first, range(len(first))), made(second, range(len(second))))
    other = (made(first, orders[0]), made(second, orders[1]))
    assert one == other
    for of in ("median", "restricted_mean"):
        found = speed_up(*one, key="k", of=of, resamples=100)
        assert repr(found) == repr(speed_up(*other, key="k", of=of, resamples=100))
        if found.difference_interval:
            assert found.difference_interval.low <= found.difference_interval.high


@settings(max_examples=40, deadline=None)
@given(first=RUNS, second=RUNS)
def test_log_rank_changes_its_sign_with_the_groups(first, second):
    one, other = log_rank(times(*first), times(*second)), log_rank(times(*second), times(*first))
    assert one.reason == other.reason
    if not one.reason:
        assert one.statistic == pytest.approx(-other.statistic)
        assert (one.p, one.exact_p) == (pytest.approx(other.p), pytest.approx(other.exact_p))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: times_of([*marks([30]), *marks([40])], "stable"), "two runs with seed 100, repeat 0"),
        (lambda: times_of(marks([61]), "stable"), "seed 100: the stable crossing at step 61 is later than 60"),
        (lambda: speed_up(times(1, 2), times(1, 2), key="k", of="mean"), "'median' or 'restricted_mean'"),
        (lambda: speed_up(times(1, 2), times(1, 2), key="k", resamples=0), "resamples must be at least 1"),
        (lambda: speed_up(times(1, 2), times(1, 2), key=""), "key must be"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
