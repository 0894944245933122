"""The sparse reward's share of the advantage energy by sign: of positive and of negative advantages."""

from __future__ import annotations

from matplotlib.figure import Figure

from dara.analysis.figures.energy_shares import draw_shares
from dara.analysis.figures.look import styled
from dara.analysis.view import View


@styled
def draw(view: View) -> Figure:
    """Two rows of two panels a setting: positive and negative advantages, before the method and after it.

    Shares of the energy of all rewards as in `energy_shares`; the two rows add up to that figure. DARA-Asym weights
    positive advantages only, DARA-Sym both.
    ValueError where there are no energies by sign; only own runs have them.
    """
    parts = {
        "positive": "share of positive\n{} advantages",
        "negative": "share of negative\n{} advantages",
    }
    return draw_shares(view, parts, "energies of single steps by sign")
