"""Table: held-out math scores of each model at one step: accuracy, share of long responses, and both at once."""

from __future__ import annotations

from collections.abc import Iterable

from dara.analysis.tables.at_step import is_published, score_table, step_name, step_note, steps_at
from dara.analysis.tables.render import Table
from dara.analysis.tables.score_pairs import scores_side_by_side
from dara.analysis.view import View

METRICS = {"acc": "Acc", "exceed": "Exceed", "joint": "Joint"}
BETTER = {"acc": True, "exceed": False, "joint": True}
"""Whether more is better."""
MEANING = {"acc": "correct", "exceed": "longer than the limit", "joint": "correct and not longer than the limit"}

BOLD_NOTE = (
    "Bold: the best method of a model, where its interval does not overlap that of any other (Exceed: the smallest; "
    "the base model is not compared)."
)
NO_BOLD_NOTE = "No value is in bold: without an interval nothing says whether the best one is better."


def build(view: View, at: int = 50) -> Table:
    """One row a (setting, method), the base model first: Acc, Exceed and Joint.

    Args:
        view: an experiment on math.
        at: the published step; of a shorter training of ours, the same share of it (`steps_at`).

    Raises:
        ValueError: the source has no math score at that step.
    """
    steps = steps_at(view, list(METRICS), at)
    named = step_name(view, steps, at)
    notes = [meaning_note(METRICS), step_note(view, steps, at), NO_BOLD_NOTE if is_published(view) else BOLD_NOTE]
    return score_table(view, METRICS, steps, f"Math scores at {named}", notes, BETTER)


def meaning_note(metrics: Iterable[str]) -> str:
    """What the scores are."""
    meant = "; ".join(f"{METRICS[metric]}: {MEANING[metric]}" for metric in metrics)
    return f"{meant}. Shares of responses, mean over benchmarks."


def build_side_by_side(ours: View, published: View, at: int = 50) -> Table:
    """Acc, Exceed and Joint of each method, ours and published; one row a (model, score, method)."""
    return scores_side_by_side(ours, published, METRICS, at)
