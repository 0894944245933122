"""Learning curves: each training reward over steps, and the reward's active-group density."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.figures.style import (
    INK,
    draw_band,
    joined_notes,
    legend_below,
    method_handles,
    new_figure,
    step_axis,
    style_of,
    styled,
)
from dara.analysis.names import headline_threshold
from dara.analysis.view import Setting, View, missing_data

QUANTITIES = {"mean reward": "reward/{}/mean", "active-group density": "density/{}"}

Curves = dict[str, dict[Setting, dict[str, pd.DataFrame]]]
"""Metric -> setting -> method -> curve; only metrics and settings with a curve."""


@styled
def draw(view: View) -> Figure:
    """Draw rewards and densities of each setting that has some: one column a reward, a row a quantity.

    If the source has curves of one reward only, its two quantities are side by side. The middle over runs, with a band
    if the source has one. A dashed line marks the threshold of the paper's claim (`headline_threshold`). Raise
    ValueError if the source has no training curve of the experiment's rewards.
    """
    curves = _curves(view)
    if not curves:
        raise missing_data(view, f"training curve of the rewards {', '.join(view.experiment.rewards)}")
    rewards = [name for name in view.experiment.rewards if any(metric in curves for metric in _metrics(name))]
    quantities = {label: name for label, name in QUANTITIES.items() if any(name.format(k) in curves for k in rewards)}
    settings = [setting for setting in view.settings if any(setting in found for found in curves.values())]
    if len(rewards) == 1:
        figure, panels = new_figure(len(settings), len(quantities), 2.2, sharex="row")
        groups = [row[:, None] for row in panels]
    else:
        figure, panels = new_figure(len(quantities) * len(settings), len(rewards), 1.75, sharex="row")
        groups = np.split(panels, len(settings))
    for group, setting in zip(groups, settings, strict=True):
        _draw_setting(group, view, setting, rewards, quantities, curves)
    handles = method_handles(view, _drawn(curves), marked=False)
    if any(view.experiment.thresholds.get(reward) and _metrics(reward)[0] in curves for reward in rewards):
        handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle="--", label="threshold"))
    note = joined_notes({metric: view.curve_note(metric) for metric in curves})
    legend_below(figure, handles, columns=5, note=note)
    return figure


def _metrics(reward: str) -> list[str]:
    return [metric.format(reward) for metric in QUANTITIES.values()]


def _curves(view: View) -> Curves:
    found: Curves = {}
    for metric in (metric for reward in view.experiment.rewards for metric in _metrics(reward)):
        for setting in view.settings:
            curves = {method: view.curve(metric, method, setting) for method in view.methods}
            if any(len(curve) for curve in curves.values()):
                found.setdefault(metric, {})[setting] = curves
    return found


def _drawn(curves: Curves) -> set[str]:
    """Return the methods that have a curve."""
    everything = (found for settings in curves.values() for found in settings.values())
    return {method for found in everything for method, curve in found.items() if len(curve)}


def _draw_setting(
    panels: np.ndarray, view: View, setting: Setting, rewards: list[str], quantities: dict[str, str], curves: Curves
) -> None:
    """Draw the panels (quantities, rewards) of one setting, and remove panels without curves."""
    one_row, where = len(rewards) == 1, view.setting_label(setting)
    for row, (label, metric) in zip(panels, quantities.items(), strict=True):
        for axes, reward in zip(row, rewards, strict=True):
            found = curves.get(metric.format(reward), {}).get(setting)
            if found is None:
                axes.remove()
                continue
            for method, curve in found.items():
                draw_band(axes, curve, style_of(method, view.entries))
            last = max(int(curve.index.max()) for curve in found.values() if len(curve))
            step_axis(axes, last, label=one_row or label == list(quantities)[-1])
            if metric.startswith("density"):
                axes.set_ylim(-0.02, 1.03)
            elif view.experiment.thresholds.get(reward):
                _threshold(axes, headline_threshold(reward, view.experiment.thresholds[reward]))
            if label == next(iter(quantities)):
                axes.set_title(where if one_row else f"{reward} reward", loc="left" if one_row else "center")
        of = f" of {rewards[0]}" if one_row else ""
        row[0].set_ylabel(f"{where}\n{label}" if where and not one_row else f"{label}{of}")


def _threshold(axes: Axes, level: float) -> None:
    axes.axhline(level, color=INK, linewidth=0.8, linestyle="--", zorder=1)
    axes.annotate(
        f"{level:g}", xy=(0.01, level), xycoords=("axes fraction", "data"), xytext=(0, 1.5),
        textcoords="offset points", va="bottom", ha="left", fontsize=7, color=INK,
    )  # fmt: skip
    axes.set_ylim(-0.03, 1.05)  # a reward with thresholds is a share
