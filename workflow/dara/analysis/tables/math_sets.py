"""Table: held-out math scores of each of the five benchmarks, at the step of the table of their means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from dara.analysis.intervals import LEVEL, RESAMPLES
from dara.analysis.names import BASE
from dara.analysis.tables.at_step import (
    BASE_LABEL,
    Steps,
    digits,
    runs_behind,
    setting_cells,
    setting_columns,
    step_name,
    step_note,
    steps_at,
    title_of,
)
from dara.analysis.tables.cells import MISSING, with_interval
from dara.analysis.tables.math_scores import METRICS, meaning_note
from dara.analysis.tables.render import Table
from dara.analysis.view import Estimate, Setting, View, missing_data

SETS = {
    "math500": "MATH-500",
    "aime24": "AIME 2024",
    "amc": "AMC",
    "minerva": "Minerva",
    "olympiadbench": "OlympiadBench",
}
"""The benchmarks, as metrics name them (`acc/math500`), with their headers."""

MEAN = "Mean"
RAW = ("low", "high", "question_low", "question_high", "n")


def build(view: View, at: int = 50) -> Table:
    """One row a (setting, score, method), one column a benchmark, and the mean in which each benchmark counts alike.

    Args:
        view: an experiment on math with scores of the five benchmarks.
        at: the published step; of a shorter training of ours, the same share of it (`steps_at`).

    Returns:
        Raw columns: score, method, step, and for each set and `mean` the value as a fraction, _low and _high (over
        runs), _question_low and _question_high (over questions, of a single run), _n.

    Raises:
        ValueError: the source has no score of a single benchmark at that step.
    """
    sets = [f"{metric}/{name}" for metric in METRICS for name in SETS]
    if not any(len(view.curve(name, method, s)) for name in sets for method in view.methods for s in view.settings):
        raise missing_data(view, f"score of a single benchmark ({', '.join(SETS)})")
    steps = steps_at(view, list(METRICS), at)
    rows = [
        row
        for setting, step in steps.items()
        for metric in METRICS
        for method in (BASE, *view.methods)
        if (row := _row(view, setting, metric, method, step))
    ]
    columns = [*SETS.values(), MEAN]
    return Table(
        pd.DataFrame(rows),
        title_of(view, f"Math scores of each benchmark at {step_name(view, steps, at)}"),
        _notes(view, steps, at),
        [*setting_columns(view), "Score", "Method", "n", *columns],
        numeric=("G", "n", *columns),
    )


def _row(view: View, setting: Setting, metric: str, method: str, step: int | None) -> dict[str, object]:
    """Empty where the method has no such score."""
    at = 0 if method == BASE else step
    found = {name: view.score(f"{metric}/{name}", method, setting, at) for name in SETS}
    found["mean"] = view.score(metric, method, setting, at)
    if not any(found.values()):
        return {}
    row: dict[str, object] = {**setting_cells(setting), "Score": METRICS[metric]}
    row["Method"] = BASE_LABEL if method == BASE else view.method_label(method)
    row["n"] = runs_behind(list(found.values()))
    row |= {header: _cell(found[name], digits(view)) for name, header in (SETS | {"mean": MEAN}).items()}
    row |= {"score": metric, "method": method, "step": at}
    for name, estimate in found.items():
        row[name] = estimate.value if estimate else math.nan
        row |= {f"{name}_{part}": _raw(getattr(estimate, part, None)) for part in RAW}
    return row


def _cell(estimate: Estimate | None, decimals: int) -> str:
    """`45.8 [41.4, 50.2]`: over runs, or of a single run over its questions."""
    if estimate is None:
        return MISSING
    over_runs, over_questions = (estimate.low, estimate.high), (estimate.question_low, estimate.question_high)
    low, high = (_raw(end) for end in (over_questions if estimate.low is None else over_runs))
    return with_interval(estimate.value, low, high, decimals, 100)


def _raw(value: float | None) -> float:
    return math.nan if value is None else value


def _notes(view: View, steps: Steps, at: int) -> Sequence[str]:
    return [
        f"{meaning_note(METRICS)} {MEAN}: each benchmark counts alike, however many questions it has.",
        step_note(view, steps, at),
        f"In percent (CSV: fractions). {100 * LEVEL:g} % interval: of several runs Student's t over seeds; "
        f"of one run (n 1) and of the base model a percentile bootstrap over the questions ({RESAMPLES:,} resamples, "
        "within each benchmark), which says nothing about other seeds. Diverged runs are left out.",
        *view.notes(),
    ]
