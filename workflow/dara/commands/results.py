"""Commands from finished runs to frames, tables, figures and the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

if TYPE_CHECKING:
    from dara.analysis.view import View
    from dara.plan import WorkflowPlan

CONFIGURATION = Annotated[Path, Argument(help="results/<preset>/configuration.json")]
SOURCE = Annotated[Path, Argument(help="results/<preset>/configuration.json, or results/published")]
NAMES = Annotated[list[str], Argument(help="file names in config/experiments/")]


def frames(context: Context, configuration: CONFIGURATION) -> None:
    """Gather runs, training curves, scores with intervals, crossings and energies into tidy frames."""
    from dara.analysis.collect import analyse, collect

    plan = _plan(context.obj, configuration)
    matrix, experiments = plan.matrix, plan.configuration.experiments
    directories = {run: plan.run_directory(run) for run in matrix.runs}
    collect(directories, matrix.experiments, plan.paths.frames, cached=plan.cached)
    analyse(
        directories,
        plan.score_directories,
        matrix.experiments,
        {name: experiment.thresholds for name, experiment in experiments.items()},
        {name: {one.name: steps for one, steps in asked.items()} for name, asked in matrix.evaluations.items()},
        {name: experiment.score_steps for name, experiment in experiments.items()},
        plan.paths.frames,
    )


def table(context: Context, names: NAMES, source: SOURCE) -> None:
    """Write tables as Markdown, LaTeX and CSV."""
    _write_tables(context.obj, "tables", names, source)


def side_by_side(context: Context, names: NAMES, configuration: CONFIGURATION) -> None:
    """Write tables of a preset's runs beside the authors' numbers."""
    _write_tables(context.obj, "side_by_side", names, configuration)


def _write_tables(root: Path, kind: str, names: list[str], source: Path) -> None:
    from dara.analysis.tables import build_table, render_table

    for entry, views, stem, settings in _drawn(root, kind, names, source):
        render_table(build_table(entry, *views, **(settings if entry == "hyperparameters" else {})), stem)


def figure(context: Context, names: NAMES, source: SOURCE) -> None:
    """Draw figures as PNG and SVG."""
    from dara.analysis.figures import draw_figure
    from dara.analysis.figures.style import render_figure

    for module, views, stem, _ in _drawn(context.obj, "figures", names, source):
        render_figure(draw_figure(module, *views), stem)


def _drawn(root: Path, kind: str, names: list[str], source: Path) -> Iterator[tuple[Any, list[View], Path, dict]]:
    """Yield module, views, files without suffix, and settings of the runs, of each table or figure to draw.

    Its numbers are those of a preset's runs, of the paper (if the source is a directory), or both side by side.
    """
    from dara.analysis.frames import FrameFiles
    from dara.analysis.paper_numbers import read_published
    from dara.analysis.view_published import PublishedView
    from dara.analysis.view_runs import RunsView
    from dara.loading import read_methods
    from dara.outputs import Outputs

    plan = None if source.is_dir() else _plan(root, source)
    outputs = plan.outputs if plan else Outputs.of_published(root, source)
    methods = plan.configuration.methods if plan else read_methods(root)
    published = plan.paths.published if plan else source
    for name in names:
        experiment, entry = outputs.owner(kind, name)
        views: list[View] = []
        if plan:
            views.append(RunsView(FrameFiles(plan.paths.frames), experiment, methods, plan.name))
        if kind == "side_by_side":
            experiment = plan.published.experiments[experiment.experiment]
        if not plan or kind == "side_by_side":
            views.append(PublishedView(read_published(published / "data"), experiment, methods))
        yield entry, views, outputs.stem(kind, name), {"preset": plan.configuration.preset} if plan else {}


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
