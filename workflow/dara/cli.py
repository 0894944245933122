"""The `dara` command: its verbs and their options."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dara.parent import EXIT_CODE, stop_with_parent
from dara.stdout import whole_output
from dara.system import name_user, sentence
from dara.training.stopping import OutOfTime
from dara.verbs import analysis, people, runs

ROOT = Path(__file__).resolve().parents[2]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dara", description="Density-aware reward aggregation: training, evaluation, analysis."
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the clone of the repository (default: the one of this package)"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subparsers = parser.add_subparsers(required=True, metavar="VERB")

    def verb(function: Callable, *options: tuple, **defaults: Any) -> None:
        """Add a verb; an option (--name) with a default in `defaults` may be left out."""
        name = function.__name__.replace("_", "-")
        sub = subparsers.add_parser(name, help=function.__doc__, description=function.__doc__)
        for option, kind, text in options:
            _add(sub, option, kind, text, defaults)
        sub.set_defaults(function=function)

    _workflow_verbs(verb)
    _analysis_verbs(verb)
    _people_verbs(verb)
    return parser


def _add(parser: argparse.ArgumentParser, option: str, kind: Callable, text: str, defaults: dict[str, Any]) -> None:
    name = option.removeprefix("--").replace("-", "_")
    if kind is bool:
        parser.add_argument(option, action="store_true", help=text)
    elif kind is list:
        parser.add_argument(option, action="extend", nargs=1, type=Path, help=text, default=[*defaults[name]])
    elif option.startswith("--"):
        parser.add_argument(option, type=kind, help=text, required=name not in defaults, default=defaults.get(name))
    elif name in defaults:
        parser.add_argument(option, type=kind, help=text, nargs="?", default=defaults[name])
    else:
        parser.add_argument(option, type=kind, help=text)


def _reuse(text: str) -> str:
    if text not in ("matching", "only", "none"):
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be matching, only or none")
    return text


DATA = ("--data", Path, "manifest of the prepared data")
SCRATCH = ("--scratch", Path, "directory of checkpoints and work in progress")
FETCH = (
    "--fetch",
    str,
    "how published data and models are fetched (JSON; keys scratch, data_local, models_local, hub_mirror)",
)
OUT = ("--out", Path, "directory to write (evaluate --model: results/standalone/<model>)")
CONFIGURATION = ("configuration", Path, "results/<preset>/configuration.json")
PRESET = ("--preset", str, "name of a preset in config/presets/ (default: laptop)")
REUSE = ("--reuse", _reuse, "matching, only or none: as in config/config.yaml (status: as the last workflow was told)")
ONLINE = "{}"


def _workflow_verbs(verb: Callable) -> None:
    """What the rules call, in the order of the workflow."""
    verb(runs.prepare, ("spec", Path, "data specification (JSON)"), OUT, FETCH, fetch=ONLINE)
    verb(runs.prepare_benchmark, ("name", str, "bfcl_v4 or math_five"), OUT, FETCH, fetch=ONLINE)
    manifest = ("--manifest", Path, "manifest to write")
    spec = ("spec", Path, "model specification (JSON)")
    verb(runs.base_model, spec, DATA, SCRATCH, manifest, FETCH, data=None, fetch=ONLINE)
    verb(
        runs.train,
        ("spec", Path, "run specification (JSON)"),
        DATA,
        ("--model", Path, "manifest of the base model"),
        SCRATCH,
        ("--resources", str, "hardware of the run (JSON; default: of its model in config/models.yaml)"),
        ("--trackers", str, "also record metrics with these, offline: tensorboard,wandb"),
        ("--ray-address", str, "an existing Ray cluster (default: the run starts its own)"),
        ("--environment", str, "virtual environment in which openrlhf trains, relative to the clone"),
        ("--minutes", float, "time limit of this job"),
        ("--time-limit", str, "enforced: stop at a checkpoint before --minutes are over; none (default)"),
        ("--dry-run", bool, "print the command line of the engine and do nothing"),
        **{
            "data": None,
            "model": None,
            "scratch": None,
            "resources": None,
            "trackers": "",
            "ray_address": None,
            "environment": None,
        },
        **{"minutes": None, "time_limit": "none"},
    )
    benchmark = ("--benchmark", str, "settings of the benchmark (JSON); with --model its name, such as bfcl_v4")
    verb(
        runs.evaluate,
        ("manifest", Path, "manifest of a run or of a base model"),
        DATA,
        benchmark,
        OUT,
        ("--model", str, "instead of a manifest: any Hugging Face model, as a directory or OWNER/NAME@REVISION"),
        ("--limit", int, "with --model: only this many cases, spread over the categories"),
        ("--samples", int, "with --model: responses a case (default: the paper's)"),
        ("--batch-size", int, "with --model: sequences generated at once"),
        ("--max-response-tokens", int, "with --model: longest response (default: the paper's)"),
        ("--steps", str, "with a manifest: only these checkpoints, such as 50,100 (default: all)"),
        ("--gather", bool, "with a manifest: all parts have ended; put down what made their responses"),
        ("--part", str, "with a manifest: K/N, the K-th of N jobs that share the checkpoints"),
        ("--sampler", str, "with --model: transformers (default) or vllm"),
        FETCH,
        **dict.fromkeys(("manifest", "data", "out", "steps", "part", "model", "limit", "samples", "batch_size"), None),
        **{"max_response_tokens": None, "sampler": "transformers", "fetch": ONLINE},
    )
    workers = ("--workers", int, "processes that score (default: one a core)")
    responses = ("--responses", Path, "directory of the responses, which are copied to --out (default: they are there)")
    settings = ("--benchmark", str, "settings of the benchmark (JSON)")
    verb(runs.score, DATA, settings, responses, OUT, workers, responses=None, workers=None)


def _analysis_verbs(verb: Callable) -> None:
    """From finished runs to tables, figures and the report."""
    verb(analysis.collect, CONFIGURATION)
    verb(analysis.analyse, CONFIGURATION)
    verb(analysis.cache, CONFIGURATION, ("--into", Path, "results/cached of the clone that is committed"))
    source = ("configuration", Path, "results/<preset>/configuration.json, or results/published")
    verb(analysis.table, ("output", str, "file name of the table in config/experiments/"), source)
    verb(analysis.figure, ("output", str, "file name of the figure in config/experiments/"), source)
    verb(analysis.side_by_side, ("output", str, "name under side_by_side in config/experiments/"), CONFIGURATION)
    verb(analysis.report, CONFIGURATION)


def _people_verbs(verb: Callable) -> None:
    """What people ask before, during and after a workflow."""
    verb(people.check_config)
    verb(people.keys, ("--out", Path, "the page to write (docs/configuration.md)"))
    verb(people.check_method, ("method", str, "name in config/methods.yaml"))
    target = ("target", str, "all (default) or the name of an experiment")
    profile = (
        "--profile",
        list,
        "count GPUs and time limits as this profile sets them, such as slurm; several in turn",
    )
    workflow_profile = ("--workflow-profile", list, "the same, on top of --profile")
    verb(
        people.plan,
        *(target, PRESET, REUSE, profile, workflow_profile),
        **{"target": "all", "preset": "laptop", "reuse": None, "profile": (), "workflow_profile": ()},
    )
    verb(people.status, PRESET, REUSE, preset="laptop", reuse=None)
    results = ("--results", bool, "delete results/<preset> instead, with its work in scratch that is its alone")
    verb(people.clean, PRESET, ("--dry-run", bool, "only say what would be deleted"), results, preset="laptop")


@whole_output()
def main(argv: list[str] | None = None) -> None:
    """Run a verb. A mistake of the user's ends with one sentence and exit code 1."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.raiseExceptions = False  # a log that cannot be written has no traceback of its own
    arguments = _parser().parse_args(argv)
    name_user()
    if argv is None:  # a process of its own, which must end with what started it
        stop_with_parent()
    try:
        arguments.function(arguments)
    except OutOfTime as stop:  # nothing is wrong: the batch system starts this job again, and it continues
        sys.stderr.write(f"dara: {stop}\n")
        raise SystemExit(EXIT_CODE) from None
    except Exception as error:
        places = [place for name, place in vars(arguments).items() if isinstance(place, Path) and name != "root"]
        said = str(error) if isinstance(error, ValueError) else sentence(error, [*places, Path(tempfile.gettempdir())])
        if arguments.debug or said is None:
            raise
        sys.stderr.write(f"dara: {said}\n")
        raise SystemExit(1) from None
