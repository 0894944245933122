"""Table: DARA against the same form with fixed weights, in the math scores, with their differences."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd

from dara.analysis.compare import Difference, score_difference
from dara.analysis.names import FIXED
from dara.analysis.tables.at_step import (
    Steps,
    digits,
    is_published,
    score_table,
    setting_cells,
    step_note,
    steps_at,
)
from dara.analysis.tables.cells import MISSING, with_interval
from dara.analysis.tables.math_scores import METRICS, meaning_note
from dara.analysis.tables.render import Table
from dara.analysis.view import Setting, View, missing_data
from dara.analysis.view_runs import RunsView


def build(view: View, at: int = 100) -> Table:
    """One row a (setting, method), then one a pair: the method of adaptive weights minus that of fixed ones.

    Args:
        view: an experiment with both methods of a pair at least.
        at: the step of ours (`steps_at`); the authors do not say at which step their scores are.

    Returns:
        The rows of the differences have the method `<adaptive>-<fixed>`; of ours _low and _high are the ends of the
        interval in the frame score_intervals, and _n the pairs.

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
        _difference(view, setting, step, at, *pair)
        for setting, step in steps.items()
        for pair in FIXED.items()
        if set(pair) <= set(view.methods)
    ]
    if not rows:
        raise missing_data(view, f"pair of {', '.join(f'{one} and {other}' for one, other in FIXED.items())}")
    interval = (
        "without an interval, of one run each"
        if is_published(view)
        else "mean over pairs of runs with the same seed [95 % Student's t interval over pairs; of one pair a "
        "bootstrap over questions]; n: pairs"
    )
    note = f"Differences: adaptive minus fixed, in percentage points: {interval}."
    return replace(
        table,
        frame=pd.concat([table.frame, pd.DataFrame(rows)], ignore_index=True),
        notes=[*table.notes[:2], note, *table.notes[2:]],
    )


def _difference(
    view: View, setting: Setting, step: int | None, at: int, adaptive: str, fixed: str
) -> dict[str, object]:
    names = f"{view.methods[adaptive].label} − {view.methods[fixed].label}"
    row: dict[str, object] = {**setting_cells(setting), "Method": names, "method": f"{adaptive}-{fixed}"}
    row["step"] = math.nan if step is None else step
    counts = []
    for metric, header in METRICS.items():
        found = _paired(view, setting, at, metric, (adaptive, fixed))
        row |= {metric: found.value, f"{metric}_low": found.low, f"{metric}_high": found.high}
        row |= {f"{metric}_sd": math.nan, f"{metric}_n": found.pairs}
        row[header] = _shown(found, digits(view))
        counts.append(found.pairs)
    row["n"] = str(max(counts)) if max(counts) else MISSING
    return row


def _paired(view: View, setting: Setting, at: int, metric: str, pair: tuple[str, str]) -> Difference:
    """Difference of a score; NaN where there is no pair."""
    nothing = Difference(math.nan, math.nan, math.nan, 0)
    if isinstance(view, RunsView):
        found = score_difference(view, metric, pair, setting, at)
        return found[1] if found else nothing
    scores = [view.score(metric, method, setting, None) for method in pair]
    if not all(scores):
        return nothing
    return replace(nothing, value=scores[0].value - scores[1].value, pairs=min(score.n or 0 for score in scores))


def _shown(found: Difference, decimals: int) -> str:
    """`+1.19`, or `+1.2 [−0.3, 2.7]`, in percentage points."""
    shown = with_interval(found.value, found.low, found.high, decimals, 100)
    return f"+{shown}" if found.value > 0 else shown
