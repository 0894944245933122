"""From an id in the configuration to the files of a table or figure: of a preset's runs, or of published numbers.

A function draws what the rule of its name makes. These jobs are short, so what only one kind of them needs is imported
there: tables need no Matplotlib.
"""

from __future__ import annotations

from pathlib import Path

from dara.analysis.figures import draw_figure
from dara.analysis.frames import FrameFiles
from dara.analysis.paper_numbers import read_published
from dara.analysis.view import View
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.config import Experiment, MethodEntry
from dara.dag import Workflow
from dara.loading import read_methods
from dara.outputs import Outputs


def table(flow: Workflow, output: str) -> None:
    """Write a table of a preset."""
    experiment, module = flow.outputs.owner("tables", output)
    _table((_ours(flow, experiment),), module, flow.paths.root / "tables" / output, _settings(flow, module))


def figure(flow: Workflow, output: str) -> None:
    """Write a figure of a preset."""
    experiment, module = flow.outputs.owner("figures", output)
    _figure(_ours(flow, experiment), module, flow.paths.root / "figures" / output)


def side_by_side(flow: Workflow, output: str) -> None:
    """Write a table of a preset that has the published numbers too."""
    experiment, module = flow.outputs.owner("side_by_side", output)
    theirs = flow.published.experiments[experiment.experiment]
    views = _ours(flow, experiment), _theirs(flow.paths.published, theirs, flow.configuration.methods)
    _table(views, module, flow.paths.root / "tables" / f"{output}_side_by_side", _settings(flow, module))


def published_table(root: Path, directory: Path, output: str) -> None:
    """Write a table of the published numbers in `<directory>/data/` into `<directory>/tables/`."""
    experiment, module = Outputs.of_published(root, directory).owner("tables", output)
    _table((_theirs(directory, experiment, read_methods(root)),), module, directory / "tables" / output, {})


def published_figure(root: Path, directory: Path, output: str) -> None:
    """Write a figure of them into `<directory>/figures/`."""
    experiment, module = Outputs.of_published(root, directory).owner("figures", output)
    _figure(_theirs(directory, experiment, read_methods(root)), module, directory / "figures" / output)


def _ours(flow: Workflow, experiment: Experiment) -> RunsView:
    preset = flow.configuration.preset.preset
    return RunsView(FrameFiles(flow.paths.frames), experiment, flow.configuration.methods, preset)


def _theirs(directory: Path, experiment: Experiment, methods: dict[str, MethodEntry]) -> PublishedView:
    return PublishedView(read_published(directory / "data"), experiment, methods)


def _figure(view: View, module: str, stem: Path) -> None:
    from dara.analysis.figures.style import render_figure

    render_figure(draw_figure(module, view), stem)


def _table(views: tuple[View, ...], module: str, stem: Path, settings: dict) -> None:
    """Of one view, or of two side by side."""
    from dara.analysis.tables import TABLES, render_table

    build = TABLES[module].build if len(views) == 1 else TABLES[module].build_side_by_side
    render_table(build(*views, **settings), stem)


def _settings(flow: Workflow, module: str) -> dict:
    """The settings of runs stand in the preset, not in their numbers."""
    return {"preset": flow.configuration.preset} if module == "hyperparameters" else {}
