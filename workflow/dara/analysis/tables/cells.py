"""Numbers as they are printed in a cell."""

from __future__ import annotations

import math

from dara.analysis.intervals import LEVEL
from dara.analysis.speed_up import SpeedUp

MISSING = "–"
T_NOTE = (
    f"Interval: {100 * LEVEL:g} % Student's t over seeds (of the mean); none for one seed; [x, x] where all seeds are "
    "equal. It can reach beyond the possible range of the score."
)
WILSON_NOTE = f"Interval of the share of runs that crossed: {100 * LEVEL:g} % Wilson, over runs."


def number(value: float | None, digits: int | None = None) -> str:
    """`value` with `digits` decimals, or as short as it is; a dash where it is undefined."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:.{digits}f}" if digits is not None else f"{value:g}"
    return text.replace("-", "−")


def with_interval(value: float, low: float, high: float, digits: int, scale: float = 1.0) -> str:
    """`81.2 [78.0, 84.4]`, all times `scale`; the value alone where the interval is not defined."""
    shown = number(scale * value, digits)
    if not (math.isfinite(low) and math.isfinite(high)):
        return shown
    return f"{shown} [{number(scale * low, digits)}, {number(scale * high, digits)}]"


def signed(value: float | None) -> str:
    """A difference with its sign: `+4`, `−12.5`, `0`."""
    text = number(value)
    return f"+{text}" if value is not None and math.isfinite(value) and value > 0 else text


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
