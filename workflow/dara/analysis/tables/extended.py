"""Table: held-out math scores after a longer training."""

from __future__ import annotations

from dara.analysis.tables.at_step import is_published, score_table, step_note, steps_at
from dara.analysis.tables.math_scores import BETTER, BOLD_NOTE, METRICS, NO_BOLD_NOTE, meaning_note
from dara.analysis.tables.render import Table
from dara.analysis.view import View


def build(view: View, at: int = 100) -> Table:
    """One row a (setting, method): the math scores that the source has, at the end of the longer training.

    Args:
        view: an experiment on math.
        at: the published step; of a shorter training of ours, the same share of it (`steps_at`).

    Raises:
        ValueError: the source has no math score at that step.
    """
    steps = steps_at(view, list(METRICS), at)
    metrics = {
        metric: header
        for metric, header in METRICS.items()
        if any(view.score(metric, method, where, step) for where, step in steps.items() for method in view.methods)
    }
    notes = [meaning_note(metrics), step_note(view, steps, at), NO_BOLD_NOTE if is_published(view) else BOLD_NOTE]
    better = {metric: BETTER[metric] for metric in metrics}
    return score_table(view, metrics, steps, "Math scores after extended training", notes, better)
