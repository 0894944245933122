"""From an id in the configuration to the files of a table or figure: of a preset's runs, or of published numbers.

Each of these jobs is short, so what only one kind of them needs is imported there: tables need no Matplotlib.
"""

from __future__ import annotations

from pathlib import Path

from dara.analysis.frames import FrameFiles
from dara.analysis.published import read_published
from dara.analysis.view import View
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.dag import Workflow
from dara.loading import read_methods
from dara.outputs import Outputs


def draw_ours(flow: Workflow, kind: str, output: str) -> None:
    """Write a table or figure (`kind`: tables, figures, side_by_side) of a preset."""
    experiment, module = flow.outputs.owner(kind, output)
    view = RunsView(
        FrameFiles(flow.paths.frames), experiment, flow.configuration.methods, flow.configuration.preset.preset
    )
    stem = flow.paths.root / kind / output
    if kind == "figures":
        _figure(view, module, stem)
    elif kind == "tables":
        _table((view,), module, stem, _settings(flow, module))
    else:
        theirs = flow.published.experiments[experiment.experiment]
        published = PublishedView(read_published(flow.paths.published / "data"), theirs, flow.configuration.methods)
        stem = flow.paths.root / "tables" / f"{output}_side_by_side"
        _table((view, published), module, stem, _settings(flow, module))


def draw_published(root: Path, directory: Path, kind: str, output: str) -> None:
    """Write a table or figure of the published numbers in `<directory>/data/` into `<directory>/<kind>/`."""
    experiment, module = Outputs.of_published(root, directory).owner(kind, output)
    view = PublishedView(read_published(directory / "data"), experiment, read_methods(root))
    if kind == "figures":
        _figure(view, module, directory / kind / output)
    else:
        _table((view,), module, directory / kind / output, {})


def _figure(view: View, module: str, stem: Path) -> None:
    from dara.analysis.figures import FIGURES, render_figure

    render_figure(FIGURES[module].draw(view), stem)


def _table(views: tuple[View, ...], module: str, stem: Path, settings: dict) -> None:
    """Of one view, or of two side by side."""
    from dara.analysis.tables import TABLES, render_table

    build = TABLES[module].build if len(views) == 1 else TABLES[module].build_side_by_side
    render_table(build(*views, **settings), stem)


def _settings(flow: Workflow, module: str) -> dict:
    """The settings of runs stand in the preset, not in their numbers."""
    return {"preset": flow.configuration.preset} if module == "hyperparameters" else {}
