"""Crossings of one curve, by hand and against a slow reference in exact arithmetic; of several runs; and steps saved."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.analysis.crossing import (
    HOLD,
    WINDOW,
    Crossing,
    CrossingEvent,
    CrossingTimes,
    first_crossing,
    median_step,
    median_text,
    speed_up,
    stable_crossing,
    times_of,
)

INF, KEY = math.inf, ("k",)
RUNS = st.lists(st.integers(10, 60) | st.just(INF), min_size=2, max_size=7)


def steps(*parts: tuple[float, int]) -> list[float]:
    """A series from (value, how often)."""
    return [value for value, count in parts for _ in range(count)]


@pytest.mark.parametrize(
    ("series", "threshold", "found"),
    [
        ([0.99] * 15, 0.99, Crossing(None, "pending", 10)),
        ([0.99] * 29, 0.99, Crossing(None, "pending", 10)),
        ([0.99] * 30, 0.99, Crossing(10, "reached", None)),
        # From step 21 on the values are 1: the mean is .8 at step 28, which step 48 confirms.
        (steps((0, 20), (1, 40)), 0.8, Crossing(28, "reached", None)),
        (steps((0, 20), (1, 28)), 0.8, Crossing(28, "reached", None)),
        (steps((0, 20), (1, 27)), 0.8, Crossing(None, "pending", 28)),
        # Three zeros at 41-43 pull the mean to .7 at 43; it is .8 again at step 51 (42 has left the window).
        (steps((0, 20), (1, 20), (0, 3), (1, 57)), 0.8, Crossing(51, "reached", None)),
        # Two zeros leave the mean at .8: equality holds.
        (steps((0, 20), (1, 20), (0, 2), (1, 58)), 0.8, Crossing(28, "reached", None)),
        (steps((1, 25), (0, 10)), 0.8, Crossing(None, "not_reached", None)),
        (steps((1, 30), (0, 30)), 0.8, Crossing(10, "reached", None)),
        ([1.0] * 9, 0.8, Crossing(None, "not_reached", None)),
        ([], 0.8, Crossing(None, "not_reached", None)),
    ],
)
def test_stable_crossings_by_hand(series, threshold, found):
    assert stable_crossing(series, threshold) == found


def test_first_crossings_by_hand():
    assert first_crossing(steps((0, 20), (1, 40)), 0.8) == 21
    assert first_crossing([], 0.8) is None


@pytest.mark.parametrize("level", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99])
def test_equality_holds_in_floating_point(level):
    assert stable_crossing([level] * 40, level).step == 10
    mixed = [level - 0.1, level + 0.1] * 20
    assert stable_crossing(mixed, level).step == 10
    assert stable_crossing([level - 1e-6] * 40, level).status == "not_reached"
    assert first_crossing([0.0, level], level) == 2


def reference(values: list[Fraction], threshold: Fraction) -> Crossing:
    """The definition, word by word."""
    n = len(values)
    holds = {t: sum(values[t - WINDOW : t]) >= threshold * WINDOW for t in range(WINDOW, n + 1)}
    for t in range(WINDOW, n - HOLD + 1):
        if all(holds[u] for u in range(t, t + HOLD + 1)):
            return Crossing(t, "reached", None)
    for t in range(WINDOW, n + 1):
        if all(holds[u] for u in range(t, n + 1)):
            return Crossing(None, "pending", t)
    return Crossing(None, "not_reached", None)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 25)), max_size=6), threshold=st.integers(0, 200))
def test_equals_the_definition_in_exact_arithmetic(parts, threshold):
    counts = steps(*parts)
    exact = reference([Fraction(count, 20) for count in counts], Fraction(threshold, 200))
    assert stable_crossing([count / 20 for count in counts], threshold / 200) == exact


def times(*steps: float, horizon: float = 60, keys: tuple | None = None) -> CrossingTimes:
    """Runs of seeds 1, 2, ... that cross at `steps`; infinity is a run censored at the horizon."""
    crossed = tuple(math.isfinite(step) for step in steps)
    seen = tuple(float(step) if math.isfinite(step) else float(horizon) for step in steps)
    return CrossingTimes(keys or tuple(range(1, len(steps) + 1)), seen, crossed, float(horizon))


def events(steps: list[float], budget: int = 80, first: int = 100) -> list[CrossingEvent]:
    """The crossings of seeds 100, 101, ...; infinity is a run that did not cross."""
    made = []
    for seed, step in enumerate(steps, start=first):
        ends = (None, "not_reached") if math.isinf(step) else (int(step), "reached")
        made.append(CrossingEvent(seed, *ends, None, budget))
    return made


def test_times_are_censored_where_a_crossing_could_last_be_seen():
    stable = times_of(events([30, INF, 60]), "stable")
    keys = ((100, 0), (101, 0), (102, 0))
    assert stable == CrossingTimes(keys, (30.0, 60.0, 60.0), (True, False, True), 60.0)
    first = times_of(events([14, INF, 80]), "first")
    assert (first.steps, first.crossed, first.horizon) == ((14.0, 80.0, 80.0), (True, False, True), 80.0)
    assert times_of(events([30, INF, 60])[::-1], "stable") == stable
    assert stable.reached == 2


def test_the_horizon_is_the_shortest_and_a_short_run_has_none():
    found = times_of([*events([30]), *events([INF], budget=50, first=101)], "stable")
    assert found == CrossingTimes(((100, 0), (101, 0)), (30.0, 30.0), (True, False), 30.0)
    short = times_of(events([INF], budget=6), "stable")
    assert (short.steps, short.horizon) == ((0.0,), 0.0)
    assert speed_up(short, short, KEY).reason == "the runs are too short for any crossing to be seen"


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
    found = speed_up(times(method, horizon=180), times(baseline, horizon=180), KEY)
    assert round(100 * found.saved, 1) == percent
    assert (found.saved_interval, found.runs, found.baseline_runs, found.reason) == (None, 1, 1, "")


def test_common_seeds_are_drawn_together():
    # The method needs half of the steps for every seed, so every paired resample says 0.5; unpaired ones do not.
    base = (20, 30, 40, 50, 56)
    method = tuple(step / 2 for step in base)
    paired = speed_up(times(*method), times(*base), KEY)
    assert (paired.saved, paired.saved_interval) == (0.5, (0.5, 0.5))
    apart = speed_up(times(*method), times(*base, keys=(6, 7, 8, 9, 10)), KEY)
    assert (apart.saved, apart.runs, apart.baseline_runs) == (0.5, 5, 5)
    assert apart.saved_interval[0] < 0.1 < 0.7 < apart.saved_interval[1]


def test_a_median_beyond_the_budget_is_not_estimable():
    found = speed_up(times(20, 25, 30), times(40, INF, INF), KEY)
    assert found.reason == "the median of the baseline is >60"
    assert math.isnan(found.saved)
    assert found.saved_interval is None
    both = speed_up(times(INF, INF), times(20, INF), KEY)
    assert both.reason == "the median of the method is >60 and the median of the baseline is >40"


def test_what_the_budget_leaves_open_widens_the_interval():
    base = times(*[40] * 3, INF, INF)
    found = speed_up(times(*[20] * 5), base, KEY)
    # Where the baseline's median is beyond 60, the method saves more than two thirds, and nobody knows how much more.
    assert (found.saved, found.saved_interval, found.saved_ends) == (0.5, (0.5, 1.0), (0.5, INF))
    assert speed_up(base, times(*[20] * 5), KEY).saved_interval == (-INF, -1.0)


@settings(max_examples=40, deadline=None)
@given(first=RUNS, second=RUNS, data=st.data())
def test_row_order_does_not_matter(first, second, data):
    one = [times_of(events(runs), "stable") for runs in (first, second)]
    other = [times_of(data.draw(st.permutations(events(runs))), "stable") for runs in (first, second)]
    assert one == other
    found = speed_up(*one, KEY)
    assert repr(found) == repr(speed_up(*other, KEY))
    if found.saved_interval:
        assert found.saved_interval[0] <= found.saved_interval[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stable_crossing([0.5, float("nan")], 0.5), "step 2 is nan"),
        (lambda: stable_crossing([float("inf")] * 12, 0.5), "step 1 is inf"),
        (lambda: times_of(events([61]), "stable"), "seed 100: the stable crossing at step 61 is later than 60"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
