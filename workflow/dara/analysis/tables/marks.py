"""Crossing marks of a view as crossing times, for medians, tests and speed-ups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dara.analysis.crossing import HOLD
from dara.analysis.survival import CrossingTimes, Kind
from dara.analysis.view import Mark


def times_of(marks: Sequence[Mark], kind: Kind) -> CrossingTimes | None:
    """The marks as censored times, keyed by (seed, repeat); None without a mark.

    A run without a crossing is later than the last step at which one could have been seen: its budget, less the steps
    that a stable crossing must hold. A seed that is not known is -1 and pairs with itself only by its place.
    """
    if not marks:
        return None
    seen: Counter[int] = Counter()
    rows = []
    for mark in marks:
        seed = -1 if mark.seed is None else mark.seed
        horizon = max(0, mark.budget - (HOLD if kind == "stable" else 0))
        crossed = mark.step is not None
        rows.append(((seed, seen[seed]), float(mark.step if crossed else horizon), crossed, horizon))
        seen[seed] += 1
    keys, steps, reached, horizons = zip(*sorted(rows), strict=True)
    return CrossingTimes(keys, steps, reached, float(min(horizons)))
