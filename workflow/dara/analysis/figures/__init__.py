"""The figures: each module draws one; `FIGURES` maps the name used in config/experiments/ to its module."""

from dara.analysis.figures.render import render_figure
from dara.analysis.modules import Modules

FIGURES = Modules(
    __name__,
    "activity_curve",
    "checkpoint_curves",
    "crossing_strip",
    "density_energy",
    "energy_by_sign",
    "energy_ratio",
    "energy_shares",
    "group_size",
    "learning_curves",
    "overview",
    "validation_curves",
)

__all__ = ["FIGURES", "render_figure"]
