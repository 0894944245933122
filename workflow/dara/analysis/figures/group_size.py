"""Group sizes side by side: the density of the sparse reward over steps, and when each run reaches the threshold."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.figures.style import (
    INK,
    draw_band,
    legend_below,
    method_handles,
    new_figure,
    step_axis,
    style_of,
    styled,
)
from dara.analysis.names import headline_threshold
from dara.analysis.view import Mark, Setting, View, missing_data

OPEN = {"markerfacecolor": "white", "markeredgewidth": 1.0}
CURVE_HEIGHT, STRIP_HEIGHT = 1.35, 0.75  # inches


@styled
def draw(view: View) -> Figure:
    """Draw a panel per setting (model and group size): densities, and under them a strip with a mark a run.

    Lines are the middle over runs and bands their quartiles, if the source has them. A marker is at the first step at
    which a run's mean reward is at least that of the paper's claim (`headline_threshold`), open at the end of the
    budget if the run did not cross. Raise ValueError if the source has no density of the sparse reward, or the
    experiment has no threshold for it.
    """
    threshold = threshold_of(view)
    metric = f"density/{view.experiment.sparse_reward}"
    curves = {
        setting: {method: view.curve(metric, method, setting) for method in view.methods} for setting in view.settings
    }
    shown = [setting for setting, found in curves.items() if any(len(curve) for curve in found.values())]
    if not shown:
        raise missing_data(view, f"curve of {metric}")
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    heights = {"height_ratios": [CURVE_HEIGHT, STRIP_HEIGHT] * rows}
    figure, panels = new_figure(2 * rows, columns, (CURVE_HEIGHT + STRIP_HEIGHT) / 2 + 0.2, gridspec_kw=heights)
    drawn = {method for found in curves.values() for method, curve in found.items() if len(curve)}
    for place, setting in enumerate(shown):
        row, column = divmod(place, columns)
        upper, lower = panels[2 * row, column], panels[2 * row + 1, column]
        _draw_densities(upper, view, setting, curves[setting])
        drawn |= _draw_strip(lower, view, setting, threshold)
        upper.set_ylabel(f"{view.experiment.sparse_reward} density" if column == 0 else "")
        lower.set_xlabel("step" if row == rows - 1 else "")
    for place in range(len(shown), rows * columns):
        panels[2 * (rows - 1), place % columns].remove()
        panels[2 * (rows - 1) + 1, place % columns].remove()
    handles = method_handles(view, drawn, marked=True)
    marks = _mark_handles(view.experiment.sparse_reward, threshold)
    legend_below(figure, handles + marks, columns=max(3, len(handles)), note=view.curve_note(metric))
    return figure


def threshold_of(view: View) -> float:
    """Return the threshold whose first crossing is drawn."""
    reward = view.experiment.sparse_reward
    thresholds = view.experiment.thresholds.get(reward, ())
    if not thresholds:
        raise ValueError(
            f"experiment {view.experiment.experiment}: the sparse reward {reward!r} has no thresholds; "
            f"add `thresholds: {{{reward}: [0.8]}}` to the experiment"
        )
    return headline_threshold(reward, thresholds)


def _draw_densities(axes: Axes, view: View, setting: Setting, curves: dict[str, pd.DataFrame]) -> None:
    """Draw the curves of one setting, without step labels, which are under the strip below."""
    for method, curve in curves.items():
        draw_band(axes, curve, style_of(method, view.entries))
    axes.set_title(view.setting_label(setting), loc="left")
    axes.set_ylim(-0.02, 1.03)
    step_axis(axes, view.budget(setting), label=False)
    axes.tick_params(labelbottom=False)


def _draw_strip(axes: Axes, view: View, setting: Setting, threshold: float) -> set[str]:
    """Draw a row for each method, the first on top, equal steps slightly apart; return the methods with crossings."""
    reward = view.experiment.sparse_reward
    drawn = set()
    for row, method in enumerate(view.methods):
        style = style_of(method, view.entries)
        marks = view.marks("first", reward, threshold, method, setting)
        drawn |= {method} if marks else set()
        for mark, shift in zip(marks, _shifts(marks), strict=True):
            kind = {"markersize": 3.5} | ({} if mark.step is not None else OPEN)
            axes.plot(
                place_of(mark), row + shift, style.marker, color=style.color, clip_on=False, zorder=3, **kind
            )  # fmt: skip
    step_axis(axes, view.budget(setting), label=False)
    axes.set_ylim(len(view.methods) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    return drawn


def place_of(mark: Mark) -> int:
    """Return the step of the crossing, or the end of the budget if the run did not cross."""
    return mark.budget if mark.step is None else mark.step


def _shifts(marks: list[Mark]) -> list[float]:
    """Return vertical offsets in rows: 0 for a step of a single run, spread over the row for a step of several."""
    places = [place_of(mark) for mark in marks]
    shifts = []
    for index, place in enumerate(places):
        count, before = places.count(place), places[:index].count(place)
        shifts.append(0.5 * (before - (count - 1) / 2) / max(1, count - 1))
    return shifts


def _mark_handles(reward: str, threshold: float) -> list[Line2D]:
    """Return the legend handles of full and open markers."""
    quiet = {"color": INK, "marker": "o", "linestyle": "none", "markersize": 3.5}
    full = Line2D([], [], **quiet, label=f"first step of a run with {reward} \u2265 {threshold:g}")
    return [full, Line2D([], [], **quiet, **OPEN, label="not within the budget")]
