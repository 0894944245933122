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
    "activity_curve": "densities:draw_activity",
    "checkpoint_curves": "curves:draw_scores",
    "crossing_strip": "crossing_strip:draw",
    "density_energy": "densities:draw_energy",
    "energy_by_sign": "energies:draw_by_sign",
    "energy_ratio": "energies:draw_ratio",
    "energy_shares": "energies:draw_shares",
    "group_size": "group_size:draw",
    "learning_curves": "curves:draw_learning",
    "overview": "overview:draw",
    "validation_curves": "curves:draw_validation",
}
"""Name -> module and function in this package."""


def draw_figure(name: str, view: View) -> Figure:
    """Draw a figure of one view, independent of the user's settings. Raise ValueError if the view lacks its numbers."""
    import matplotlib

    from dara.analysis.figures.style import STYLE

    module, _, function = FIGURES[name].partition(":")
    with matplotlib.rc_context(fname=STYLE):
        return getattr(import_module(f"{__name__}.{module}"), function)(view)


def describe(name: str) -> str:
    """Return a figure's caption: the first sentence of its module, or of its function if a module draws several."""
    module, _, function = FIGURES[name].partition(":")
    found = import_module(f"{__name__}.{module}")
    documented = found if function == "draw" else getattr(found, function)
    first = " ".join((documented.__doc__ or "").split("\n\n")[0].split()).removeprefix("Draw ")
    return first[:1].upper() + first[1:]
