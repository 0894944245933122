"""Drawing of tables and figures by their ids: from a preset's runs, or from the paper's numbers.

Each function implements the rule of its name. These jobs are short, so libraries that only one kind needs are imported
inside: tables need no Matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dara.analysis.figures import draw_figure
from dara.analysis.frames import FrameFiles
from dara.analysis.view import View
from dara.analysis.view_published import PublishedView, read_published
from dara.analysis.view_runs import RunsView
from dara.config import Experiment, MethodEntry
from dara.loading import read_methods
from dara.outputs import Outputs
from dara.plan import WorkflowPlan
from dara.table_options import ScoreTable


def table(plan: WorkflowPlan, names: Sequence[str]) -> None:
    """Write tables of a preset."""
    for output in names:
        experiment, entry = plan.outputs.owner("tables", output)
        _table((_ours(plan, experiment),), entry, plan.outputs.stem("tables", output), _settings(plan, entry))


def figure(plan: WorkflowPlan, names: Sequence[str]) -> None:
    """Write figures of a preset."""
    for output in names:
        experiment, module = plan.outputs.owner("figures", output)
        _figure(_ours(plan, experiment), module, plan.outputs.stem("figures", output))


def side_by_side(plan: WorkflowPlan, names: Sequence[str]) -> None:
    """Write tables of a preset that show the paper's numbers too."""
    for output in names:
        experiment, entry = plan.outputs.owner("side_by_side", output)
        theirs = plan.published.experiments[experiment.experiment]
        views = _ours(plan, experiment), _theirs(plan.paths.published, theirs, plan.configuration.methods)
        _table(views, entry, plan.outputs.stem("side_by_side", output), _settings(plan, entry))


def published_table(root: Path, directory: Path, names: Sequence[str]) -> None:
    """Write tables of the paper's numbers in `<directory>/data/` into `<directory>/tables/`."""
    outputs = Outputs.of_published(root, directory)
    for output in names:
        experiment, entry = outputs.owner("tables", output)
        _table((_theirs(directory, experiment, read_methods(root)),), entry, outputs.stem("tables", output), {})


def published_figure(root: Path, directory: Path, names: Sequence[str]) -> None:
    """Write figures of the paper's numbers into `<directory>/figures/`."""
    outputs = Outputs.of_published(root, directory)
    for output in names:
        experiment, module = outputs.owner("figures", output)
        _figure(_theirs(directory, experiment, read_methods(root)), module, outputs.stem("figures", output))


def _ours(plan: WorkflowPlan, experiment: Experiment) -> RunsView:
    preset = plan.configuration.preset.preset
    return RunsView(FrameFiles(plan.paths.frames), experiment, plan.configuration.methods, preset)


def _theirs(directory: Path, experiment: Experiment, methods: dict[str, MethodEntry]) -> PublishedView:
    return PublishedView(read_published(directory / "data"), experiment, methods)


def _figure(view: View, module: str, stem: Path) -> None:
    from dara.analysis.figures.style import render_figure

    render_figure(draw_figure(module, view), stem)


def _table(views: tuple[View, ...], entry: str | ScoreTable, stem: Path, settings: dict) -> None:
    """Write a table of one view, or of two side by side."""
    from dara.analysis.tables import build_table, render_table

    render_table(build_table(entry, *views, **settings), stem)


def _settings(plan: WorkflowPlan, entry: str | ScoreTable) -> dict:
    """Return the settings of the runs, which the paper's numbers do not have."""
    return {"preset": plan.configuration.preset} if entry == "hyperparameters" else {}
