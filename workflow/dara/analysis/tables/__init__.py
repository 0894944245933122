"""The tables: each module builds one; `TABLES` maps the name used in config/experiments/ to its module."""

from dara.analysis.modules import Modules
from dara.analysis.tables.render import Table, render_table

TABLES = Modules(
    __name__,
    "comparisons",
    "crossings",
    "engines",
    "extended",
    "final_scores",
    "fixed_weights",
    "hyperparameters",
    "math_scores",
    "math_sets",
    "rates",
    "runs",
    "score_intervals",
    "side_by_side",
    "three_rewards",
    "threshold_crossings",
    "tool_scores",
    "tool_step60",
)

__all__ = ["TABLES", "Table", "render_table"]
