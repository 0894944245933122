"""The step at which each run crosses a threshold of the sparse reward: a strip of points, or lines over thresholds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.crossing import HOLD, WINDOW, CrossingEvent, Kind
from dara.analysis.figures.style import (
    INK,
    MethodStyle,
    legend_below,
    method_handles,
    new_figure,
    style_of,
    thresholds_of,
)
from dara.analysis.intervals import median
from dara.analysis.view import Setting, View, missing_data

# Runs that did not cross are open; a dot inside marks a crossing that had begun.
OPEN = {"markerfacecolor": "white", "markeredgewidth": 1.0, "clip_on": False}
DOT = {"markersize": 1.7, "markeredgewidth": 0, "clip_on": False}
GROUP_WIDTH = 0.8  # of the distance between two thresholds; the rest separates the groups
FEW = 3  # thresholds up to which single runs are drawn as a strip, not as lines
SLOTS = 30  # (method, threshold) pairs that fit in a row of the strip

KINDS: dict[Kind, tuple[str, str]] = {
    "stable": (f"mean of {WINDOW} steps, held for {HOLD} more", "stable crossing (step)"),
    "first": ("first step at which the mean reward is at least this", "first crossing (step)"),
}


Marks = dict[tuple[Setting, float, str], list[CrossingEvent]]
"""Crossings of one kind by setting, threshold and method, for settings that have some."""


def draw(view: View) -> Figure:
    """Draw one panel per setting: thresholds on the x axis, a point per run at its crossing, a tick at each median.

    Many methods at many thresholds have several panels, one above the other.

    Crossings are stable ones if the source has them, else first ones. Open markers are runs that did not cross: on the
    budget line, or, with a dot, at the step where a crossing began that the run is too short to confirm. In the median
    they count as later than every crossing; a median that is such a run has no tick. If each method has one run and
    there are more than FEW thresholds, a line joins its points. Narrow panels are side by side. Raise ValueError if the
    experiment's sparse reward has no thresholds, or the source has no crossings at them.
    """
    reward, every = view.experiment.sparse_reward, sorted(thresholds_of(view))
    kind, marks = _crossings_of(view, every)
    single = max(map(len, marks.values())) == 1 and len(every) > FEW
    # Thresholds are split evenly into as few rows as have room for every method at each.
    parts = np.array_split(every, 1 if single else min(len(every), -(-len(every) * len(view.methods) // SLOTS)))
    places = [(setting, part.tolist()) for setting in dict.fromkeys(key[0] for key in marks) for part in parts]
    narrow = len(places) > 1 and (single or len(every) == 1)
    columns = 2 if narrow else 1
    figure, panels = new_figure(-(-len(places) // columns), columns, 2.4)
    for axes in panels.flat[len(places) :]:
        axes.remove()
    meaning, label = KINDS[kind]
    name = f"threshold of the {reward} reward"
    for axes, (setting, thresholds) in zip(panels.flat, places, strict=False):
        (_draw_lines if single else _draw_strip)(axes, view, marks, setting, thresholds)
        axes.set_xticks(range(len(thresholds)), [f"{threshold:g}" for threshold in thresholds])
        axes.set_xlabel(f"{name}\n({meaning})" if narrow else f"{name} ({meaning})")
        axes.set_ylabel(label)
        axes.set_title(view.setting_label(setting), loc="left")
    _legend(figure, view, {key: found for key, found in marks.items() if found}, single)
    return figure


def _crossings_of(view: View, thresholds: list[float]) -> tuple[Kind, Marks]:
    """Return the stable crossings of the sparse reward, or the first ones if the source has no stable ones."""
    reward = view.experiment.sparse_reward
    for kind in KINDS:
        marks: Marks = {}
        for setting in view.settings:
            places = [(setting, threshold, method) for threshold in thresholds for method in view.methods]
            found = {place: view.marks(kind, reward, place[1], place[2], setting) for place in places}
            marks |= found if any(found.values()) else {}
        if marks:
            return kind, marks
    raise missing_data(view, f"crossing of {reward} at {', '.join(f'{threshold:g}' for threshold in thresholds)}")


def _draw_strip(axes: Axes, view: View, marks: Marks, setting: Setting, thresholds: list[float]) -> None:
    """Draw the runs of every method at each threshold, the budget line, and thin separators between the groups."""
    slot = GROUP_WIDTH / len(view.methods)
    for position, threshold in enumerate(thresholds):
        for place, method in enumerate(view.methods):
            mine = marks[setting, threshold, method]
            center = position - GROUP_WIDTH / 2 + slot * (place + 0.5)
            for x, mark in zip(_places(view.planned(method, setting), mine, center, slot), mine, strict=True):
                _draw_mark(axes, x, mark, style_of(method, view.entries))
            middle = median([np.inf if mark.step is None else mark.step for mark in mine]) if mine else np.inf
            if np.isfinite(middle):
                axes.hlines(middle, center - 0.46 * slot, center + 0.46 * slot, color=INK, linewidth=1.3, zorder=4)
    budget = max(mark.budget for key, found in marks.items() if key[0] == setting for mark in found)
    axes.axhline(budget, color=INK, linewidth=0.8, linestyle="--", zorder=1)
    axes.annotate(
        f"budget: {budget} steps", xy=(1, budget), xycoords=("axes fraction", "data"), xytext=(0, 4),
        textcoords="offset points", ha="right", va="bottom", fontsize=7, color=INK,
    )  # fmt: skip
    axes.grid(axis="x", visible=False)
    for edge in range(len(thresholds) - 1):
        axes.axvline(edge + 0.5, color="#cccccc", linewidth=0.6)
    axes.set_xlim(-0.5, len(thresholds) - 0.5)
    axes.set_ylim(0, 1.12 * budget)


def _places(planned: Sequence[int | None], marks: Sequence[CrossingEvent], center: float, slot: float) -> list[float]:
    """Return the x positions of a method's crossings; each planned run has its place, even if others are missing."""
    seeds = [mark.seed for mark in marks]
    every = list(planned) if set(seeds) <= set(planned) else seeds
    spread = center + slot * np.linspace(-0.3, 0.3, len(every)) if len(every) > 1 else [center]
    places = []
    for seed in seeds:
        index = every.index(seed)
        places.append(float(spread[index]))
        every[index] = object()  # a second run of the same seed gets the next place
    return places


def _draw_mark(axes: Axes, x: float, mark: CrossingEvent, style: MethodStyle) -> None:
    if mark.status == "reached":
        axes.plot(x, mark.step, style.marker, color=style.color, zorder=3)
        return
    pending = mark.status == "pending"
    step = mark.pending_step if pending else mark.budget
    axes.plot(x, step, style.marker, color=style.color, **OPEN, markersize=5.5 if pending else 4, zorder=3)
    if pending:
        axes.plot(x, step, "o", color=style.color, **DOT, zorder=4)


def _draw_lines(axes: Axes, view: View, marks: Marks, setting: Setting, thresholds: list[float]) -> None:
    """Draw a line for each method over the (evenly spaced) thresholds it reached, and open markers at the others."""
    for method in view.methods:
        style = style_of(method, view.entries)
        runs = [(x, mark) for x, threshold in enumerate(thresholds) for mark in marks[setting, threshold, method]]
        reached = [(x, mark.step) for x, mark in runs if mark.step is not None]
        axes.plot(*zip(*reached, strict=True) if reached else ([], []), color=style.color, linestyle=style.linestyle,
                  marker=style.marker, zorder=3)  # fmt: skip
        for x, mark in runs:
            if mark.step is None:
                _draw_mark(axes, x, mark, style)
    axes.set_xlim(-0.25, len(thresholds) - 0.75)
    axes.set_ylim(bottom=0)


def _legend(figure: Figure, view: View, marks: Marks, single: bool) -> None:
    """Draw the legend: the methods, and every other symbol that occurs in the panels."""
    handles: list = method_handles(view, {key[2] for key in marks}, marked=True, lines=single)
    labels = [handle.get_label() for handle in handles]
    circle = Line2D([], [], color=INK, marker="o", linestyle="none", **OPEN)
    dot = Line2D([], [], color=INK, marker="o", linestyle="none", **DOT)
    meanings = {
        "reached": (Line2D([], [], color=INK, linewidth=1.3), "median of the runs"),
        "not_reached": (circle, "not reached"),
        "pending": ((circle, dot), "pending: begun, too late to confirm"),
    }
    statuses = {mark.status for found in marks.values() for mark in found} - ({"reached"} if single else set())
    for status, (handle, label) in meanings.items():
        if status in statuses:
            handles.append(handle)
            labels.append(label)
    few, many = (end(map(len, marks.values())) for end in (min, max))
    note = f"a point a run; {few if few == many else f'{few} to {many}'} run{'s' * (many > 1)} a method"
    legend_below(figure, handles, columns=4, labels=labels, note="one run a method" if single else note)
