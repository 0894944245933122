"""From an id in the configuration to the files of a table or figure: of a preset's runs, or of published numbers."""

from __future__ import annotations

from pathlib import Path

from dara.analysis import FRAMES, read_frame
from dara.analysis.figures import FIGURES, render_figure
from dara.analysis.published import read_published
from dara.analysis.tables import TABLES, render_table
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.config import Experiment
from dara.dag import Workflow, published_owner
from dara.loading import load_published, read_methods


def draw_ours(flow: Workflow, kind: str, output: str) -> None:
    """Write a table or figure (`kind`: tables, figures, side_by_side) of a preset."""
    experiment, module = flow.owner_of(kind, output)
    view = _runs_view(flow, experiment)
    stem = flow.paths.root / kind / output
    if kind == "figures":
        render_figure(FIGURES[module].draw(view), stem)
    elif kind == "tables":
        render_table(TABLES[module].build(view, **_settings(flow, module)), stem)
    else:
        theirs = flow.published[experiment.experiment]
        published = PublishedView(read_published(flow.paths.published / "data"), theirs, flow.configuration.methods)
        built = TABLES[module].build_side_by_side(view, published, **_settings(flow, module))
        render_table(built, flow.paths.root / "tables" / f"{output}_side_by_side")


def draw_published(root: Path, directory: Path, kind: str, output: str) -> None:
    """Write a table or figure of the published numbers in `<directory>/data/` into `<directory>/<kind>/`."""
    experiment, module = published_owner(load_published(root), kind, output)
    view = PublishedView(read_published(directory / "data"), experiment, read_methods(root))
    if kind == "figures":
        render_figure(FIGURES[module].draw(view), directory / kind / output)
    else:
        render_table(TABLES[module].build(view), directory / kind / output)


def _runs_view(flow: Workflow, experiment: Experiment) -> RunsView:
    frames = {name: read_frame(flow.paths.frames / f"{name}.csv", name) for name in FRAMES}
    return RunsView(frames, experiment, flow.configuration.methods, flow.configuration.preset.preset)


def _settings(flow: Workflow, module: str) -> dict:
    """The settings of runs stand in the preset, not in their numbers."""
    return {"preset": flow.configuration.preset} if module == "hyperparameters" else {}
