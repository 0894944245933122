"""Crossing marks of a view as crossing times, for medians, tests and speed-ups, and how a speed-up is printed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dara.analysis.crossing import HOLD
from dara.analysis.speed_up import SpeedUp
from dara.analysis.survival import CrossingTimes, Kind
from dara.analysis.tables.cells import MISSING, number
from dara.analysis.view import Mark


def times_of(marks: Sequence[Mark], kind: Kind) -> CrossingTimes | None:
    """The marks as censored times, keyed by (seed, repeat); None without a mark.

    A run without a crossing is later than the last step at which one could have been seen: its budget, less the steps
    that a stable crossing must hold. A seed that is not known is -1 and pairs by its place.

    Raises:
        ValueError: two marks of one seed and repeat; they are runs of different settings.
    """
    if not marks:
        return None
    rows = {}
    for place, mark in enumerate(marks):
        key = (-1, place) if mark.seed is None else (mark.seed, mark.repeat)
        if key in rows:
            raise ValueError(f"crossings: two runs with seed {key[0]}, repeat {key[1]}; give the runs of one setting")
        horizon = max(0, mark.budget - (HOLD if kind == "stable" else 0))
        crossed = mark.step is not None
        rows[key] = (float(mark.step if crossed else horizon), crossed, horizon)
    steps, reached, horizons = zip(*(rows[key] for key in sorted(rows)), strict=True)
    return CrossingTimes(tuple(sorted(rows)), steps, reached, float(min(horizons)))


def saved_text(saved: SpeedUp | None, unknown: str = MISSING) -> str:
    """Steps saved in percent, `40.5` or `40.5 [12, 60]`; a dash as an end of the interval that the budget leaves open.

    unknown: what stands where it is not estimable.
    """
    if saved is None or math.isnan(saved.saved):
        return unknown
    text = number(100 * saved.saved, 1)
    if saved.saved_ends is None:
        return text
    low, high = saved.saved_ends
    return f"{text} [{number(100 * low, 0)}, {number(100 * high, 0)}]"
