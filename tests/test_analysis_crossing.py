"""Stable and first crossings, by hand and against a slow reference in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.analysis.crossing import Crossing, first_crossing, stable_crossing


def steps(*parts: tuple[float, int]) -> list[float]:
    """A series from (value, how often)."""
    return [value for value, count in parts for _ in range(count)]


def test_constant_series_too_short_to_confirm_is_pending_at_the_first_mean():
    assert stable_crossing([0.99] * 15, 0.99) == Crossing(None, "pending", 10)
    assert stable_crossing([0.99] * 29, 0.99) == Crossing(None, "pending", 10)
    assert stable_crossing([0.99] * 30, 0.99) == Crossing(10, "reached", None)


def test_a_step_from_zero_to_one_crosses_when_the_mean_has_caught_up():
    # From step 21 on the values are 1: the mean is .8 at step 28.
    assert stable_crossing(steps((0, 20), (1, 40)), 0.8) == Crossing(28, "reached", None)
    assert first_crossing(steps((0, 20), (1, 40)), 0.8) == 21


def test_reached_at_the_last_step_that_can_be_confirmed():
    for n, expected in ((48, Crossing(28, "reached", None)), (47, Crossing(None, "pending", 28))):
        assert stable_crossing(steps((0, 20), (1, n - 20)), 0.8) == expected


def test_a_dip_within_the_hold_starts_again():
    # Three zeros at 41-43 pull the mean to .7 at 43; it is .8 again at step 51 (42 has left the window).
    series = steps((0, 20), (1, 20), (0, 3), (1, 57))
    assert stable_crossing(series, 0.8) == Crossing(51, "reached", None)
    # Two zeros leave the mean at .8: equality holds.
    assert stable_crossing(steps((0, 20), (1, 20), (0, 2), (1, 58)), 0.8) == Crossing(28, "reached", None)


def test_lost_at_the_end_is_not_reached():
    assert stable_crossing(steps((1, 25), (0, 10)), 0.8) == Crossing(None, "not_reached", None)


def test_a_confirmed_crossing_stays_when_the_series_falls_later():
    assert stable_crossing(steps((1, 30), (0, 30)), 0.8) == Crossing(10, "reached", None)


@pytest.mark.parametrize("level", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99])
def test_equality_holds_in_floating_point(level):
    assert stable_crossing([level] * 40, level).step == 10
    mixed = [level - 0.1, level + 0.1] * 20
    assert stable_crossing(mixed, level).step == 10
    assert stable_crossing([level - 1e-6] * 40, level).status == "not_reached"
    assert first_crossing([0.0, level], level) == 2


def test_fewer_values_than_the_window_are_not_reached():
    assert stable_crossing([1.0] * 9, 0.8) == Crossing(None, "not_reached", None)
    assert stable_crossing([], 0.8) == Crossing(None, "not_reached", None)
    assert first_crossing([], 0.8) is None


def test_window_and_hold_are_parameters():
    assert stable_crossing([0, 1], 1, window=1, hold=0) == Crossing(2, "reached", None)
    assert stable_crossing([0, 1, 0, 1, 1], 1, window=1, hold=1) == Crossing(4, "reached", None)
    assert stable_crossing([-3.0, 3.0], 0.0, window=2, hold=0) == Crossing(2, "reached", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, float("nan")], 0.5), "step 2 is nan"),
        (([float("inf")] * 12, 0.5), "step 1 is inf"),
        (([[0.5]], 0.5), "one-dimensional"),
        (([0.5], float("nan")), "threshold must be a finite number"),
        (([0.5], 0.5, 0), "window must be at least 1"),
        (([0.5], 0.5, 10, -1), "hold at least 0"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        stable_crossing(*arguments)


def test_first_crossing_refuses_nan():
    with pytest.raises(ValueError, match="step 1 is nan"):
        first_crossing([float("nan"), 1.0], 0.5)


def reference(values: list[Fraction], threshold: Fraction, window: int, hold: int) -> Crossing:
    """The definition, word by word."""
    n = len(values)
    holds = {t: sum(values[t - window : t]) >= threshold * window for t in range(window, n + 1)}
    for t in range(window, n - hold + 1):
        if all(holds[u] for u in range(t, t + hold + 1)):
            return Crossing(t, "reached", None)
    for t in range(window, n + 1):
        if all(holds[u] for u in range(t, n + 1)):
            return Crossing(None, "pending", t)
    return Crossing(None, "not_reached", None)


@settings(max_examples=300, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20), max_size=40),
    threshold=st.integers(0, 200),
    window=st.integers(1, 12),
    hold=st.integers(0, 12),
)
def test_equals_the_definition_in_exact_arithmetic(counts, threshold, window, hold):
    exact = reference([Fraction(count, 20) for count in counts], Fraction(threshold, 200), window, hold)
    assert stable_crossing([count / 20 for count in counts], threshold / 200, window, hold) == exact
