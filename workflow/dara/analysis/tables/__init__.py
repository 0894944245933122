"""The tables: each module builds one; `TABLES` maps the name used in config/experiments/ to its module."""

from dara.analysis.tables import (
    comparisons,
    crossings,
    extended,
    final_scores,
    fixed_weights,
    hyperparameters,
    math_scores,
    runs,
    side_by_side,
    three_rewards,
    threshold_crossings,
    tool_scores,
    tool_step60,
)
from dara.analysis.tables.render import Table, render_table

TABLES = {
    "comparisons": comparisons,
    "crossings": crossings,
    "extended": extended,
    "final_scores": final_scores,
    "fixed_weights": fixed_weights,
    "hyperparameters": hyperparameters,
    "math_scores": math_scores,
    "runs": runs,
    "side_by_side": side_by_side,
    "three_rewards": three_rewards,
    "threshold_crossings": threshold_crossings,
    "tool_scores": tool_scores,
    "tool_step60": tool_step60,
}

__all__ = ["TABLES", "Table", "render_table"]
