"""Table: held-out tool-calling scores at step 60, of a shorter training of ours at 60 % of it."""

from __future__ import annotations

from dara.analysis.tables import tool_scores
from dara.analysis.tables.render import Table
from dara.analysis.view import View

STEP = 60


def build(view: View) -> Table:
    """The table tool_scores at that step."""
    return tool_scores.build(view, at=STEP)


def build_side_by_side(ours: View, published: View) -> Table:
    """Its averages, ours and published."""
    return tool_scores.build_side_by_side(ours, published, at=STEP)
