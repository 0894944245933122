"""Crossing times as right-censored data: a run without a crossing may cross after its last step.

docs/statistics.md defines the censoring, with reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dara.analysis.crossing import HOLD
from dara.analysis.intervals import median

if TYPE_CHECKING:
    from dara.analysis.view import Mark

Kind = Literal["first", "stable"]


@dataclass(frozen=True)
class CrossingTimes:
    """Crossing times of the runs of one method, sorted by key.

    Attributes:
        keys: names of the runs that pair them with those of another method, such as seeds.
        steps: the step of the crossing, or the last step at which a crossing could have been seen.
        crossed: whether the run crossed; where not, its crossing is later than `steps`.
        horizon: last step at which a crossing could have been seen in every run; 0 where the runs are too short.
    """

    keys: tuple[Any, ...]
    steps: tuple[float, ...]
    crossed: tuple[bool, ...]
    horizon: float

    @property
    def reached(self) -> int:
        """Return the number of runs that crossed."""
        return sum(self.crossed)


def times_of(marks: Sequence[Mark], kind: Kind) -> CrossingTimes | None:
    """Return the crossings as censored times, keyed by (seed, repeat); None without a run.

    A run without a crossing (a pending one too) is censored at the last step at which one could have been seen: its
    budget, less the steps that a stable crossing must hold. A run that diverged before it crossed is censored there as
    well: it did not cross within the budget. A seed that is not known is -1 and pairs by its place.

    Raises:
        ValueError: two marks of one seed and repeat, which are runs of different settings, or a crossing after the last
            step at which one can be seen.
    """
    rows = {}
    for place, mark in enumerate(marks):
        key = (-1, place) if mark.seed is None else (mark.seed, mark.repeat)
        if key in rows:
            raise ValueError(f"crossings: two runs with seed {key[0]}, repeat {key[1]}; give the runs of one setting")
        horizon = max(0, mark.budget - (HOLD if kind == "stable" else 0))
        if mark.step is not None and mark.step > horizon:
            raise ValueError(
                f"crossings: seed {key[0]}: the {kind} crossing at step {mark.step} is later than {horizon}, the last "
                "step that its budget allows"
            )
        crossed = mark.step is not None
        rows[key] = (float(mark.step if crossed else horizon), crossed, horizon)
    if not rows:
        return None
    steps, reached, horizons = zip(*(rows[key] for key in sorted(rows)), strict=True)
    return CrossingTimes(tuple(sorted(rows)), steps, reached, float(min(horizons)))


def median_step(times: CrossingTimes) -> float:
    """Return the median crossing step; infinite if it is beyond the horizon.

    A run that did not cross is later than every crossing.
    """
    return median(np.where(times.crossed, times.steps, np.inf))


def median_text(times: CrossingTimes) -> str:
    """Return the median crossing step as text; `>60` if it is only known to be later than step 60.

    With an even number of runs of which one of the two middle ones crossed at 20 and the other not within 60, the
    median is only known to be later than 40.
    """
    value = median_step(times)
    return f"{value:g}" if math.isfinite(value) else f">{median(times.steps):g}"
