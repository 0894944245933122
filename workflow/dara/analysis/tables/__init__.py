"""The tables: each module builds one; `TABLES` maps the name used in config/experiments/ to its module."""

from dara.analysis.tables import comparisons, crossings, final_scores, runs
from dara.analysis.tables.render import Table, render_table

TABLES = {"comparisons": comparisons, "crossings": crossings, "final_scores": final_scores, "runs": runs}

__all__ = ["TABLES", "Table", "render_table"]
