"""Commands from finished runs to frames, tables, figures and the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dara.files import read_json

if TYPE_CHECKING:
    from dara.plan import WorkflowPlan

CONFIGURATION = Annotated[Path, typer.Argument(help="results/<preset>/configuration.json")]
SOURCE = Annotated[Path, typer.Argument(help="results/<preset>/configuration.json, or results/published")]
NAMES = Annotated[list[str], typer.Argument(help="file names in config/experiments/")]


def frames(context: typer.Context, configuration: CONFIGURATION) -> None:
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


def table(context: typer.Context, names: NAMES, source: SOURCE) -> None:
    """Write tables as Markdown, LaTeX and CSV."""
    from dara import drawing

    if source.is_dir():
        drawing.published_table(context.obj, source, names)
    else:
        drawing.table(_plan(context.obj, source), names)


def figure(context: typer.Context, names: NAMES, source: SOURCE) -> None:
    """Draw figures as PNG and SVG."""
    from dara import drawing

    if source.is_dir():
        drawing.published_figure(context.obj, source, names)
    else:
        drawing.figure(_plan(context.obj, source), names)


def side_by_side(context: typer.Context, names: NAMES, configuration: CONFIGURATION) -> None:
    """Write tables of a preset's runs beside the authors' numbers."""
    from dara import drawing

    drawing.side_by_side(_plan(context.obj, configuration), names)


def report(context: typer.Context, configuration: CONFIGURATION) -> None:
    """Write the report of a preset as one HTML file that opens offline."""
    from dara.report import write_report

    plan = _plan(context.obj, configuration)
    write_report(plan, plan.paths.root / "report.html")


def cache_runs(
    context: typer.Context,
    configuration: CONFIGURATION,
    into: Annotated[Path, typer.Option(help="results/cached of the clone that is committed")],
) -> None:
    """Keep every finished run of a preset that has the scores it is to have in results/cached/, to be committed."""
    from dara.cache import store
    from dara.evaluation.records import covers

    plan = _plan(context.obj, configuration)
    runs = plan.matrix.runs
    kept = 0
    names = dict.fromkeys([*plan.evaluated, *(run for run in runs if run not in plan.cached)])
    for name in names:
        run = plan.run_directory(name) if name in runs else None
        evaluations = {one: plan.paths.evaluation(name, one) for one in plan.benchmarks_of(name)}
        scored = all(covers(directory, plan.due_steps(name, one)) for one, directory in evaluations.items())
        if scored and (run is None or (run / "manifest.json").is_file()):
            store(run, list(evaluations.values()), into / name)
            kept += 1
    print(f"{kept} of {len(names)} runs and base models are in {into}")


def _plan(root: Path, configuration: Path) -> WorkflowPlan:
    """Return the plan of a configuration.json; every preset was checked when the workflow started."""
    from dara.loading import load_configuration, merge, read_yaml
    from dara.plan import WorkflowPlan

    values = merge(read_yaml(root / "config" / "config.yaml"), read_json(configuration))
    return WorkflowPlan(load_configuration(root, values, [configuration]), root)
