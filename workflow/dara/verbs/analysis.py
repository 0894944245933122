"""From finished runs to frames, tables, figures and the report: called by the workflow's rules."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from dara.files import read_json

if TYPE_CHECKING:
    from dara.dag import Workflow


def collect(arguments: argparse.Namespace) -> None:
    """Gather runs and training curves into tidy frames."""
    from dara.analysis.collect import collect as collect_frames

    flow = _workflow(arguments)
    collect_frames(flow.run_directories, flow.plan.experiments, flow.paths.frames, cached=flow.cached)


def analyse(arguments: argparse.Namespace) -> None:
    """Compute checkpoint scores with intervals, crossings and energies."""
    from dara.analysis.collect import analyse as analyse_frames

    flow = _workflow(arguments)
    analyse_frames(
        flow.run_directories,
        flow.score_directories,
        flow.plan.experiments,
        {name: experiment.thresholds for name, experiment in flow.configuration.experiments.items()},
        {name: {one.name: steps for one, steps in asked.items()} for name, asked in flow.plan.evaluations.items()},
        {name: experiment.score_steps for name, experiment in flow.configuration.experiments.items()},
        flow.paths.frames,
    )


def cache(arguments: argparse.Namespace) -> None:
    """Keep every finished run of a preset that has the scores it is to have in results/cached/, to be committed."""
    from dara.cache import store
    from dara.evaluation.records import covers

    flow = _workflow(arguments)
    kept = 0
    names = dict.fromkeys([*flow.evaluated, *(run for run in flow.plan.runs if run not in flow.cached)])
    for name in names:
        run = flow.run_directory(name) if name in flow.plan.runs else None
        evaluations = {one: flow.paths.evaluation(name, one) for one in flow.benchmarks_of(name)}
        scored = all(covers(directory, flow.due_steps(name, one)) for one, directory in evaluations.items())
        if scored and (run is None or (run / "manifest.json").is_file()):
            store(run, list(evaluations.values()), arguments.into / name)
            kept += 1
    print(f"{kept} of {len(names)} runs and base models are in {arguments.into}")


def table(arguments: argparse.Namespace) -> None:
    """Build one table as Markdown, LaTeX and CSV."""
    from dara import drawing

    _draw(arguments, drawing.table, drawing.published_table)


def figure(arguments: argparse.Namespace) -> None:
    """Draw one figure as PNG and SVG."""
    from dara import drawing

    _draw(arguments, drawing.figure, drawing.published_figure)


def side_by_side(arguments: argparse.Namespace) -> None:
    """Build one table of ours beside the published numbers."""
    from dara import drawing

    drawing.side_by_side(_workflow(arguments), arguments.output)


def report(arguments: argparse.Namespace) -> None:
    """Write the report of a preset as one HTML file that opens offline."""
    from dara.report import write_report

    flow = _workflow(arguments)
    write_report(flow, flow.paths.root / "report.html")


def _draw(arguments: argparse.Namespace, ours: Callable, theirs: Callable) -> None:
    if arguments.configuration.is_dir():
        theirs(arguments.root, arguments.configuration, arguments.output)
    else:
        ours(_workflow(arguments), arguments.output)


def _workflow(arguments: argparse.Namespace) -> Workflow:
    from dara.dag import Workflow
    from dara.loading import load_configuration, merge, read_yaml

    path, default = arguments.configuration, arguments.root / "config" / "config.yaml"
    values = merge(read_yaml(default), read_json(path))
    # Every preset was checked when the workflow started.
    return Workflow(load_configuration(arguments.root, values, [path]), arguments.root)
