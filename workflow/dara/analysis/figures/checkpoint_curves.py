"""Scores of the checkpoints on the held-out cases over training, the base model at step 0."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
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
from dara.analysis.names import BASE, SCORES, VALIDATION
from dara.analysis.view import Setting, View, missing_data

GRADERS = ("strict", "math_verify")
"""Other graders of the same answers, too similar to Acc for a panel of their own."""


@styled
def draw(view: View) -> Figure:
    """Draw a row of panels per setting that was scored, one column a metric, in percent: the middle and its band.

    Scores are fractions. Raise ValueError if the source has no curve of a score.
    """
    scores = SCORES[view.experiment.task].items()
    return draw_metrics(view, {metric: f"{name} (%)" for metric, name in scores if metric not in GRADERS})


@styled
def draw_validation(view: View) -> Figure:
    """Draw rewards on validation rows, which are never trained on, over checkpoints.

    A row of panels a setting, one column a reward of the experiment that was validated, in the reward's own unit.

    Raise ValueError if the source has no validation rewards, as for a preset whose task has no `validation`.
    """
    return draw_metrics(view, {f"{VALIDATION}{name}": f"validation {name} reward" for name in view.experiment.rewards})


def draw_metrics(view: View, metrics: Mapping[str, str]) -> Figure:
    """Draw the curves of `metrics` (metric -> label of its axis); scores whose label ends with (%) are times 100."""
    curves = {setting: _curves(view, setting, metrics) for setting in view.settings}
    shown = {metric: label for metric, label in metrics.items() if any(metric in found for found in curves.values())}
    if not shown:
        raise missing_data(view, f"checkpoint score over steps ({', '.join(metrics)})")
    settings = [setting for setting in view.settings if curves[setting]]
    figure, panels = new_figure(len(settings), len(shown), 2.2, sharex="row")
    based, drawn = False, set()
    for row, setting in zip(panels, settings, strict=True):
        for axes, (metric, label) in zip(row, shown.items(), strict=True):
            scale = 100 if label.endswith("(%)") else 1
            base = scale * view.curve(metric, BASE, setting)["middle"]
            found = curves[setting].get(metric, {})
            for method, curve in found.items():
                draw_band(axes, _scaled(curve, scale), style_of(method, view.entries), marked=True)
                drawn |= {method} if len(curve) else set()
            if len(base):
                axes.plot(base.index, base, "o", color=INK, markersize=5, zorder=4, clip_on=False)
                based = True
            axes.set_ylabel(label)
            last = max((int(curve.index.max()) for curve in found.values() if len(curve)), default=1)
            step_axis(axes, last)
            axes.set_xlim(-0.02 * last, 1.025 * last)
        row[0].set_title(view.setting_label(setting), loc="left")
    handles = method_handles(view, drawn, marked=True)
    if based:
        handles.append(Line2D([], [], color=INK, marker="o", markersize=5, linestyle="none", label="base model"))
    legend_below(figure, handles, columns=5, note=joined_notes({name: view.curve_note(name) for name in shown}))
    return figure


def _curves(view: View, setting: Setting, metrics: Mapping[str, str]) -> dict[str, dict[str, pd.DataFrame]]:
    """Return metric -> method -> curve of the existing curves; every run starts from the same base model."""
    found = {}
    for metric in metrics:
        curves = {method: view.curve(metric, method, setting) for method in view.methods}
        if any(len(curve) for curve in curves.values()):
            base = view.curve(metric, BASE, setting)
            found[metric] = {method: _with_base(base, curve) for method, curve in curves.items()}
    return found


def _with_base(base: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Return the curve with the base model's point in front, which gets a band (its own value) if the curve has one."""
    if curve.empty or base.empty or 0 in curve.index:
        return curve
    ends = base["middle"] if curve["low"].notna().any() else float("nan")
    return pd.concat([base.assign(low=ends, high=ends), curve])


def _scaled(curve: pd.DataFrame, scale: float) -> pd.DataFrame:
    return curve.assign(**{name: scale * curve[name] for name in ("low", "middle", "high")})
