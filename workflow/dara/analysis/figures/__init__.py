"""The figures: each module draws one; `FIGURES` maps the name used in config/experiments/ to its module."""

from dara.analysis.figures import checkpoint_curves, crossing_strip, energy_shares, learning_curves
from dara.analysis.figures.render import render_figure

FIGURES = {
    "learning_curves": learning_curves,
    "crossing_strip": crossing_strip,
    "energy_shares": energy_shares,
    "checkpoint_curves": checkpoint_curves,
}

__all__ = ["FIGURES", "render_figure"]
