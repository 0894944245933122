"""What the figures share: the look of a method, quartile bands, axes, the legend outside the data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dara.analysis.figures.render import STYLE
from dara.analysis.summary import quartiles
from dara.analysis.tables.selection import Selection
from dara.config import MethodEntry

PAGE_WIDTH = 7.0  # inches: two columns
INK = "#333333"
LINESTYLES = ["-", (0, (5, 1.2)), (0, (8, 1, 2, 1)), (0, (9, 2)), (0, (1.2, 0.9)), (0, (4, 1, 1, 1, 1, 1))]
MARKERS = ["o", "s", "P", "D", "v", "^", "X", "<", ">", "*"]


class Look(NamedTuple):
    """Colour, line style and marker of a method, so that it can be told from the others without its colour."""

    color: str
    linestyle: str | tuple
    marker: str


def look_of(method: str, methods: Mapping[str, MethodEntry]) -> Look:
    """The look of `method`; line style and marker follow its row in `methods`, so that they are the same everywhere."""
    row = list(methods).index(method)
    return Look(methods[method].color, LINESTYLES[row % len(LINESTYLES)], MARKERS[row % len(MARKERS)])


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """`draw` under dara.mplstyle alone: neither the user's settings nor earlier figures change the picture."""

    @functools.wraps(draw)
    def wrapper(*args: object, **kwargs: object) -> Figure:
        with matplotlib.rc_context(fname=STYLE):
            return draw(*args, **kwargs)

    return wrapper


def quartiles_by_step(rows: pd.DataFrame, value: str = "value") -> pd.DataFrame:
    """Quartiles over runs at each step: columns q25, median, q75, indexed by step.

    `rows` has one row a run and step. A run that ended early counts at the steps it has; undefined values (NaN) do not.
    """
    defined = rows.dropna(subset=[value]).sort_values(["step", "run_id"])
    table = {int(step): quartiles(runs.to_numpy(dtype=float)) for step, runs in defined.groupby("step")[value]}
    steps = pd.Index(list(table), dtype=int)
    return pd.DataFrame(list(table.values()), index=steps, columns=["q25", "median", "q75"], dtype=float)


def draw_band(axes: Axes, curve: pd.DataFrame, look: Look, *, marked: bool = False, band: bool = True) -> None:
    """The median as a line, the quartiles as a band; `marked` puts the method's marker on every point."""
    steps = curve.index.to_numpy()
    if band and len(steps):
        axes.fill_between(steps, curve["q25"], curve["q75"], color=look.color, alpha=0.15, linewidth=0)
    marker = look.marker if marked else None
    axes.plot(steps, curve["median"], color=look.color, linestyle=look.linestyle, marker=marker)


def step_axis(axes: Axes, last: int, label: bool = True) -> None:
    """An x axis of whole steps from 0 to `last`, or a little more."""
    axes.set_xlim(0, 1.015 * last)  # room for a marker on the last step
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    if label:
        axes.set_xlabel("step")


def method_handles(
    selection: Selection, methods: Mapping[str, MethodEntry], *, marked: bool, lines: bool = True
) -> list:
    """One legend entry a method of the experiment, those without runs included."""
    handles = []
    for method in selection.methods:
        look = look_of(method, methods)
        handles.append(
            Line2D(
                [], [], color=look.color, label=selection.method_label(method),
                linestyle=look.linestyle if lines else "none", marker=look.marker if marked else "none",
            )
        )  # fmt: skip
    return handles


def legend_below(figure: Figure, handles: list, columns: int, labels: list[str] | None = None) -> None:
    """A legend under the panels, outside of the data; at most `columns` entries a line, spread evenly over the lines.

    `labels` is needed where a handle is a tuple of artists drawn over each other.
    """
    labels = labels or [handle.get_label() for handle in handles]
    lines = -(-len(handles) // columns)
    figure.legend(handles, labels, loc="outside lower center", ncols=-(-len(handles) // lines))


def new_figure(rows: int, columns: int, row_height: float, **kwargs: object) -> tuple[Figure, np.ndarray]:
    """A page-wide figure with (rows, columns) panels; it belongs to no pyplot state, so there is nothing to close."""
    figure = Figure(figsize=(PAGE_WIDTH, rows * row_height + 0.5))
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)
