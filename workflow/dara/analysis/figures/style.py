"""Common parts of the figures: a method's style, curves with bands, axes, the legend outside the data, and saving."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dara.analysis.view import View
from dara.config import MethodEntry

STYLE = Path(__file__).with_name("dara.mplstyle")
PAGE_WIDTH = 7.0  # inches: two columns
INK = "#333333"
NOTE_WIDTH = 120  # characters of 7 pt on a page
HANDLE_WIDTH = 9  # characters for a legend entry's line sample and spacing
LINESTYLES = ["-", (0, (5, 1.2)), (0, (8, 1, 2, 1)), (0, (9, 2)), (0, (1.2, 0.9)), (0, (4, 1, 1, 1, 1, 1))]
MARKERS = ["o", "s", "P", "D", "v", "^", "X", "<", ">", "*"]


class MethodStyle(NamedTuple):
    """Colour, line style and marker of a method, which can be recognised without its colour."""

    color: str
    linestyle: str | tuple
    marker: str


def style_of(method: str, methods: Mapping[str, MethodEntry]) -> MethodStyle:
    """Return the style of `method`; line style and marker follow from the position of its row in `methods`."""
    row = list(methods).index(method)
    return MethodStyle(methods[method].color, LINESTYLES[row % len(LINESTYLES)], MARKERS[row % len(MARKERS)])


def draw_band(axes: Axes, curve: pd.DataFrame, view: View, method: str, *, marked: bool = False) -> None:
    """Draw the middle of a curve as a line, with its band if it has one; `marked` puts a marker on every point."""
    style, steps = style_of(method, view.entries), curve.index.to_numpy()
    if curve["low"].notna().any():
        axes.fill_between(steps, curve["low"], curve["high"], color=style.color, alpha=0.15, linewidth=0)
    marker = style.marker if marked else None
    axes.plot(steps, curve["middle"], color=style.color, linestyle=style.linestyle, marker=marker)


def step_axis(axes: Axes, last: int, label: bool = True) -> None:
    """Make an x axis of whole steps from 0 to `last`, or a little more."""
    axes.set_xlim(0, 1.015 * last)  # room for a marker on the last step
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    if label:
        axes.set_xlabel("step")


def method_handles(view: View, drawn: Container[str], *, marked: bool, lines: bool = True) -> list[Line2D]:
    """Return a legend entry for each method that was drawn or lacks planned runs."""
    handles = []
    for method, entry in view.methods.items():
        if method in drawn or view.method_label(method) != entry.label:
            style = style_of(method, view.entries)
            handles.append(
                Line2D(
                    [], [], color=style.color, marker=style.marker if marked else "none",
                    linestyle=style.linestyle if lines else "none", label=view.method_label(method),
                )
            )  # fmt: skip
    return handles


def legend_below(
    figure: Figure, handles: list, columns: int, labels: list[str] | None = None, note: str | None = None
) -> None:
    """Draw a legend under the panels, outside the data.

    A line has at most `columns` entries, fewer if their labels are long; lines are filled evenly.

    labels: needed if a handle is a tuple of artists drawn over each other. note: a description of the curves, as a line
    of text above the entries.
    """
    labels = labels or [handle.get_label() for handle in handles]
    widths = [len(label) + HANDLE_WIDTH for label in labels]

    def even(columns: int) -> int:
        """Return the columns that spread the entries evenly over as many lines as `columns` need."""
        return -(-len(widths) // -(-len(widths) // columns))

    def width(columns: int) -> int:
        """Return the summed widths of the columns in characters; Matplotlib fills columns from top to bottom."""
        return sum(int(column.max()) for column in np.array_split(widths, even(columns)))

    ncols = even(next((n for n in range(columns, 1, -1) if width(n) <= NOTE_WIDTH), 1))
    title = textwrap.fill(f"{note[0].upper()}{note[1:]}", NOTE_WIDTH) if note else None
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, title=title, title_fontsize=7)


def joined_notes(notes: Mapping[str, str]) -> str:
    """Return notes on several quantities as one, without their names if all are the same."""
    said = {name: note for name, note in notes.items() if note}
    if len(set(said.values())) <= 1:
        return next(iter(said.values()), "")
    return "; ".join(f"{name}: {note}" for name, note in said.items())


def thresholds_of(view: View) -> Collection[float]:
    """Return the thresholds of the sparse reward. Raise ValueError if the experiment has none."""
    experiment, reward = view.experiment, view.experiment.sparse_reward
    if not experiment.thresholds.get(reward):
        raise ValueError(
            f"experiment {experiment.experiment}: the sparse reward {reward!r} has no thresholds; "
            f"add `thresholds: {{{reward}: [0.8]}}` to the experiment"
        )
    return experiment.thresholds[reward]


def new_figure(rows: int, columns: int, row_height: float, **kwargs: object) -> tuple[Figure, np.ndarray]:
    """Make a page-wide figure with (rows, columns) panels; it has no pyplot state, so there is nothing to close."""
    figure = Figure(figsize=(PAGE_WIDTH, rows * row_height + 0.65))
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def render_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png (200 dpi) and `stem`.svg without a date, so equal figures are equal bytes; return both paths."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    # not with_suffix: an id such as "tool_main.curves" contains a dot
    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))
    with matplotlib.rc_context(fname=STYLE):
        FigureCanvasAgg(figure).print_figure(png, dpi=200, metadata={"Software": None})
        FigureCanvasSVG(figure).print_figure(svg, metadata={"Date": None})
    return [png, svg]
