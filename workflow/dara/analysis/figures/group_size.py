"""Group sizes side by side: the density of the sparse reward over steps, and when each run reaches the threshold."""

from __future__ import annotations

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
    thresholds_of,
)
from dara.analysis.names import headline_threshold
from dara.analysis.view import Setting, View, missing_data

OPEN = {"markerfacecolor": "white", "markeredgewidth": 1.0}
CURVE_HEIGHT, STRIP_HEIGHT = 1.35, 0.75  # inches


def draw(view: View) -> Figure:
    """Draw a panel per setting (model and group size): densities, and under them a strip with a mark a run.

    Lines are the middle over runs and bands their quartiles, if the source has them. A marker is at the first step at
    which a run's mean reward is at least that of the paper's claim (`headline_threshold`), open at the end of the
    budget if the run did not cross. Raise ValueError if the source has no density of the sparse reward, or the
    experiment has no threshold for it.
    """
    reward = view.experiment.sparse_reward
    threshold, metric = headline_threshold(reward, thresholds_of(view)), f"density/{reward}"
    shown = {setting: curves for setting in view.settings if (curves := view.curves(metric, setting))}
    if not shown:
        raise missing_data(view, f"curve of {metric}")
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    heights = {"height_ratios": [CURVE_HEIGHT, STRIP_HEIGHT] * rows}
    figure, panels = new_figure(2 * rows, columns, (CURVE_HEIGHT + STRIP_HEIGHT) / 2 + 0.2, gridspec_kw=heights)
    drawn = {method for curves in shown.values() for method, curve in curves.items() if len(curve)}
    pairs = panels.reshape(rows, 2, columns).swapaxes(1, 2).reshape(-1, 2)  # a density and its strip
    for place, ((upper, lower), (setting, curves)) in enumerate(zip(pairs, shown.items(), strict=False)):
        for method, curve in curves.items():
            draw_band(upper, curve, view, method)
        upper.set_title(view.setting_label(setting), loc="left")
        upper.set_ylim(-0.02, 1.03)
        step_axis(upper, view.budget(setting), label=False)
        upper.tick_params(labelbottom=False)  # steps are under the strip below
        drawn |= _draw_strip(lower, view, setting, threshold)
        upper.set_ylabel(f"{reward} density" if place % columns == 0 else "")
        lower.set_xlabel("step" if place // columns == rows - 1 else "")
    for axes in pairs[len(shown) :].flat:
        axes.remove()
    handles = method_handles(view, drawn, marked=True)
    quiet = {"color": INK, "marker": "o", "linestyle": "none", "markersize": 3.5}
    full = Line2D([], [], **quiet, label=f"first step of a run with {reward} \u2265 {threshold:g}")
    marks = [full, Line2D([], [], **quiet, **OPEN, label="not within the budget")]
    legend_below(figure, handles + marks, columns=max(3, len(handles)), note=view.curve_note(metric))
    return figure


def _draw_strip(axes: Axes, view: View, setting: Setting, threshold: float) -> set[str]:
    """Draw a row for each method, the first on top, equal steps slightly apart; return the methods with crossings."""
    drawn = set()
    for row, method in enumerate(view.methods):
        style = style_of(method, view.entries)
        marks = view.marks("first", view.experiment.sparse_reward, threshold, method, setting)
        drawn |= {method} if marks else set()
        # A run that did not cross is at the end of the budget.
        places = [mark.budget if mark.step is None else mark.step for mark in marks]
        for index, (mark, place) in enumerate(zip(marks, places, strict=True)):
            # Runs at one step are spread over the row.
            count, before = places.count(place), places[:index].count(place)
            shift = 0.5 * (before - (count - 1) / 2) / max(1, count - 1)
            kind = {"markersize": 3.5} | ({} if mark.step is not None else OPEN)
            axes.plot(place, row + shift, style.marker, color=style.color, clip_on=False, zorder=3, **kind)
    step_axis(axes, view.budget(setting), label=False)
    axes.set_ylim(len(view.methods) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    return drawn
