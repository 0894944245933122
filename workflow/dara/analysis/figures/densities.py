"""The density of active groups of the sparse reward, step by step: against its mean, and against its energy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.figures.style import INK, legend_below, method_handles, new_figure, style_of
from dara.analysis.view import Setting, View, missing_data
from dara.analysis.view_runs import RunsView

GROUP_SIZES = (4, 8, 16, 32)
QUIET = "#a0a0a0"
STYLES = ((0, (1, 1)), (0, (3, 1)), (0, (6, 1.2)), "-", (0, (6, 1, 1, 1)), (0, (3, 1, 1, 1)))
PANELS = {"before": "before the method (z-scores)", "after": "after the method (contributions)"}


def draw_activity(view: View) -> Figure:
    """Draw how likely a group is to be active, by the mean of a 0/1 reward and the group size, with the measured
    densities.

    One panel per setting that has numbers: the curves of all group sizes, and the measured points. A point is one step:
    the mean of the sparse reward and the share of active groups. They come from each run if the source has runs, else
    from the curves over runs (there the two medians of a step may be of different runs). The curve is concave, so
    points lie below it, apart from chance, if prompts differ in difficulty. Raise ValueError if the source has no step
    with both numbers, or the reward is not a share.
    """
    reward = view.experiment.sparse_reward
    measured = {setting: _activity_points(view, setting) for setting in view.settings}
    measured = {setting: found for setting, found in measured.items() if any(len(rows) for rows in found.values())}
    if not measured:
        raise missing_data(view, f"step with both reward/{reward}/mean and density/{reward}")
    sizes = sorted({*GROUP_SIZES, *(setting.group_size for setting in measured if setting.group_size)})
    lines, mean = list(zip(sizes, STYLES, strict=False)), np.linspace(0, 1, 401)
    columns = 1 if len(measured) == 1 else 2
    height, shared = 2.6 if columns == 1 else 2.1, {"sharex": True, "sharey": True}
    figure, panels = new_figure(-(-len(measured) // columns), columns, height, **shared)
    for axes, (setting, found) in zip(panels.flat, measured.items(), strict=False):
        for size, line in lines:  # the panel's own size is dark and bold
            ink = {"color": INK, "linewidth": 1.3} if size == setting.group_size else {"color": QUIET, "linewidth": 0.9}
            axes.plot(mean, activity(mean, size), linestyle=line, zorder=2, **ink)
        for method, steps in found.items():
            _draw_points(axes, steps["mean"], steps["density"], view, method, 2.6)
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
    handles_of_sizes = [Line2D([], [], color=INK, linestyle=line, label=f"G = {size}") for size, line in lines]
    legend_below(figure, handles + handles_of_sizes, columns=max(4, len(handles)))
    return figure


def draw_energy(view: View) -> Figure:
    """Draw density against energy: one line before the method, E = B pi (G - 1), and what the methods make of it.

    Two panels per setting: the sparse reward's energy over its density, a point a step of a run, and the line. Before
    the method all points lie on the line (the paper's Eq. 5); after it, the distance above the line is the method's
    effect. Raise ValueError if the source has no energies: the authors published ratios of energies and densities of
    single steps only.
    """
    if not isinstance(view, RunsView):
        raise missing_data(view, "energies of single steps; the authors published their ratios (figure energy_ratio)")
    reward, points = view.experiment.sparse_reward, _energy_points(view)
    measured = {setting: view.selection.of_setting(points, setting) for setting in view.settings}
    measured = {setting: found for setting, found in measured.items() if len(found)}
    figure, panels = new_figure(len(measured), len(PANELS), 2.3, sharey="row", sharex=True)
    for row, (setting, found) in zip(panels, measured.items(), strict=True):
        # The line is drawn for each number of groups; `full` is the energy at density 1 of the largest.
        energies = [groups * (setting.group_size - 1) for groups in sorted(set(found["groups"].dropna()))]
        full = float(energies[-1])
        for axes, (when, title) in zip(row, PANELS.items(), strict=True):
            for method in view.methods:
                mine = found[found["method"] == method]
                _draw_points(axes, mine["density"], mine[when], view, method, 3)
            axes.set_xlim(-0.015, 1.015)
            for energy in energies:
                axes.plot([0, 1], [0, energy], color=INK, linewidth=0.9, zorder=2)
            axes.set_title(title)
        row[0].set_ylim(-0.03 * full, max(1.05 * full, 1.05 * float(found[["before", "after"]].max().max())))
        label = view.setting_label(setting)
        row[0].set_ylabel(f"{label}\nenergy of {reward}" if label else f"energy of {reward}")
    for axes in panels[-1]:
        axes.set_xlabel(f"density of {reward} (share of active groups)")
    drawn = {method for found in measured.values() for method in found["method"]}
    handles = method_handles(view, drawn, marked=True, lines=False)
    handles.append(Line2D([], [], color=INK, linewidth=0.9, label=r"$E = B\,\pi\,(G-1)$"))
    legend_below(figure, handles, columns=6)
    return figure


def activity(mean: np.ndarray, group_size: int) -> np.ndarray:
    """Return P(G independent 0/1 rewards are not all equal) = 1 - p^G - (1 - p)^G; mean (...) -> (...)."""
    mean = np.asarray(mean, dtype=float)
    return 1 - mean**group_size - (1 - mean) ** group_size


def _activity_points(view: View, setting: Setting) -> dict[str, pd.DataFrame]:
    """Return for each method the steps with both numbers: columns mean and density, both shares.

    Raise ValueError if a mean lies outside [0, 1]: the formula is for a reward that is 0 or 1.
    """
    reward = view.experiment.sparse_reward
    names = {f"reward/{reward}/mean": "mean", f"density/{reward}": "density"}
    found = {}
    for method in view.methods:
        if isinstance(view, RunsView):
            rows = view.selection.of_setting(view.rows("training_curves", "training curve", metric=[*names]), setting)
            wide = rows[rows["method"] == method].pivot(index=["run_id", "step"], columns="metric", values="value")
        else:
            wide = pd.concat({metric: view.curve(metric, method, setting)["middle"] for metric in names}, axis=1)
        wide = wide.reindex(columns=[*names]).set_axis([*names.values()], axis=1)
        steps = found[method] = wide.dropna().astype(float).sort_index().reset_index(drop=True)
        outside = steps.loc[(steps["mean"] < 0) | (steps["mean"] > 1), "mean"]
        if len(outside):
            raise ValueError(
                f"{view.source}: experiment {view.experiment.experiment}: {method} has a mean {reward} reward of "
                f"{outside.iloc[0]:g}; the activity curve is that of a reward between 0 and 1"
            )
    return found


def _energy_points(view: RunsView) -> pd.DataFrame:
    """Return the energies of the sparse reward by run and step, with the energies before and after, and the groups (B).

    Raise ValueError if no run has energies.
    """
    reward = view.experiment.sparse_reward
    rows = view.rows("energies", f"energies of {reward}", reward=[reward])
    counts = view.rows("training_curves", "number of groups", metric=["groups"])
    counts = counts[["run_id", "step", "value"]].rename(columns={"value": "groups"})
    rows = rows.merge(counts, on=["run_id", "step"], how="left", validate="1:1").assign(
        before=lambda rows: rows["energy_pos"] + rows["energy_neg"],
        after=lambda rows: rows["contributed_pos"] + rows["contributed_neg"],
    )
    return rows.sort_values(["run_id", "step"], ignore_index=True)


def _draw_points(axes: Axes, x: pd.Series, y: pd.Series, view: View, method: str, size: float) -> None:
    style = style_of(method, view.entries)
    axes.plot(x, y, style.marker, color=style.color, markersize=size, markeredgewidth=0, alpha=0.5, zorder=3)
