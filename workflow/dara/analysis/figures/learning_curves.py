"""Learning curves: each training reward over steps, and below it the reward's active-group density."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
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
from dara.analysis.tables.selection import Frames, rows_of, select
from dara.config import Experiment, MethodEntry

PAPER_THRESHOLD = 0.8  # the level that the paper's own learning curves mark


@styled
def draw(frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> Figure:
    """Two rows of panels (reward, density) a setting, one column a reward; median over runs, band = 25 to 75 %.

    A dashed line marks `PAPER_THRESHOLD` where it is one of the reward's thresholds, else the lowest of them.
    ValueError where the experiment has no training curve of one of its rewards.
    """
    selection = select(frames, experiment, methods)
    rewards = experiment.rewards
    quantities = {"mean reward": "reward/{}/mean", "active-group density": "density/{}"}
    figure, panels = new_figure(2 * len(selection.settings), len(rewards), 1.75, sharex="row")
    for row, (setting, (label, metric)) in enumerate(
        (setting, quantity) for setting in selection.settings for quantity in quantities.items()
    ):
        for axes, reward in zip(panels[row], rewards, strict=True):
            name = metric.format(reward)
            rows = rows_of(selection, frames, "training_curves", f"training curve of {name}", metric=name)
            rows = selection.of_setting(rows, setting)
            for method in selection.methods:
                curve = quartiles_by_step(rows[rows["method"] == method])
                draw_band(axes, curve, look_of(method, methods))
            steps = selection.of_setting(selection.planned, setting)["steps"]
            step_axis(axes, int(steps.max()), label=row % 2 == 1)
            if metric.startswith("density"):
                axes.set_ylim(-0.02, 1.03)
            elif experiment.thresholds.get(reward):
                _threshold(axes, experiment.thresholds[reward])
            if row == 0:
                axes.set_title(f"{reward} reward")
        where = selection.setting_label(setting)
        panels[row, 0].set_ylabel(f"{where}\n{label}" if where else label)
    line = Line2D([], [], color=INK, linewidth=0.8, linestyle="--", label="threshold")
    handles = method_handles(selection, methods, marked=False)
    legend_below(figure, handles + ([line] if experiment.thresholds else []), columns=5)
    return figure


def _threshold(axes: Axes, thresholds: tuple[float, ...]) -> None:
    level = PAPER_THRESHOLD if PAPER_THRESHOLD in thresholds else min(thresholds)
    axes.axhline(level, color=INK, linewidth=0.8, linestyle="--", zorder=1)
    axes.annotate(
        f"{level:g}", xy=(0.01, level), xycoords=("axes fraction", "data"), xytext=(0, 1.5),
        textcoords="offset points", va="bottom", ha="left", fontsize=7, color=INK,
    )  # fmt: skip
    axes.set_ylim(-0.03, 1.05)  # a reward with thresholds is a share
