"""Density against energy: one line before the method, E = B pi (G - 1), and what the methods make of it."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.figures.style import INK, legend_below, method_handles, new_figure, style_of, styled
from dara.analysis.view import Setting, View, missing_data
from dara.analysis.view_runs import RunsView

PANELS = {"before": "before the method (z-scores)", "after": "after the method (contributions)"}


@styled
def draw(view: View) -> Figure:
    """Draw two panels per setting: the sparse reward's energy over its density, a point a step of a run, and the line.

    Before the method all points lie on the line (the paper's Eq. 5); after it, the distance above the line is the
    method's effect. Raise ValueError if the source has no energies: the authors published ratios of energies and
    densities of single steps only.
    """
    if not isinstance(view, RunsView):
        raise missing_data(view, "energies of single steps; the authors published their ratios (figure energy_ratio)")
    measured = {setting: points_of(view, setting) for setting in view.settings}
    measured = {setting: points for setting, points in measured.items() if len(points)}
    figure, panels = new_figure(len(measured), len(PANELS), 2.3, sharey="row", sharex=True)
    for row, (setting, points) in zip(panels, measured.items(), strict=True):
        for axes, (when, title) in zip(row, PANELS.items(), strict=True):
            _draw_points(axes, points, when, view)
            full = _draw_line(axes, points, setting)
            axes.set_title(title)
        row[0].set_ylim(-0.03 * full, max(1.05 * full, 1.05 * float(points[["before", "after"]].max().max())))
        label = view.setting_label(setting)
        name = f"energy of {view.experiment.sparse_reward}"
        row[0].set_ylabel(f"{label}\n{name}" if label else name)
    for axes in panels[-1]:
        axes.set_xlabel(f"density of {view.experiment.sparse_reward} (share of active groups)")
    drawn = {method for points in measured.values() for method in points["method"]}
    handles = method_handles(view, drawn, marked=True, lines=False)
    handles.append(Line2D([], [], color=INK, linewidth=0.9, label=r"$E = B\,\pi\,(G-1)$"))
    legend_below(figure, handles, columns=6)
    return figure


def points_of(view: RunsView, setting: Setting) -> pd.DataFrame:
    """Return one row a run and step: method, density, before, after (energies), groups (B).

    Raise ValueError if no run has energies.
    """
    reward = view.experiment.sparse_reward
    rows = view.rows("energies", f"energies of {reward}", reward=reward)
    counts = view.rows("training_curves", "number of groups", metric="groups")
    counts = counts[["run_id", "step", "value"]].rename(columns={"value": "groups"})
    rows = view.selection.of_setting(rows, setting).merge(counts, on=["run_id", "step"], how="left", validate="1:1")
    points = pd.DataFrame(
        {
            "method": rows["method"],
            "density": rows["density"],
            "before": rows["energy_pos"] + rows["energy_neg"],
            "after": rows["contributed_pos"] + rows["contributed_neg"],
            "groups": rows["groups"],
        }
    )
    return points.assign(run_id=rows["run_id"], step=rows["step"]).sort_values(["run_id", "step"], ignore_index=True)


def _draw_points(axes: Axes, points: pd.DataFrame, when: str, view: RunsView) -> None:
    for method in view.methods:
        mine = points[points["method"] == method]
        style = style_of(method, view.entries)
        axes.plot(
            mine["density"], mine[when], style.marker, color=style.color, markersize=3, markeredgewidth=0, alpha=0.5,
            zorder=3,
        )  # fmt: skip
    axes.set_xlim(-0.015, 1.015)


def _draw_line(axes: Axes, points: pd.DataFrame, setting: Setting) -> float:
    """Draw E = B pi (G - 1) for each number of groups; return the energy at density 1 of the largest."""
    sizes = sorted(set(points["groups"].dropna()))
    for groups in sizes:
        full = groups * (setting.group_size - 1)
        axes.plot([0, 1], [0, full], color=INK, linewidth=0.9, zorder=2)
    return float(sizes[-1] * (setting.group_size - 1))
