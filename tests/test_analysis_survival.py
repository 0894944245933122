"""Crossing times as censored data: hand-computed cases and the published speed-ups."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.analysis.speed_up import speed_up
from dara.analysis.survival import CrossingTimes, median_step, median_text, times_of
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
    assert speed_up(short, short, key="k").reason == "the runs are too short for any crossing to be seen"


def test_median_and_its_text():
    assert (median_step(times(10, INF, 20)), median_text(times(10, INF, 20))) == (20, "20")
    assert (median_step(times(10, INF, INF)), median_text(times(10, INF, INF))) == (INF, ">60")
    # The middle two are 20 and later than 60, so all that is known is that their mean is later than 40.
    assert (median_step(times(20, INF)), median_text(times(20, INF))) == (INF, ">40")


@pytest.mark.parametrize(
    ("baseline", "method", "percent"),
    [(111, 66, 40.5), (111, 59, 46.8), (142, 56, 60.6), (142, 50, 64.8)],
)
def test_published_stable_crossings_give_the_published_speed_up(baseline, method, percent):
    found = speed_up(times(method, horizon=180), times(baseline, horizon=180), key="published")
    assert round(100 * found.saved, 1) == percent
    assert (found.saved_interval, found.runs, found.baseline_runs, found.reason) == (None, 1, 1, "")


def test_common_seeds_are_drawn_together():
    # The method needs half of the steps for every seed, so every paired resample says 0.5; unpaired ones do not.
    base = (20, 30, 40, 50, 56)
    method = tuple(step / 2 for step in base)
    paired = speed_up(times(*method), times(*base), key="k")
    assert (paired.saved, paired.saved_interval) == (0.5, (0.5, 0.5))
    apart = speed_up(times(*method), times(*base, keys=(6, 7, 8, 9, 10)), key="k")
    assert (apart.saved, apart.runs, apart.baseline_runs) == (0.5, 5, 5)
    assert apart.saved_interval[0] < 0.1 < 0.7 < apart.saved_interval[1]


def test_a_median_beyond_the_budget_is_not_estimable():
    found = speed_up(times(20, 25, 30), times(40, INF, INF), key="k")
    assert found.reason == "the median of the baseline is >60"
    assert math.isnan(found.saved)
    assert found.saved_interval is None
    both = speed_up(times(INF, INF), times(20, INF), key="k")
    assert both.reason == "the median of the method is >60 and the median of the baseline is >40"


def test_what_the_budget_leaves_open_widens_the_interval():
    base = times(*[40] * 3, INF, INF)
    found = speed_up(times(*[20] * 5), base, key="k")
    # Where the baseline's median is beyond 60, the method saves more than two thirds, and nobody knows how much more.
    assert (found.saved, found.saved_interval, found.saved_ends) == (0.5, (0.5, 1.0), (0.5, INF))
    back = speed_up(base, times(*[20] * 5), key="k")
    assert back.saved_interval == (-INF, -1.0)


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
    found = speed_up(*one, key="k", resamples=100)
    assert repr(found) == repr(speed_up(*other, key="k", resamples=100))
    if found.saved_interval:
        assert found.saved_interval[0] <= found.saved_interval[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: times_of([*marks([30]), *marks([40])], "stable"), "two runs with seed 100, repeat 0"),
        (lambda: times_of(marks([61]), "stable"), "seed 100: the stable crossing at step 61 is later than 60"),
        (lambda: speed_up(times(1, 2), times(1, 2), key="k", resamples=0), "resamples must be at least 1"),
        (lambda: speed_up(times(1, 2), times(1, 2), key=""), "key must be"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
