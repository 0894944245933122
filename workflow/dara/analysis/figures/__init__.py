"""The figures: each module draws one; `FIGURES` maps the name used in config/experiments/ to its module."""

from dara.analysis.figures import (
    activity_curve,
    checkpoint_curves,
    crossing_strip,
    density_energy,
    energy_ratio,
    energy_shares,
    group_size,
    learning_curves,
    overview,
    validation_curves,
)
from dara.analysis.figures.render import render_figure

FIGURES = {
    "activity_curve": activity_curve,
    "checkpoint_curves": checkpoint_curves,
    "crossing_strip": crossing_strip,
    "density_energy": density_energy,
    "energy_ratio": energy_ratio,
    "energy_shares": energy_shares,
    "group_size": group_size,
    "learning_curves": learning_curves,
    "overview": overview,
    "validation_curves": validation_curves,
}

__all__ = ["FIGURES", "render_figure"]
