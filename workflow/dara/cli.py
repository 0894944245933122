"""The `dara` command: its commands in groups, and their exit codes."""

from __future__ import annotations

import functools
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import dara
from dara.commands import jobs, look, results
from dara.system import EXIT_CODE, name_user, sentence, stop_with_parent, whole_output
from dara.training.stopping import OutOfTime

ROOT = Path(__file__).resolve().parents[2]
LOOK, HAND, JOBS = "Look", "Work by hand", "Jobs of the workflow"
COMMANDS: dict[Callable, tuple[str, str, str]] = {
    look.list_names: ("list", LOOK, "dara list presets | dara list methods --json"),
    look.plan: ("plan", LOOK, "dara plan tool_main --preset paper --profile slurm"),
    look.status: ("status", LOOK, "dara status --preset laptop-study"),
    look.check_config: ("check-config", LOOK, "dara check-config"),
    look.check_method: ("check-method", LOOK, "dara check-method dara_asym"),
    look.config_docs: ("config-docs", LOOK, "dara config-docs --out docs/configuration.md"),
    look.clean: ("clean", HAND, "dara clean --dry-run"),
    jobs.evaluate: ("evaluate", HAND, "dara evaluate --model DIRECTORY --benchmark bfcl_v4 --limit 50"),
    results.table: ("table", HAND, "dara table crossings results/laptop/configuration.json"),
    results.figure: ("figure", HAND, "dara figure learning crossing results/laptop/configuration.json"),
    results.cache_runs: ("cache-runs", HAND, "dara cache-runs results/laptop/configuration.json --into results/cached"),
    jobs.prepare: ("prepare", JOBS, ""),
    jobs.prepare_benchmark: ("prepare-benchmark", JOBS, ""),
    jobs.prepare_model: ("prepare-model", JOBS, ""),
    jobs.train: ("train", JOBS, "dara train results/paper/runs/RUN/spec.json --dry-run"),
    jobs.score: ("score", JOBS, ""),
    results.frames: ("frames", JOBS, "dara frames results/laptop/configuration.json"),
    results.side_by_side: ("side-by-side", JOBS, ""),
    results.report: ("report", JOBS, "dara report results/laptop/configuration.json"),
}
"""Command -> its name, its group and an example."""
FORMER = {"keys": look.config_docs, "cache": results.cache_runs, "base-model": jobs.prepare_model}
"""Former names, kept as aliases."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="DARA, density-aware reward aggregation: training, evaluation, analysis.",
)


_debug = False  # whether --debug was given


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dara {dara.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    root: Annotated[Path, typer.Option(help="the clone of the repository")] = ROOT,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    global _debug
    context.obj, _debug = root.resolve(), debug


def _add(name: str, function: Callable, group: str, example: str, *, hidden: bool = False) -> None:
    """Add a command; a mistake of the user ends it with one sentence and exit code 1."""

    @functools.wraps(function)
    def run(**options: Any) -> None:
        try:
            function(**options)
        except OutOfTime as stop:  # no error: the batch system starts this job again, and it continues
            sys.stderr.write(f"dara: {stop}\n")
            raise SystemExit(EXIT_CODE) from None
        except Exception as error:
            places = [value for value in options.values() if isinstance(value, Path)]
            of_system = sentence(error, [*places, Path(tempfile.gettempdir())])
            said = str(error) if isinstance(error, ValueError) else of_system
            if said is None or _debug:
                raise
            sys.stderr.write(f"dara: {said}\n")
            raise SystemExit(1) from None

    epilog = f"Example: {example}" if example else None
    app.command(name, rich_help_panel=group, epilog=epilog, hidden=hidden)(run)


for _function, (_name, _group, _example) in COMMANDS.items():
    _add(_name, _function, _group, _example)
for _name, _function in FORMER.items():
    _add(_name, _function, *COMMANDS[_function][1:], hidden=True)


@whole_output()
def main(argv: list[str] | None = None) -> None:
    """Run a command."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.raiseExceptions = False  # a log that cannot be written has no traceback of its own
    name_user()
    if argv is None:  # a process of its own, which must end with the process that started it
        stop_with_parent()
    try:
        app(args=argv, prog_name="dara")
    except SystemExit as end:
        if end.code:
            raise
