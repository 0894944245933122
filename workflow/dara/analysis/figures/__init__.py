"""The figures by their names in configuration files: one list for checking, planning and drawing.

Modules are imported when they are needed: a job draws one figure, and a workflow that plans them imports none.
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
    """Draw a figure of one view. Raise ValueError if the view lacks the figure's numbers."""
    module, _, function = FIGURES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)(view)


def describe(name: str) -> str:
    """Return a figure's caption: the first sentence of its module, or of its function if a module draws several."""
    module, _, function = FIGURES[name].partition(":")
    found = import_module(f"{__name__}.{module}")
    documented = found if function == "draw" else getattr(found, function)
    first = " ".join((documented.__doc__ or "").split("\n\n")[0].split()).removeprefix("Draw ")
    return first[:1].upper() + first[1:]
