"""Table: DARA against the same form with fixed weights, in the math scores, with their differences."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd

from dara.analysis.names import FIXED
from dara.analysis.paired import paired_scores
from dara.analysis.tables.at_step import (
    RAW,
    Steps,
    digits,
    is_published,
    score_table,
    setting_cells,
    step_note,
    steps_at,
)
from dara.analysis.tables.cells import MISSING, number
from dara.analysis.tables.math_scores import METRICS, meaning_note
from dara.analysis.tables.render import Table
from dara.analysis.tables.sources import scores_by_seed
from dara.analysis.view import Setting, View
from dara.analysis.view_runs import no_numbers


def build(view: View, at: int = 100) -> Table:
    """One row a (setting, method), then one a pair: the method of adaptive weights minus that of fixed ones.

    Args:
        view: an experiment with both methods of a pair at least.
        at: the step of ours (`steps_at`); the authors do not say at which step their scores are.

    Returns:
        The rows of the differences have the method `<adaptive>-<fixed>`; of ours _low and _high are the t interval
        over pairs of runs with the same seed, and _n the pairs.

    Raises:
        ValueError: the source has no math score, or no pair.
    """
    if is_published(view):
        steps: Steps = dict.fromkeys(view.settings)
        where = "The authors do not say at which step, nor how many seeds."
    else:
        steps = steps_at(view, list(METRICS), at)
        where = step_note(view, steps, at)
    table = score_table(view, METRICS, steps, "Density-aware against fixed weights", [meaning_note(METRICS), where])
    rows = [
        _difference(view, setting, step, *pair)
        for setting, step in steps.items()
        for pair in FIXED.items()
        if set(pair) <= set(view.methods)
    ]
    if not rows:
        raise no_numbers(view, f"pair of {', '.join(f'{one} and {other}' for one, other in FIXED.items())}")
    interval = (
        "without an interval, of one run each"
        if is_published(view)
        else "mean over pairs of runs with the same seed [95 % Student's t interval over pairs]; n: pairs"
    )
    note = f"Differences: adaptive minus fixed, in percentage points: {interval}."
    return replace(
        table,
        frame=pd.concat([table.frame, pd.DataFrame(rows)], ignore_index=True),
        notes=[*table.notes[:2], note, *table.notes[2:]],
    )


def _difference(view: View, setting: Setting, step: int | None, adaptive: str, fixed: str) -> dict[str, object]:
    names = f"{view.methods[adaptive].label} − {view.methods[fixed].label}"
    row: dict[str, object] = {**setting_cells(setting), "Method": names, "method": f"{adaptive}-{fixed}"}
    row["step"] = math.nan if step is None else step
    counts = []
    for metric, header in METRICS.items():
        value, low, high, n = _paired(view, setting, step, metric, adaptive, fixed)
        row |= {metric: value} | dict(zip((f"{metric}_{name}" for name in RAW), (low, high, math.nan, n), strict=True))
        row[header] = _shown(value, low, high, digits(view))
        counts.append(n)
    row["n"] = str(max(counts)) if max(counts) else MISSING
    return row


def _paired(view: View, setting: Setting, step: int | None, metric: str, *pair: str) -> tuple[float, float, float, int]:
    """Difference of a score, the ends of its interval (NaN without one), and the number of pairs."""
    if not is_published(view):
        found = paired_scores(*(scores_by_seed(view, setting, step, metric, method) for method in pair))
        ends = (found.interval.low, found.interval.high) if found.interval else (math.nan, math.nan)
        return found.mean, *ends, found.n
    scores = [view.score(metric, method, setting, step) for method in pair]
    if not all(scores):
        return math.nan, math.nan, math.nan, 0
    return scores[0].value - scores[1].value, math.nan, math.nan, min(score.n or 0 for score in scores)


def _shown(value: float, low: float, high: float, decimals: int) -> str:
    """`+1.19`, or `+1.2 [−0.3, 2.7]`, in percentage points."""
    if math.isnan(value):
        return MISSING
    shown = ("+" if value > 0 else "") + number(100 * value, decimals)
    if math.isnan(low):
        return shown
    return f"{shown} [{number(100 * low, decimals)}, {number(100 * high, decimals)}]"
