"""Scores of the checkpoints on the held-out cases over training, the base model at step 0."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.figures.look import (
    INK,
    draw_band,
    legend_below,
    look_of,
    method_handles,
    new_figure,
    quartiles_by_step,
    step_axis,
    styled,
)
from dara.analysis.tables.selection import Frames, base_rows, rows_of, select
from dara.config import Experiment, MethodEntry

METRICS = {
    "tool_calling": {"average_accuracy": "Average Accuracy (%)", "average_format": "Average Format (%)"},
    "math": {"acc": "Acc (%)", "exceed": "Exceed (%)", "joint": "Joint (%)"},
}


@styled
def draw(frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> Figure:
    """A row of panels a setting, one column a metric of the task, in percent; median over runs, band = 25 to 75 %.

    The frame's scores are fractions. ValueError where no checkpoint of the experiment was scored.
    """
    selection = select(frames, experiment, methods)
    metrics = METRICS[experiment.task]
    scores = rows_of(selection, frames, "checkpoint_scores", "checkpoint score", metric=list(metrics))
    base = base_rows(selection, frames, metrics)
    figure, panels = new_figure(len(selection.settings), len(metrics), 2.2, sharex="row")
    for row, setting in zip(panels, selection.settings, strict=True):
        chosen = selection.of_setting(scores, setting)
        start = base[base["model"] == setting[0]]
        last = int(selection.of_setting(selection.planned, setting)["steps"].max())
        for axes, (metric, label) in zip(row, metrics.items(), strict=True):
            here, zero = chosen[chosen["metric"] == metric], start[start["metric"] == metric]
            for method in selection.methods:
                curve = _curve(here[here["method"] == method], zero)
                draw_band(axes, curve, look_of(method, methods), marked=True)
            axes.plot(zero["step"], 100 * zero["value"], "o", color=INK, markersize=5, zorder=4, clip_on=False)
            axes.set_ylabel(label)
            step_axis(axes, last)
            axes.set_xlim(-0.02 * last, 1.025 * last)
        row[0].set_title(selection.setting_label(setting), loc="left")
    handles = method_handles(selection, methods, marked=True)
    if len(base):
        handles.append(Line2D([], [], color=INK, marker="o", markersize=5, linestyle="none", label="base model"))
    legend_below(figure, handles, columns=5)
    return figure


def _curve(rows: pd.DataFrame, zero: pd.DataFrame) -> pd.DataFrame:
    """Quartiles in percent by step; every run starts from the same base model, so its score comes first."""
    if rows.empty:
        return quartiles_by_step(rows)
    return 100 * quartiles_by_step(pd.concat([zero, rows], ignore_index=True))
