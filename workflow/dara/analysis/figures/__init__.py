"""The figures by the names that configuration files use: one list for checking, planning and drawing.

Nothing else is imported before it is asked for: a job draws one figure, and a workflow that plans them imports none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dara.analysis.view import View

FIGURES = {
    "activity_curve": "activity_curve:draw",
    "checkpoint_curves": "checkpoint_curves:draw",
    "crossing_strip": "crossing_strip:draw",
    "density_energy": "density_energy:draw",
    "energy_by_sign": "energy_shares:draw_by_sign",
    "energy_ratio": "energy_ratio:draw",
    "energy_shares": "energy_shares:draw",
    "group_size": "group_size:draw",
    "learning_curves": "learning_curves:draw",
    "overview": "overview:draw",
    "validation_curves": "checkpoint_curves:draw_validation",
}
"""Name -> module and function in this package."""


def draw_figure(name: str, view: View) -> Figure:
    """Draw a figure of one view. ValueError where the view lacks what it shows."""
    module, _, function = FIGURES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)(view)


def describe(name: str) -> str:
    """Return what a figure shows, in a sentence: its module's first, or its function's where a module draws several."""
    module, _, function = FIGURES[name].partition(":")
    found = import_module(f"{__name__}.{module}")
    documented = found if function == "draw" else getattr(found, function)
    first = " ".join((documented.__doc__ or "").split("\n\n")[0].split()).removeprefix("Draw ")
    return first[:1].upper() + first[1:]
