"""Saving a figure as PNG and SVG: the same figure gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("dara.mplstyle")


def render_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png (200 dpi) and `stem`.svg, without a date; returns the two paths."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    # not with_suffix: an id such as "tool_main.curves" has a dot of its own
    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))
    with matplotlib.rc_context(fname=STYLE):
        FigureCanvasAgg(figure).print_figure(png, dpi=200, metadata={"Software": None})
        FigureCanvasSVG(figure).print_figure(svg, metadata={"Date": None})
    return [png, svg]
