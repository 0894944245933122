"""The sparse reward's share of the advantage energy, before the method and after it, and its parts by sign."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.crossing import WINDOW
from dara.analysis.figures.look import (
    INK,
    Look,
    legend_below,
    look_of,
    method_handles,
    new_figure,
    step_axis,
    styled,
)
from dara.analysis.selection import rows_of
from dara.analysis.view import View
from dara.analysis.view_runs import RunsView, curve_over_runs, no_numbers

BEFORE = (0, (3, 1.5))
"""Line style of what is before the method."""

PANELS = {
    "whole share": ("share_before", "share_after"),
    "part of positive advantages": ("positive_before", "positive_after"),
    "part of negative advantages": ("negative_before", "negative_after"),
}


@styled
def draw(view: View) -> Figure:
    """A row of panels a setting: the share, and its parts of positive and of negative advantages, which add up to it.

    All are fractions of the energy of all rewards, averaged over the last WINDOW steps of a run (near saturation a step
    has one active group or none, and its share jumps); dashed of the z-scores, solid of what the method contributes.
    Medians over runs, with a 25 to 75 % band on the solid line.
    ValueError where there are no energies; only own runs have them by sign.
    """
    if not isinstance(view, RunsView):
        raise no_numbers(view, "energies of single steps by sign; they are computed from the rewards of own runs")
    experiment, selection = view.experiment, view.selection
    energies = rows_of(selection, view.frames, "energies", "energies")
    shares = _trailing_means(parts_by_sign(energies, experiment.sparse_reward))
    if shares.empty:
        raise ValueError(
            f"experiment {experiment.experiment}: the frame `energies` has no row "
            f"of the reward {experiment.sparse_reward!r}"
        )
    settings = [setting for setting in view.settings if len(selection.of_setting(shares, setting))]
    figure, panels = new_figure(len(settings), len(PANELS), 2.1, sharex="row", sharey=True)
    for row, setting in zip(panels, settings, strict=True):
        chosen = selection.of_setting(shares, setting)
        last = int(chosen["step"].max())
        for axes, (title, (before, after)) in zip(row, PANELS.items(), strict=True):
            for place, method in enumerate(view.methods):
                rows = chosen[chosen["method"] == method]
                _draw_pair(axes, rows, before, after, look_of(method, view.entries), place, last)
            axes.set_title(title)
            axes.set_ylim(bottom=-0.015)  # a line at 0 stays whole
            step_axis(axes, last)
        label = view.setting_label(setting)
        name = f"share of {experiment.sparse_reward} in the energy\n(trailing mean, {WINDOW} steps)"
        row[0].set_ylabel(f"{label}\n{name}" if label else name)
    note = view.curve_note(f"density/{experiment.sparse_reward}")
    legend_below(figure, _handles(view, set(shares["method"])), columns=6, note=note)
    return figure


def parts_by_sign(energies: pd.DataFrame, reward: str) -> pd.DataFrame:
    """The rows of `reward`, with its positive and negative energy as shares of all rewards' energy at that step.

    Adds positive_before, negative_before (z-scores) and positive_after, negative_after (contributions); a share of
    no energy is undefined (NaN).
    """
    columns = {"before": ("energy_pos", "energy_neg"), "after": ("contributed_pos", "contributed_neg")}
    energies = energies.copy()
    for when, (positive, negative) in columns.items():
        total = (
            (energies[positive] + energies[negative]).groupby([energies["run_id"], energies["step"]]).transform("sum")
        )
        energies[f"positive_{when}"] = energies[positive] / total.where(total > 0)
        energies[f"negative_{when}"] = energies[negative] / total.where(total > 0)
    return energies[energies["reward"] == reward]


def _trailing_means(shares: pd.DataFrame) -> pd.DataFrame:
    """The shares averaged over the last WINDOW steps (fewer at the start) of each run, undefined ones left out."""
    shares = shares.sort_values(["run_id", "step"])
    names = [name for pair in PANELS.values() for name in pair]
    means = shares.groupby("run_id")[names].rolling(WINDOW, min_periods=1).mean()
    return shares.assign(**means.droplevel(0))


def _draw_pair(axes: Axes, rows: pd.DataFrame, before: str, after: str, look: Look, place: int, last: int) -> None:
    """Dashed before and solid after; here the marker tells the methods apart, staggered so that they do not cover."""
    gap = max(1, last // 6)
    every = (place * gap // 4, gap)
    curve = curve_over_runs(rows, before)
    axes.plot(curve.index, curve["middle"], color=look.color, linestyle=BEFORE, linewidth=0.9)
    curve = curve_over_runs(rows, after)
    axes.fill_between(curve.index, curve["low"], curve["high"], color=look.color, alpha=0.13, linewidth=0)
    axes.plot(curve.index, curve["middle"], color=look.color, marker=look.marker, markevery=every, markersize=3.5)


def _handles(view: View, drawn: set[str]) -> list[Line2D]:
    """A marker a method, and what the two line styles mean."""
    handles = method_handles(view, drawn, marked=True, line="-")
    handles.append(Line2D([], [], color=INK, linestyle=BEFORE, linewidth=0.9, label="before (z-scores)"))
    handles.append(Line2D([], [], color=INK, label="after the method"))
    return handles
