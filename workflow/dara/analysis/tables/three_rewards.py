"""Table: what a third reward (short thoughts) costs the format: two rewards against three."""

from __future__ import annotations

import math

import pandas as pd

from dara.analysis.tables.at_step import (
    digits,
    is_published,
    mean_sd,
    runs_behind,
    setting_cells,
    setting_columns,
    spread_note,
    step_note,
    steps_at,
    title_of,
)
from dara.analysis.tables.cells import MISSING, number
from dara.analysis.tables.render import Table
from dara.analysis.tables.sources import of_experiment
from dara.analysis.view import Estimate, View, missing_data

TWO = "tool_main"
"""The experiment of the runs with two rewards."""

METRICS = {"average_format": "Format", "format/multi_turn": "Multi-Turn", "average_accuracy": "Acc"}
LENGTH = "average_think_length"


def build(view: View, at: int = 100) -> Table:
    """One row a (setting, method): average and multi-turn format with two and with three rewards, length compliance.

    Args:
        view: the experiment with three rewards; the runs with two are those of the experiment `tool_main`.
        at: the published step; of a shorter training of ours, the same share of it (`steps_at`).

    Returns:
        Raw columns: for each metric <metric>_2, <metric>_3 and <metric>_difference (three minus two), fractions;
        average_think_length, and n_2, n_3. A metric that the source does not have is left out, and named in a note.

    Raises:
        ValueError: the source has no score with three rewards, or no run with two.
    """
    two = of_experiment(view, TWO, tuple(reward for reward in view.experiment.rewards if reward != "length"))
    steps = steps_at(view, ["average_format"], at)
    rows = []
    for setting, step in steps.items():
        for method in view.methods:
            three = {metric: view.score(metric, method, setting, step) for metric in (*METRICS, LENGTH)}
            if any(three.values()):
                fewer = {metric: two.score(metric, method, setting, step) for metric in METRICS}
                rows.append({**setting_cells(setting), **_row(view, method, fewer, three)})
    if not rows:
        raise missing_data(view, f"score with {len(view.experiment.rewards)} rewards")
    frame = pd.DataFrame(rows)
    shown = [metric for metric in METRICS if frame[f"{metric}_3"].notna().any()]
    columns = [f"{METRICS[metric]} {suffix}" for metric in shown for suffix in ("2", "3", "change")]
    columns += ["Length 3"] if frame[LENGTH].notna().any() else []
    counts = ["n 2", "n 3"]
    hidden = [name for metric in METRICS if metric not in shown for name in _names(metric)]
    return Table(
        frame.drop(columns=hidden),
        title_of(view, "Two rewards against three"),
        [*_absent_notes(view, frame), *_notes(view, two, steps, at)],
        [*setting_columns(view), "Method", *columns, *counts],
        numeric=("G", *columns, *counts),
    )


def _absent_notes(view: View, frame: pd.DataFrame) -> list[str]:
    """Which scores of the paper's table ours do not have."""
    if is_published(view):
        return []
    absent = [METRICS[metric] for metric in METRICS if frame[f"{metric}_3"].isna().all()]
    absent += ["Length"] if frame[LENGTH].isna().all() else []
    return [f"Not measured by the benchmark of these runs: {', '.join(absent)}."] if absent else []


def _names(metric: str) -> list[str]:
    """The columns of a metric, display and raw."""
    return [f"{METRICS[metric]} {end}" for end in ("2", "3", "change")] + [
        f"{metric}_{e}" for e in ("2", "3", "difference")
    ]


def _row(
    view: View, method: str, fewer: dict[str, Estimate | None], three: dict[str, Estimate | None]
) -> dict[str, object]:
    row: dict[str, object] = {"Method": view.method_label(method), "method": method}
    for metric, name in METRICS.items():
        pair = (fewer[metric], three[metric])
        values = [estimate.value if estimate else math.nan for estimate in pair]
        change = values[1] - values[0]
        row |= {f"{name} {count}": mean_sd(estimate, digits(view)) for count, estimate in zip("23", pair, strict=True)}
        row[f"{name} change"] = MISSING if math.isnan(change) else ("+" if change > 0 else "") + number(100 * change, 1)
        row |= {f"{metric}_2": values[0], f"{metric}_3": values[1], f"{metric}_difference": change}
    length = three[LENGTH]
    row |= {"Length 3": mean_sd(length, digits(view)), LENGTH: length.value if length else math.nan}
    return row | {"n 2": runs_behind(list(fewer.values())), "n 3": runs_behind(list(three.values()))}


def _notes(view: View, two: View, steps: dict, at: int) -> list[str]:
    metrics = [*METRICS, LENGTH]
    shown = list(dict.fromkeys(steps.values()))
    notes = [
        "2: correctness and format; 3: length too. Change: 3 minus 2, in percentage points, between different runs and "
        "without an interval. Format: Average Format; Multi-Turn: format of the multi-turn group; Length: share of "
        "outputs whose thought is short enough, averaged like the format.",
        step_note(view, steps, at),
        spread_note(view),
    ]
    setting, step = next(iter(steps.items()))
    ends = [_first(view, f"average_accuracy:{end}", setting, step) for end in ("low", "high")]
    if is_published(view) and all(ends):
        low, high = (number(100 * end.value, 2) for end in ends)
        notes.append(f"Average accuracy with three rewards: {low} to {high} %, one range for all methods.")
    return [
        *notes,
        *(f"3 rewards: {note}" for note in view.notes(metrics, shown)),
        *(f"2 rewards: {note}" for note in two.notes([m for m in METRICS if m != "average_accuracy"], shown)),
    ]


def _first(view: View, metric: str, setting: tuple, step: int | None) -> Estimate | None:
    found = (view.score(metric, method, setting, step) for method in view.methods)
    return next((estimate for estimate in found if estimate), None)
