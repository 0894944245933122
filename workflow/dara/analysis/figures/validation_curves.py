"""Rewards on validation rows, which are never trained on, over checkpoints."""

from __future__ import annotations

from matplotlib.figure import Figure

from dara.analysis.figures.checkpoint_curves import draw_metrics
from dara.analysis.figures.look import styled
from dara.analysis.names import VALIDATION
from dara.analysis.view import View


@styled
def draw(view: View) -> Figure:
    """A row of panels a setting, one column a reward of the experiment that was validated, in the reward's own unit.

    ValueError where the source has no validation rewards: a preset whose task has no `validation`.
    """
    return draw_metrics(view, {f"{VALIDATION}{name}": f"validation {name} reward" for name in view.experiment.rewards})
