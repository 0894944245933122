"""Commands from finished runs to frames, tables, figures and the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

if TYPE_CHECKING:
    from dara.analysis.view import View
    from dara.config import Experiment, MethodEntry
    from dara.plan import WorkflowPlan

CONFIGURATION = Annotated[Path, Argument(help="results/<preset>/configuration.json")]
SOURCE = Annotated[Path, Argument(help="results/<preset>/configuration.json, or results/published")]
NAMES = Annotated[list[str], Argument(help="file names in config/experiments/")]


def frames(context: Context, configuration: CONFIGURATION) -> None:
    """Gather runs, training curves, scores with intervals, crossings and energies into tidy frames."""
    from dara.analysis.collect import write_frames

    plan = _plan(context.obj, configuration)
    matrix, experiments = plan.matrix, plan.configuration.experiments
    directories = {run: plan.run_directory(run) for run in matrix.runs}
    write_frames(
        directories,
        plan.score_directories,
        matrix.experiments,
        {name: experiment.thresholds for name, experiment in experiments.items()},
        {name: {one.name: steps for one, steps in asked.items()} for name, asked in matrix.evaluations.items()},
        {name: experiment.score_steps for name, experiment in experiments.items()},
        plan.paths.frames,
        plan.cached,
    )


def table(context: Context, names: NAMES, source: SOURCE) -> None:
    """Write tables as Markdown, LaTeX and CSV."""
    (published_table if source.is_dir() else own_table)(context.obj, names, source)


def figure(context: Context, names: NAMES, source: SOURCE) -> None:
    """Draw figures as PNG and SVG."""
    (published_figure if source.is_dir() else own_figure)(context.obj, names, source)


def side_by_side(context: Context, names: NAMES, configuration: CONFIGURATION) -> None:
    """Write tables of a preset's runs beside the authors' numbers."""
    own_side_by_side(context.obj, names, configuration)


# A rule depends on the code that one of these reaches: own tables not on that of published numbers, for example.


def own_table(root: Path, names: list[str], configuration: Path) -> None:
    """Write tables of a preset."""
    plan = _plan(root, configuration)
    for name in names:
        experiment, entry = plan.outputs.owner("tables", name)
        view, stem = _runs(plan, experiment), plan.outputs.stem("tables", name)
        _write_table(stem, entry, view, preset=plan.configuration.preset)


def own_figure(root: Path, names: list[str], configuration: Path) -> None:
    """Draw figures of a preset."""
    plan = _plan(root, configuration)
    for name in names:
        experiment, module = plan.outputs.owner("figures", name)
        _draw_figure(plan.outputs.stem("figures", name), module, _runs(plan, experiment))


def own_side_by_side(root: Path, names: list[str], configuration: Path) -> None:
    """Write tables of a preset that show the paper's numbers too."""
    plan = _plan(root, configuration)
    for name in names:
        experiment, entry = plan.outputs.owner("side_by_side", name)
        theirs = plan.published.experiments[experiment.experiment]
        views = _runs(plan, experiment), _paper(plan.paths.published, theirs, plan.configuration.methods)
        _write_table(plan.outputs.stem("side_by_side", name), entry, *views, preset=plan.configuration.preset)


def published_table(root: Path, names: list[str], directory: Path) -> None:
    """Write tables of the paper's numbers in `<directory>/data/` into `<directory>/tables/`."""
    for stem, entry, view in _published(root, "tables", names, directory):
        _write_table(stem, entry, view)


def published_figure(root: Path, names: list[str], directory: Path) -> None:
    """Draw figures of the paper's numbers into `<directory>/figures/`."""
    for stem, module, view in _published(root, "figures", names, directory):
        _draw_figure(stem, module, view)


def _published(root: Path, kind: str, names: list[str], directory: Path) -> Iterator[tuple[Path, Any, View]]:
    from dara.loading import read_methods
    from dara.outputs import Outputs

    outputs = Outputs.of_published(root, directory)
    for name in names:
        experiment, entry = outputs.owner(kind, name)
        yield outputs.stem(kind, name), entry, _paper(directory, experiment, read_methods(root))


def _runs(plan: WorkflowPlan, experiment: Experiment) -> View:
    from dara.analysis.frames import FrameFiles
    from dara.analysis.view_runs import RunsView

    return RunsView(FrameFiles(plan.paths.frames), experiment, plan.configuration.methods, plan.name)


def _paper(directory: Path, experiment: Experiment, methods: dict[str, MethodEntry]) -> View:
    from dara.analysis.view_published import PublishedView, read_published

    return PublishedView(read_published(directory / "data"), experiment, methods)


def _draw_figure(stem: Path, module: str, view: View) -> None:
    from dara.analysis.figures import draw_figure
    from dara.analysis.figures.style import render_figure

    render_figure(draw_figure(module, view), stem)


def _write_table(stem: Path, entry: Any, *views: View, **settings: Any) -> None:
    """Write a table of one view, or of two side by side. settings: of the runs; the paper's numbers have none."""
    from dara.analysis.tables import build_table, render_table

    render_table(build_table(entry, *views, **(settings if entry == "hyperparameters" else {})), stem)


def report(context: Context, configuration: CONFIGURATION) -> None:
    """Write the report of a preset as one HTML file that opens offline."""
    from dara.report import write_report

    plan = _plan(context.obj, configuration)
    write_report(plan, plan.paths.root / "report.html")


def cache_runs(
    context: Context,
    configuration: CONFIGURATION,
    into: Annotated[Path, Option(help="results/cached of the clone that is committed")],
) -> None:
    """Keep every finished run of a preset that has the scores it is to have in results/cached/, to be committed."""
    from dara.cache import store
    from dara.evaluation.records import covers

    plan, kept = _plan(context.obj, configuration), 0
    names = dict.fromkeys([*plan.evaluated, *(run for run in plan.matrix.runs if run not in plan.cached)])
    for name in names:
        run = plan.run_directory(name) if name in plan.matrix.runs else None
        evaluations = {plan.paths.evaluation(name, one): plan.due_steps(name, one) for one in plan.benchmarks_of(name)}
        if all(map(covers, evaluations, evaluations.values())) and (run is None or (run / "manifest.json").is_file()):
            store(run, list(evaluations), into / name)
            kept += 1
    print(f"{kept} of {len(names)} runs and base models are in {into}")


def _plan(root: Path, configuration: Path) -> WorkflowPlan:
    """Return the plan of a configuration.json; every preset was checked when the workflow started."""
    from dara.loading import load_preset
    from dara.plan import WorkflowPlan

    return WorkflowPlan(load_preset(root, configuration), root)
