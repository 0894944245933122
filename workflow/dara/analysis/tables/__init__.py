"""The tables: `build_table` makes one from its entry in the configuration."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dara.analysis.tables.render import Table, render_table
from dara.analysis.view import View
from dara.table_options import SIDE_BY_SIDE, TABLES, ScoreTable, table_name

__all__ = ["Table", "build_table", "describe", "render_table"]


def build_table(entry: str | ScoreTable, *views: View, **settings: Any) -> Table:
    """Build a table of one view, or of our runs and the published numbers side by side.

    Only the table's own module is imported: a job makes one table.
    """
    function = _function(entry, side_by_side=len(views) > 1)
    return function(*views, *([] if isinstance(entry, str) else [entry]), **settings)


def describe(entry: str | ScoreTable) -> str:
    """Return what a table shows, in a sentence."""
    if not isinstance(entry, str):
        return entry.note or entry.title.replace("{step}", "one step")
    documented = _function(entry, side_by_side=entry not in TABLES).__doc__ or ""
    first = " ".join(documented.split("\n\n")[0].split()).removeprefix("Return ")
    return first[:1].upper() + first[1:]


def _function(entry: str | ScoreTable, *, side_by_side: bool) -> Any:
    module, _, function = (SIDE_BY_SIDE if side_by_side else TABLES)[table_name(entry)].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)
