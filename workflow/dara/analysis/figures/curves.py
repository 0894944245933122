"""Curves over training: rewards and densities at every step, and held-out scores of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
)
from dara.analysis.names import BASE, SCORES, VALIDATION, headline_threshold
from dara.analysis.view import Setting, View, missing_data

QUANTITIES = {"mean reward": "reward/{}/mean", "active-group density": "density/{}"}

GRADERS = ("strict", "math_verify")
"""Other graders of the same answers, too similar to Acc for a panel of their own."""

Curves = dict[str, dict[Setting, dict[str, pd.DataFrame]]]
"""Metric -> setting -> method -> curve; only metrics and settings with a curve."""


def draw_learning(view: View) -> Figure:
    """Draw learning curves: each training reward over steps, and the reward's active-group density.

    One column a reward, a row a quantity, for each setting that has some; if the source has curves of one reward only,
    its two quantities are side by side. The middle over runs, with a band if the source has one. A dashed line marks
    the threshold of the paper's claim (`headline_threshold`). Raise ValueError if the source has no training curve of
    the experiment's rewards.
    """
    names = view.experiment.rewards
    curves = _curves(view, [metric.format(reward) for reward in names for metric in QUANTITIES.values()])
    if not curves:
        raise missing_data(view, f"training curve of the rewards {', '.join(names)}")
    quantities = {label: name for label, name in QUANTITIES.items() if any(name.format(k) in curves for k in names)}
    rewards = [k for k in names if any(name.format(k) in curves for name in quantities.values())]
    settings = [setting for setting in view.settings if any(setting in found for found in curves.values())]
    if len(rewards) == 1:
        figure, panels = new_figure(len(settings), len(quantities), 2.2, sharex="row")
        groups = [row[:, None] for row in panels]
    else:
        figure, panels = new_figure(len(quantities) * len(settings), len(rewards), 1.75, sharex="row")
        groups = np.split(panels, len(settings))
    for group, setting in zip(groups, settings, strict=True):
        _draw_setting(group, view, setting, rewards, quantities, curves)
    found = [by_method for settings in curves.values() for by_method in settings.values()]
    handles = method_handles(view, {method for by in found for method, curve in by.items() if len(curve)}, marked=False)
    if any(view.experiment.thresholds.get(reward) and f"reward/{reward}/mean" in curves for reward in rewards):
        handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle="--", label="threshold"))
    note = joined_notes({metric: view.curve_note(metric) for metric in curves})
    legend_below(figure, handles, columns=5, note=note)
    return figure


def draw_scores(view: View) -> Figure:
    """Draw scores of the checkpoints on the held-out cases over training, the base model at step 0.

    A row of panels per setting that was scored, one column a metric, in percent: the middle and its band. Scores are
    fractions. Raise ValueError if the source has no curve of a score.
    """
    scores = SCORES[view.experiment.task].items()
    return _draw_checkpoints(view, {metric: f"{name} (%)" for metric, name in scores if metric not in GRADERS})


def draw_validation(view: View) -> Figure:
    """Draw rewards on validation rows, which are never trained on, over checkpoints.

    A row of panels a setting, one column a reward of the experiment that was validated, in the reward's own unit.

    Raise ValueError if the source has no validation rewards, as for a preset whose task has no `validation`.
    """
    rewards = view.experiment.rewards
    return _draw_checkpoints(view, {f"{VALIDATION}{name}": f"validation {name} reward" for name in rewards})


def _curves(view: View, metrics: Iterable[str]) -> Curves:
    found: Curves = {}
    for metric in metrics:
        for setting in view.settings:
            if curves := view.curves(metric, setting):
                found.setdefault(metric, {})[setting] = curves
    return found


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
                draw_band(axes, curve, view, method)
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


def _draw_checkpoints(view: View, metrics: Mapping[str, str]) -> Figure:
    """Draw the curves of `metrics` (metric -> label of its axis); scores whose label ends with (%) are times 100."""
    curves = _curves(view, metrics)
    if not curves:
        raise missing_data(view, f"checkpoint score over steps ({', '.join(metrics)})")
    settings = [setting for setting in view.settings if any(setting in found for found in curves.values())]
    figure, panels = new_figure(len(settings), len(curves), 2.2, sharex="row")
    based, drawn = False, set()
    for row, setting in zip(panels, settings, strict=True):
        for axes, (metric, found) in zip(row, curves.items(), strict=True):
            scale = 100 if metrics[metric].endswith("(%)") else 1
            base = view.curve(metric, BASE, setting)
            last = 1
            for method, curve in found.get(setting, {}).items():
                # Every run starts from the same base model, whose point has a band (its own value) if the curve has.
                ends = base["middle"] if curve["low"].notna().any() else float("nan")
                start = base[:0] if curve.empty or 0 in curve.index else base.assign(low=ends, high=ends)
                whole = pd.concat([start, curve])
                whole = whole.assign(**{name: scale * whole[name] for name in ("low", "middle", "high")})
                draw_band(axes, whole, view, method, marked=True)
                if len(curve):
                    drawn.add(method)
                    last = max(last, int(curve.index.max()))
            if len(base):
                axes.plot(base.index, scale * base["middle"], "o", color=INK, markersize=5, zorder=4, clip_on=False)
                based = True
            axes.set_ylabel(metrics[metric])
            step_axis(axes, last)
            axes.set_xlim(-0.02 * last, 1.025 * last)
        row[0].set_title(view.setting_label(setting), loc="left")
    handles = method_handles(view, drawn, marked=True)
    if based:
        handles.append(Line2D([], [], color=INK, marker="o", markersize=5, linestyle="none", label="base model"))
    legend_below(figure, handles, columns=5, note=joined_notes({name: view.curve_note(name) for name in curves}))
    return figure
