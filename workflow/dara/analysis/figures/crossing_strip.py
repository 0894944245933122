"""Strip plot: the step at which each run crosses a threshold of the sparse reward for good."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.crossing import HOLD, WINDOW
from dara.analysis.figures.look import INK, Look, legend_below, look_of, method_handles, new_figure, styled
from dara.analysis.summary import median
from dara.analysis.tables.selection import Frames, Selection, rows_of, select
from dara.config import Experiment, MethodEntry

# Runs that did not get there are open; a dot inside says that a crossing had begun.
OPEN = {"markerfacecolor": "white", "markeredgewidth": 1.0, "clip_on": False}
DOT = {"markersize": 1.7, "markeredgewidth": 0, "clip_on": False}
GROUP_WIDTH = 0.8  # of the distance between two thresholds: the rest keeps the groups apart


@styled
def draw(frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> Figure:
    """A panel a setting: thresholds on the x axis, a point a run at its stable crossing, a tick at the method's median.

    Open markers are runs that did not get there: on the budget line, or, with a dot, at the step where a crossing began
    that the run is too short to confirm. In the median they are later than every crossing; it has no tick where it is
    one of them.
    ValueError where the experiment's sparse reward has no thresholds or no crossings.
    """
    selection = select(frames, experiment, methods)
    reward = experiment.sparse_reward
    thresholds = sorted(experiment.thresholds.get(reward, ()))
    if not thresholds:
        raise ValueError(
            f"experiment {experiment.experiment}: the sparse reward {reward!r} has no thresholds; "
            f"add `thresholds: {{{reward}: [0.8]}}` to the experiment"
        )
    crossings = rows_of(selection, frames, "crossings", f"crossing of {reward}", reward=reward)
    figure, panels = new_figure(len(selection.settings), 1, 2.4)
    for axes, setting in zip(panels[:, 0], selection.settings, strict=True):
        rows = selection.of_setting(crossings, setting)
        runs = selection.of_setting(selection.planned, setting)
        for position, threshold in enumerate(thresholds):
            here = rows[np.isclose(rows["threshold"].astype(float), threshold)]
            _draw_threshold(axes, here, runs, position, selection, methods)
        _finish(axes, int(crossings["budget"].max()), thresholds, reward)
        axes.set_title(selection.setting_label(setting), loc="left")
    _legend(figure, selection, methods, set(crossings["status"]))
    return figure


def _draw_threshold(
    axes: Axes, rows: pd.DataFrame, runs: pd.DataFrame, position: int, selection: Selection, methods
) -> None:
    """The runs of every method at one threshold; a run has the same place in its method's slot at every threshold."""
    slot = GROUP_WIDTH / len(selection.methods)
    for place, method in enumerate(selection.methods):
        mine = rows[rows["method"] == method].set_index("run_id")
        planned = list(runs.loc[runs["method"] == method, "run_id"])
        center = position - GROUP_WIDTH / 2 + slot * (place + 0.5)
        spread = np.linspace(-0.3, 0.3, len(planned)) * slot if len(planned) > 1 else [0.0]
        for offset, run_id in zip(spread, planned, strict=True):
            if run_id in mine.index:
                _draw_run(axes, center + offset, mine.loc[run_id], look_of(method, methods))
        if len(mine):
            middle = median(mine["stable_step"].astype("float64").fillna(np.inf))
            if np.isfinite(middle):
                axes.hlines(middle, center - 0.46 * slot, center + 0.46 * slot, color=INK, linewidth=1.3, zorder=2)


def _draw_run(axes: Axes, x: float, run: pd.Series, look: Look) -> None:
    if run["status"] == "reached":
        axes.plot(x, run["stable_step"], look.marker, color=look.color, zorder=3)
        return
    pending = run["status"] == "pending"
    step = run["pending_step"] if pending else run["budget"]
    axes.plot(x, step, look.marker, color=look.color, **OPEN, markersize=5.5 if pending else 4, zorder=3)
    if pending:
        axes.plot(x, step, "o", color=look.color, **DOT, zorder=4)


def _finish(axes: Axes, budget: int, thresholds: list[float], reward: str) -> None:
    """Threshold labels, the budget line, and quiet separators between the groups."""
    axes.axhline(budget, color=INK, linewidth=0.8, linestyle="--", zorder=1)
    axes.annotate(
        f"budget: {budget} steps", xy=(1, budget), xycoords=("axes fraction", "data"), xytext=(0, 4),
        textcoords="offset points", ha="right", va="bottom", fontsize=7, color=INK,
    )  # fmt: skip
    axes.set_xticks(range(len(thresholds)), [f"{threshold:g}" for threshold in thresholds])
    axes.grid(axis="x", visible=False)
    for edge in range(len(thresholds) - 1):
        axes.axvline(edge + 0.5, color="#cccccc", linewidth=0.6)
    axes.set_xlim(-0.5, len(thresholds) - 0.5)
    axes.set_ylim(0, 1.12 * budget)
    axes.set_xlabel(f"threshold of the {reward} reward (mean of {WINDOW} steps, held for {HOLD} more)")
    axes.set_ylabel("stable crossing (step)")


def _legend(figure: Figure, selection: Selection, methods: Mapping[str, MethodEntry], statuses: set[str]) -> None:
    """The methods, and what is drawn besides their filled markers; only what occurs."""
    handles: list = method_handles(selection, methods, marked=True, lines=False)
    labels = [handle.get_label() for handle in handles]
    circle = Line2D([], [], color=INK, marker="o", linestyle="none", **OPEN)
    dot = Line2D([], [], color=INK, marker="o", linestyle="none", **DOT)
    meanings = {
        "reached": (Line2D([], [], color=INK, linewidth=1.3), "median of the runs"),
        "not_reached": (circle, "not reached"),
        "pending": ((circle, dot), "pending: begun, too late to confirm"),
    }
    for status, (handle, label) in meanings.items():
        if status in statuses:
            handles.append(handle)
            labels.append(label)
    legend_below(figure, handles, columns=4, labels=labels)
