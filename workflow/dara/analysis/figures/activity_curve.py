"""How likely a group is to be active, by the mean of a 0/1 reward and the group size, with the measured densities."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.figures.style import INK, legend_below, method_handles, new_figure, style_of, styled
from dara.analysis.view import Setting, View, missing_data
from dara.analysis.view_runs import RunsView

GROUP_SIZES = (4, 8, 16, 32)
QUIET = "#a0a0a0"
STYLES = ((0, (1, 1)), (0, (3, 1)), (0, (6, 1.2)), "-", (0, (6, 1, 1, 1)), (0, (3, 1, 1, 1)))


@styled
def draw(view: View) -> Figure:
    """Draw one panel per setting that has numbers: the curves of all group sizes, and the measured points.

    A point is one step: the mean of the sparse reward and the share of active groups. They come from each run if the
    source has runs, else from the curves over runs (there the two medians of a step may be of different runs). The
    curve is concave, so points lie below it, apart from chance, if prompts differ in difficulty. Raise ValueError if
    the source has no step with both numbers, or the reward is not a share.
    """
    reward = view.experiment.sparse_reward
    measured = {setting: points_of(view, setting) for setting in view.settings}
    measured = {setting: found for setting, found in measured.items() if any(len(rows) for rows in found.values())}
    if not measured:
        raise missing_data(view, f"step with both reward/{reward}/mean and density/{reward}")
    sizes = sorted({*GROUP_SIZES, *(setting.group_size for setting in measured if setting.group_size)})
    columns = 1 if len(measured) == 1 else 2
    rows = -(-len(measured) // columns)
    figure, panels = new_figure(rows, columns, 2.6 if columns == 1 else 2.1, sharex=True, sharey=True)
    for axes, (setting, found) in zip(panels.flat, measured.items(), strict=False):
        _draw_curves(axes, sizes, setting.group_size)
        for method, steps in found.items():
            style = style_of(method, view.entries)
            axes.plot(
                steps["mean"], steps["density"], style.marker, color=style.color, markersize=2.6, markeredgewidth=0,
                alpha=0.5, zorder=3,
            )  # fmt: skip
        axes.set_title(view.setting_label(setting), loc="left")
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylim(-0.02, 1.1)
    for axes in panels.flat[len(measured) :]:
        axes.remove()
    for axes in panels[:, 0]:
        axes.set_ylabel("share of active groups\n(line: $1 - p^G - (1-p)^G$)")
    point = "one step of a run" if isinstance(view, RunsView) else "one step, the middle over runs"
    for axes in panels.flat[max(0, len(measured) - columns) : len(measured)]:
        axes.set_xlabel(f"p: mean of the {reward} reward\n(a point: {point})")
        axes.xaxis.set_tick_params(labelbottom=True)
    drawn = {method for found in measured.values() for method, steps in found.items() if len(steps)}
    handles = method_handles(view, drawn, marked=True, lines=False)
    legend_below(figure, handles + _size_handles(sizes), columns=max(4, len(handles)))
    return figure


def activity(mean: np.ndarray, group_size: int) -> np.ndarray:
    """Return P(G independent 0/1 rewards are not all equal) = 1 - p^G - (1 - p)^G; mean (...) -> (...)."""
    mean = np.asarray(mean, dtype=float)
    return 1 - mean**group_size - (1 - mean) ** group_size


def points_of(view: View, setting: Setting) -> dict[str, pd.DataFrame]:
    """Return for each method the steps with both numbers: columns mean and density, both shares.

    Raise ValueError if a mean lies outside [0, 1]: the formula is for a reward that is 0 or 1.
    """
    reward = view.experiment.sparse_reward
    names = {"mean": f"reward/{reward}/mean", "density": f"density/{reward}"}
    find = _runs_points if isinstance(view, RunsView) else _curve_points
    found = {method: find(view, setting, method, names) for method in view.methods}
    for method, steps in found.items():
        outside = steps[(steps["mean"] < 0) | (steps["mean"] > 1)]
        if len(outside):
            raise ValueError(
                f"{view.source}: experiment {view.experiment.experiment}: {method} has a mean {reward} reward of "
                f"{outside['mean'].iloc[0]:g}; the activity curve is that of a reward between 0 and 1"
            )
    return found


def _runs_points(view: RunsView, setting: Setting, method: str, names: dict[str, str]) -> pd.DataFrame:
    rows = view.rows("training_curves", "training curve", metric=list(names.values()))
    rows = view.selection.of_setting(rows, setting)
    rows = rows[rows["method"] == method]
    wide = rows.pivot(index=["run_id", "step"], columns="metric", values="value")
    wide = wide.reindex(columns=list(names.values())).set_axis(list(names), axis=1)
    return wide.dropna().sort_index().reset_index(drop=True)


def _curve_points(view: View, setting: Setting, method: str, names: dict[str, str]) -> pd.DataFrame:
    middles = {column: view.curve(metric, method, setting)["middle"] for column, metric in names.items()}
    return pd.concat(middles, axis=1).dropna().astype(float).sort_index().reset_index(drop=True)


def _draw_curves(axes: Axes, sizes: list[int], own: int | None) -> None:
    """Draw the formula for each group size; the panel's own size is dark and bold."""
    mean = np.linspace(0, 1, 401)
    for size, style in zip(sizes, STYLES, strict=False):
        ink = {"color": INK, "linewidth": 1.3} if size == own else {"color": QUIET, "linewidth": 0.9}
        axes.plot(mean, activity(mean, size), linestyle=style, zorder=2, **ink)


def _size_handles(sizes: list[int]) -> list[Line2D]:
    """Return a legend handle for each group size, with its line style."""
    lines = zip(sizes, STYLES, strict=False)
    return [Line2D([], [], color=INK, linestyle=style, label=f"G = {size}") for size, style in lines]
