"""The `dara` command: one verb a function. The workflow's rules call these verbs, and people can too.

Imports of heavy packages stand inside the functions, so that each verb starts as fast as it can.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from dara.locking import HANDOVER_SECONDS, directory_lock
from dara.parent import stop_with_parent

ROOT = Path(__file__).resolve().parents[2]


def check_config(arguments: argparse.Namespace) -> None:
    """Check every file in config/ and say what the presets plan."""
    from dara.loading import check_method_parameters, load_all_presets
    from dara.runs import plan_runs

    for name, configuration in load_all_presets(arguments.root).items():
        check_method_parameters(configuration)
        plan = plan_runs(configuration)
        counts = ", ".join(f"{experiment} {len(runs)}" for experiment, runs in plan.experiments.items())
        print(f"{name}: {len(plan.runs)} runs ({counts})")


def keys(arguments: argparse.Namespace) -> None:
    """Write the page of all configuration keys, generated from the models."""
    from dara.keys import keys_page

    arguments.out.write_text(keys_page(), encoding="utf-8")


def check_method(arguments: argparse.Namespace) -> None:
    """Run the contract tests on a method of config/methods.yaml before any training is started."""
    from dara.loading import check_known, read_methods
    from dara.methods import load_method
    from dara.methods.contract import check_method as violations_of

    methods = read_methods(arguments.root)
    check_known("config/methods.yaml", arguments.method, methods, "a method of config/methods.yaml")
    entry = methods[arguments.method]
    method = load_method(arguments.method, function=entry.function, base_dir=arguments.root / "config", **entry.params)
    violations = violations_of(method)
    for violation in violations:
        print(f"{arguments.method}: {violation}")
    if violations:
        raise SystemExit(1)
    print(f"{arguments.method}: keeps the contract")


def prepare(arguments: argparse.Namespace) -> None:
    """Write training prompts, held-out cases and tokenizer of a data specification."""
    from dara.config import DataSpec
    from dara.data import prepare as prepare_data

    prepare_data(_read(DataSpec, arguments.spec), arguments.out)


def warm_start(arguments: argparse.Namespace) -> None:
    """Train a base model by its supervised warm start."""
    from dara.config import ModelSpec
    from dara.training.warm_start import warm_start as start

    start(_read(ModelSpec, arguments.spec), arguments.data.parent, arguments.scratch, arguments.manifest)


def train(arguments: argparse.Namespace) -> None:
    """Train one run, or continue it from its last complete checkpoint."""
    from dara.config import RunSpec
    from dara.training.trl import train as train_with_trl

    spec = _read(RunSpec, arguments.spec)
    train_with_trl(
        spec,
        data_dir=arguments.data.parent,
        model_dir=_model_directory(arguments.model),
        scratch=arguments.scratch,
        out=arguments.spec.parent,
        methods_dir=arguments.root / "config",
    )


def evaluate(arguments: argparse.Namespace) -> None:
    """Generate the responses of all checkpoints that a manifest names, for one benchmark."""
    from dara.config import Benchmark
    from dara.evaluation.generate import generate_checkpoints

    benchmark, out = Benchmark.model_validate_json(arguments.benchmark), arguments.out
    with directory_lock(out / ".lock", seconds=HANDOVER_SECONDS):
        generate_checkpoints(_checkpoints(arguments.manifest), benchmark, arguments.data.parent / "benchmark", out)


def score(arguments: argparse.Namespace) -> None:
    """Score the responses below a directory, and write the checksums of the score files."""
    from dara.config import Benchmark
    from dara.evaluation.score import identity_path, score_checkpoints, scores_path
    from dara.files import sha256, write_atomically

    benchmark, out = Benchmark.model_validate_json(arguments.benchmark), arguments.out
    with directory_lock(out / ".lock", seconds=HANDOVER_SECONDS):
        identity = json.loads(identity_path(out, benchmark.name).read_text(encoding="utf-8"))
        steps = [int(step) for step in identity["checkpoints"]]
        score_checkpoints(out, steps, benchmark, arguments.data.parent / "benchmark")
        files = [scores_path(out, step, benchmark.name) for step in steps]
        listing = {str(path.relative_to(out)): sha256(path) for path in files}
        write_atomically(out / f"{benchmark.name}.scored.json", json.dumps(listing, indent=2) + "\n")


def collect(arguments: argparse.Namespace) -> None:
    """Gather runs and training curves into tidy frames."""
    from dara.analysis import collect as collect_frames

    flow = _workflow(arguments)
    collect_frames(flow.run_directories, flow.plan.experiments, flow.paths.frames, cached=flow.cached)


def analyse(arguments: argparse.Namespace) -> None:
    """Compute checkpoint scores with intervals, crossings and energies."""
    from dara.analysis import analyse as analyse_frames

    flow = _workflow(arguments)
    preset, experiments = flow.configuration.preset, flow.configuration.experiments
    analyse_frames(
        flow.run_directories,
        {name: flow.score_directory(name) for name in flow.evaluated},
        flow.plan.experiments,
        {name: experiments[name].thresholds for name in preset.experiments},
        {task: [item.name for item in settings.benchmarks] for task, settings in preset.tasks.items()},
        flow.paths.frames,
    )


def cache(arguments: argparse.Namespace) -> None:
    """Keep every finished and scored run of a preset in results/cached/, to be committed."""
    from dara.cache import store

    flow = _workflow(arguments)
    kept = 0
    for name in flow.evaluated:
        run = flow.paths.run(name) if name in flow.plan.runs else None
        scores, benchmarks = flow.paths.scores(name), flow.benchmarks_of(name)
        scored = all((scores / f"{benchmark.name}.scored.json").is_file() for benchmark in benchmarks)
        if scored and (run is None or (run / "manifest.json").is_file()):
            store(run, scores, benchmarks, arguments.into / name)
            kept += 1
    print(f"{kept} of {len(flow.evaluated)} runs and base models are in {arguments.into}")


def table(arguments: argparse.Namespace) -> None:
    """Build one table as Markdown, LaTeX and CSV."""
    _draw(arguments, "tables")


def figure(arguments: argparse.Namespace) -> None:
    """Draw one figure as PNG and SVG."""
    _draw(arguments, "figures")


def side_by_side(arguments: argparse.Namespace) -> None:
    """Build one table of ours beside the published numbers."""
    _draw(arguments, "side_by_side")


def report(arguments: argparse.Namespace) -> None:
    """Write the report of a preset as one HTML file that opens offline."""
    from dara.report import write_report

    flow = _workflow(arguments)
    write_report(flow, flow.paths.root / "report.html")


def _draw(arguments: argparse.Namespace, kind: str) -> None:
    from dara.drawing import draw_ours, draw_published

    if arguments.configuration.is_dir():
        draw_published(arguments.root, arguments.configuration, kind, arguments.output)
    else:
        draw_ours(_workflow(arguments), kind, arguments.output)


def _read(model, path: Path):
    from pydantic import ValidationError

    try:
        return model.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _model_directory(manifest: Path) -> Path:
    directory = Path(json.loads(manifest.read_text(encoding="utf-8"))["directory"])
    if not directory.is_dir():
        raise ValueError(
            f"{directory}, the weights that {manifest} names, is gone; delete {manifest} to make them again"
        )
    return directory


def _checkpoints(manifest: Path) -> dict[int, Path]:
    """Step -> directory, from the manifest of a run or of a base model (step 0)."""
    content = json.loads(manifest.read_text(encoding="utf-8"))
    if "checkpoints" not in content:
        return {0: _model_directory(manifest)}
    return {int(step): Path(entry["directory"]) for step, entry in content["checkpoints"].items()}


def _workflow(arguments: argparse.Namespace):
    from dara.dag import Workflow
    from dara.loading import merge, read_yaml

    path, default = arguments.configuration, arguments.root / "config" / "config.yaml"
    values = merge(read_yaml(default), json.loads(path.read_text(encoding="utf-8")))
    return Workflow.load(arguments.root, values, [path])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dara", description="Density-aware reward aggregation: training, evaluation, analysis."
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the clone of the repository (default: the one of this package)"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(function, *options: tuple[str, type, str]) -> None:
        name = function.__name__.replace("_", "-")
        sub = verbs.add_parser(name, help=function.__doc__, description=function.__doc__)
        for option, kind, text in options:
            required = {"required": True} if option.startswith("--") else {}
            sub.add_argument(option, type=kind, help=text, **required)
        sub.set_defaults(function=function)

    data = ("--data", Path, "manifest of the prepared data")
    scratch = ("--scratch", Path, "directory of checkpoints and work in progress")
    configuration = ("configuration", Path, "results/<preset>/configuration.json")
    verb(check_config)
    verb(keys, ("--out", Path, "the page to write (docs/configuration.md)"))
    verb(check_method, ("method", str, "name in config/methods.yaml"))
    verb(prepare, ("spec", Path, "data specification (JSON)"), ("--out", Path, "directory to write"))
    verb(
        warm_start,
        ("spec", Path, "model specification (JSON)"),
        data,
        scratch,
        ("--manifest", Path, "manifest to write"),
    )
    verb(
        train,
        ("spec", Path, "run specification (JSON)"),
        data,
        ("--model", Path, "manifest of the base model"),
        scratch,
    )
    benchmark = ("--benchmark", str, "settings of the benchmark (JSON)")
    out = ("--out", Path, "directory of the responses and scores")
    verb(evaluate, ("manifest", Path, "manifest of a run or of a base model"), data, benchmark, out)
    verb(score, data, benchmark, out)
    verb(collect, configuration)
    verb(analyse, configuration)
    verb(cache, configuration, ("--into", Path, "results/cached of the clone that is committed"))
    source = ("configuration", Path, "results/<preset>/configuration.json, or results/published")
    verb(table, ("output", str, "file name of the table in config/experiments/"), source)
    verb(figure, ("output", str, "file name of the figure in config/experiments/"), source)
    verb(side_by_side, ("output", str, "name under side_by_side in config/experiments/"), configuration)
    verb(report, configuration)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run a verb. A mistake of the user's ends with one sentence and exit code 1."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    arguments = _parser().parse_args(argv)
    if argv is None:  # a process of its own, which must end with what started it
        stop_with_parent()
    try:
        arguments.function(arguments)
    except (ValueError, OSError) as error:
        if arguments.debug:
            raise
        sys.stderr.write(f"dara: {error}\n")
        raise SystemExit(1) from None
