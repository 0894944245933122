"""Table: held-out tool-calling scores of each model at one step: accuracy and format by group of categories."""

from __future__ import annotations

from dara.analysis.tables.at_step import Steps, score_table, step_name, step_note, steps_at
from dara.analysis.tables.render import Table
from dara.analysis.tables.score_pairs import scores_side_by_side
from dara.analysis.view import View

GROUPS = (
    {"live": "Live", "non_live": "Non-Live", "multi_turn": "Multi"},
    {
        "multiple_one_parameter": "1 par.",
        "multiple_two_parameters": "2 par.",
        "multiple_three_parameters": "3 par.",
    },
)
"""The groups of a benchmark with their headers: BFCL-v4's, and the laptop's categories, calls by their parameters."""

AVERAGES = {"average_accuracy": "Acc Avg.", "average_format": "Format Avg."}


def build(view: View, at: int = 100) -> Table:
    """One row a (setting, method), the base model first: accuracy and format, by group and on average.

    Args:
        view: an experiment on tool calling.
        at: the published step; of a shorter training of ours, the same share of it (`steps_at`).

    Raises:
        ValueError: the source has no average score at that step.
    """
    steps = steps_at(view, list(AVERAGES), at)
    metrics = _metrics(view, steps)
    named = step_name(view, steps, at)
    return score_table(
        view,
        metrics,
        steps,
        f"Tool-calling scores at {named}",
        [_groups_note(metrics), step_note(view, steps, at)],
    )


def build_side_by_side(ours: View, published: View, at: int = 100) -> Table:
    """Average accuracy and format of each method, ours and published; one row a (model, score, method)."""
    return scores_side_by_side(ours, published, {"average_accuracy": "Accuracy", "average_format": "Format"}, at)


def _metrics(view: View, steps: Steps) -> dict[str, str]:
    """Metric -> header: the groups of the benchmark that the source has scores of, and the averages."""
    groups = next((found for found in GROUPS if _has(view, f"accuracy/{next(iter(found))}", steps)), {})
    metrics = {}
    for kind, short, average in (("accuracy", "Acc", "average_accuracy"), ("format", "Format", "average_format")):
        metrics |= {f"{kind}/{group}": f"{short} {name}" for group, name in groups.items()}
        metrics[average] = AVERAGES[average]
    return metrics


def _has(view: View, metric: str, steps: Steps) -> bool:
    return any(view.score(metric, method, where, step) for where, step in steps.items() for method in view.methods)


def _groups_note(metrics: dict[str, str]) -> str:
    if "accuracy/live" in metrics:
        return "BFCL-v4: Acc and Format of its Live, Non-Live and Multi-Turn groups; Avg. is the mean of the three."
    if "accuracy/multiple_one_parameter" not in metrics:
        return "Acc and Format: averages over the categories of the benchmark; no scores of single categories."
    return (
        "Categories of this benchmark: calls with 1, 2 or 3 parameters; Avg. is the mean of two groups, one parameter "
        "and several. It has no Live, Non-Live and Multi-Turn groups."
    )
