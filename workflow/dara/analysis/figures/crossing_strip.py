"""The step at which each run crosses a threshold of the sparse reward: a strip of points, or lines over thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dara.analysis.crossing import HOLD, WINDOW
from dara.analysis.figures.style import (
    INK,
    MethodStyle,
    legend_below,
    method_handles,
    new_figure,
    style_of,
    styled,
)
from dara.analysis.intervals import median
from dara.analysis.view import Mark, Setting, View, missing_data

# Runs that did not cross are open; a dot inside marks a crossing that had begun.
OPEN = {"markerfacecolor": "white", "markeredgewidth": 1.0, "clip_on": False}
DOT = {"markersize": 1.7, "markeredgewidth": 0, "clip_on": False}
GROUP_WIDTH = 0.8  # of the distance between two thresholds; the rest separates the groups
FEW = 3  # thresholds up to which single runs are drawn as a strip, not as lines
SLOTS = 30  # (method, threshold) pairs that fit in a row of the strip

KINDS = {
    "stable": (f"mean of {WINDOW} steps, held for {HOLD} more", "stable crossing (step)"),
    "first": ("first step at which the mean reward is at least this", "first crossing (step)"),
}


@dataclass(frozen=True)
class Crossings:
    """Crossings of one kind by setting, threshold and method, for settings that have some."""

    kind: Literal["first", "stable"]
    thresholds: list[float]
    marks: dict[Setting, dict[float, dict[str, list[Mark]]]]

    def all(self, setting: Setting | None = None) -> list[Mark]:
        """Return the marks of one setting, or of all."""
        settings = self.marks.values() if setting is None else [self.marks[setting]]
        return [mark for found in settings for by in found.values() for marks in by.values() for mark in marks]

    @property
    def single(self) -> bool:
        """Return whether each method has at most one run at a threshold, with too many thresholds for a strip."""
        most = max(len(marks) for found in self.marks.values() for by in found.values() for marks in by.values())
        return most == 1 and len(self.thresholds) > FEW


@styled
def draw(view: View) -> Figure:
    """Draw one panel per setting: thresholds on the x axis, a point per run at its crossing, a tick at each median.

    Many methods at many thresholds have several panels, one above the other.

    Crossings are stable ones if the source has them, else first ones. Open markers are runs that did not cross: on the
    budget line, or, with a dot, at the step where a crossing began that the run is too short to confirm. In the median
    they count as later than every crossing; a median that is such a run has no tick. If each method has one run and
    there are more than FEW thresholds, a line joins its points. Narrow panels are side by side. Raise ValueError if the
    experiment's sparse reward has no thresholds, or the source has no crossings at them.
    """
    found = crossings_of(view)
    parts = [found.thresholds] if found.single else _rows(found.thresholds, len(view.methods))
    places = [(setting, part) for setting in found.marks for part in parts]
    narrow = len(places) > 1 and (found.single or len(found.thresholds) == 1)
    columns = 2 if narrow else 1
    figure, panels = new_figure(-(-len(places) // columns), columns, 2.4)
    for axes in panels.flat[len(places) :]:
        axes.remove()
    for axes, (setting, part) in zip(panels.flat, places, strict=False):
        if found.single:
            _draw_lines(axes, view, found, setting)
        else:
            for position, threshold in enumerate(part):
                _draw_threshold(axes, view, setting, found.marks[setting][threshold], position)
            _finish_strip(axes, found, setting, part)
        meaning, label = KINDS[found.kind]
        name = f"threshold of the {view.experiment.sparse_reward} reward"
        axes.set_xlabel(f"{name}\n({meaning})" if narrow else f"{name} ({meaning})")
        axes.set_ylabel(label)
        axes.set_title(view.setting_label(setting), loc="left")
    _legend(figure, view, found)
    return figure


def crossings_of(view: View) -> Crossings:
    """Return the stable crossings of the sparse reward, or the first ones if the source has no stable ones."""
    experiment, reward = view.experiment, view.experiment.sparse_reward
    thresholds = sorted(experiment.thresholds.get(reward, ()))
    if not thresholds:
        raise ValueError(
            f"experiment {experiment.experiment}: the sparse reward {reward!r} has no thresholds; "
            f"add `thresholds: {{{reward}: [0.8]}}` to the experiment"
        )
    for kind in ("stable", "first"):
        marks = {
            setting: {
                threshold: {method: view.marks(kind, reward, threshold, method, setting) for method in view.methods}
                for threshold in thresholds
            }
            for setting in view.settings
        }
        found = Crossings(kind, thresholds, {place: by for place, by in marks.items() if _any(by)})
        if found.marks:
            return found
    raise missing_data(view, f"crossing of {reward} at {', '.join(f'{threshold:g}' for threshold in thresholds)}")


def _rows(thresholds: list[float], methods: int) -> list[list[float]]:
    """Return the thresholds split evenly into as few rows as have room for every method at each."""
    rows = min(len(thresholds), -(-len(thresholds) * methods // SLOTS))
    return [list(row) for row in np.array_split(thresholds, rows)]


def _any(by_threshold: dict[float, dict[str, list[Mark]]]) -> bool:
    return any(marks for by_method in by_threshold.values() for marks in by_method.values())


def _draw_threshold(axes: Axes, view: View, setting: Setting, marks: dict[str, list[Mark]], position: int) -> None:
    """Draw the runs of every method at one threshold; a run has the same place in its slot at every threshold."""
    slot = GROUP_WIDTH / len(view.methods)
    for place, method in enumerate(view.methods):
        mine = marks[method]
        center = position - GROUP_WIDTH / 2 + slot * (place + 0.5)
        for x, mark in zip(_places(view.planned(method, setting), mine, center, slot), mine, strict=True):
            _draw_mark(axes, x, mark, style_of(method, view.entries))
        if mine:
            middle = median([np.inf if mark.step is None else mark.step for mark in mine])
            if np.isfinite(middle):
                axes.hlines(middle, center - 0.46 * slot, center + 0.46 * slot, color=INK, linewidth=1.3, zorder=4)


def _places(planned: Sequence[int | None], marks: Sequence[Mark], center: float, slot: float) -> list[float]:
    """Return the x positions of a method's crossings; each planned run has its place, even if others are missing."""
    seeds = [mark.seed for mark in marks]
    every = list(planned) if set(seeds) <= set(planned) else seeds
    spread = list(center + slot * np.linspace(-0.3, 0.3, len(every))) if len(every) > 1 else [center] * len(every)
    places = []
    for seed in seeds:
        index = every.index(seed)
        places.append(float(spread[index]))
        every[index] = object()  # a second run of the same seed gets the next place
    return places


def _draw_mark(axes: Axes, x: float, mark: Mark, style: MethodStyle) -> None:
    if mark.status == "reached":
        axes.plot(x, mark.step, style.marker, color=style.color, zorder=3)
        return
    pending = mark.status == "pending"
    step = mark.pending_step if pending else mark.budget
    axes.plot(x, step, style.marker, color=style.color, **OPEN, markersize=5.5 if pending else 4, zorder=3)
    if pending:
        axes.plot(x, step, "o", color=style.color, **DOT, zorder=4)


def _finish_strip(axes: Axes, found: Crossings, setting: Setting, thresholds: list[float]) -> None:
    """Draw threshold labels, the budget line, and thin separators between the groups."""
    budget = max(mark.budget for mark in found.all(setting))
    axes.axhline(budget, color=INK, linewidth=0.8, linestyle="--", zorder=1)
    axes.annotate(
        f"budget: {budget} steps", xy=(1, budget), xycoords=("axes fraction", "data"), xytext=(0, 4),
        textcoords="offset points", ha="right", va="bottom", fontsize=7, color=INK,
    )  # fmt: skip
    axes.set_xticks(range(len(thresholds)), [f"{threshold:g}" for threshold in thresholds])
    axes.grid(axis="x", visible=False)
    for edge in range(len(thresholds) - 1):
        axes.axvline(edge + 0.5, color="#cccccc", linewidth=0.6)
    axes.set_xlim(-0.5, len(thresholds) - 0.5)
    axes.set_ylim(0, 1.12 * budget)


def _draw_lines(axes: Axes, view: View, found: Crossings, setting: Setting) -> None:
    """Draw a line for each method over the (evenly spaced) thresholds it reached, and open markers at the others."""
    for method in view.methods:
        style = style_of(method, view.entries)
        runs = [found.marks[setting][threshold][method] for threshold in found.thresholds]
        reached = [(x, marks[0].step) for x, marks in enumerate(runs) if marks and marks[0].step is not None]
        axes.plot(*zip(*reached, strict=True) if reached else ([], []), color=style.color, linestyle=style.linestyle,
                  marker=style.marker, zorder=3)  # fmt: skip
        for x, marks in enumerate(runs):
            if marks and marks[0].step is None:
                _draw_mark(axes, x, marks[0], style)
    axes.set_xticks(range(len(found.thresholds)), [f"{threshold:g}" for threshold in found.thresholds])
    axes.set_xlim(-0.25, len(found.thresholds) - 0.75)
    axes.set_ylim(bottom=0)


def _legend(figure: Figure, view: View, found: Crossings) -> None:
    """Draw the legend: the methods, and every other symbol that occurs in the panels."""
    everything = (by_method for found_at in found.marks.values() for by_method in found_at.values())
    drawn = {method for by_method in everything for method, marks in by_method.items() if marks}
    handles: list = method_handles(view, drawn, marked=True, lines=found.single)
    labels = [handle.get_label() for handle in handles]
    circle = Line2D([], [], color=INK, marker="o", linestyle="none", **OPEN)
    dot = Line2D([], [], color=INK, marker="o", linestyle="none", **DOT)
    meanings = {
        "reached": (Line2D([], [], color=INK, linewidth=1.3), "median of the runs"),
        "not_reached": (circle, "not reached"),
        "pending": ((circle, dot), "pending: begun, too late to confirm"),
    }
    for status, (handle, label) in meanings.items():
        drawn = status != "reached" or not found.single
        if drawn and any(mark.status == status for mark in found.all()):
            handles.append(handle)
            labels.append(label)
    note = "one run a method" if found.single else _runs_note(found)
    legend_below(figure, handles, columns=4, labels=labels, note=note)


def _runs_note(found: Crossings) -> str:
    """Return `a point a run; 3 to 5 runs a method`."""
    counts = {len(marks) for by in found.marks.values() for each in by.values() for marks in each.values() if marks}
    few, many = min(counts), max(counts)
    return f"a point a run; {few if few == many else f'{few} to {many}'} run{'s' * (many > 1)} a method"
