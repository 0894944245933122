"""Commands that make data, models, runs and scores: jobs of the workflow, which can also be run by hand."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dara.files import read_json
from dara.manifests import (
    check_inputs,
    checkpoints,
    checksums,
    model_directory,
    model_sums,
    saved_steps,
)
from dara.registries import ENGINES

if TYPE_CHECKING:
    from dara.config import Resources
    from dara.data.hub import Fetch
    from dara.specs import RunSpec
    from dara.training.stopping import Deadline

STARTED = time.monotonic()  # approximate start of the process: a time limit counts from here

SPEC = Annotated[Path, typer.Argument(help="specification (JSON)")]
OUT = Annotated[Path, typer.Option(help="directory to write")]
DATA = Annotated[Path | None, typer.Option(help="manifest of the prepared data")]
SCRATCH = Annotated[Path | None, typer.Option(help="directory of checkpoints and work in progress")]
BENCHMARK = Annotated[
    str, typer.Option(help="settings of the benchmark (JSON); with --model its name, such as bfcl_v4")
]
FETCH = Annotated[
    str,
    typer.Option(
        help="how public data and models are fetched (JSON; keys scratch, data_local, models_local, hub_mirror)"
    ),
]


def prepare(context: typer.Context, spec: SPEC, out: OUT, fetch: FETCH = "{}") -> None:
    """Write training prompts, held-out cases and tokenizer of a data specification, or fetch a public data set."""
    from dara.data.prepare import prepare as prepare_data
    from dara.specs import AnyData

    root = context.obj
    prepare_data(_read(AnyData, spec), out, fetch=_fetch(root, fetch), own_files=root / "config")


def prepare_benchmark(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="bfcl_v4 or math_five")],
    out: OUT,
    fetch: FETCH = "{}",
) -> None:
    """Write the cases of a public benchmark."""
    from dara.data.prepare import prepare_benchmark as prepare_cases

    prepare_cases(name, out, fetch=_fetch(context.obj, fetch))


def prepare_model(
    context: typer.Context,
    spec: SPEC,
    scratch: Annotated[Path, typer.Option(help="directory of checkpoints and work in progress")],
    manifest: Annotated[Path, typer.Option(help="manifest to write")],
    data: DATA = None,
    fetch: FETCH = "{}",
) -> None:
    """Make a base model by its supervised warm start, or fetch a public one."""
    from dara.specs import AnyModel, HubModel

    model = _read(AnyModel, spec)
    if isinstance(model, HubModel):
        from dara.data.hub import write_model_manifest

        write_model_manifest(model, manifest, fetch=_fetch(context.obj, fetch))
        return
    from dara.training.warm_start import warm_start

    if data is None:
        raise ValueError(f"--data is missing: the warm start of {model.name} needs the manifest of its data")
    warm_start(model, data.parent, scratch, manifest)


def train(
    context: typer.Context,
    spec: SPEC,
    data: DATA = None,
    model: Annotated[Path | None, typer.Option(help="manifest of the base model")] = None,
    scratch: SCRATCH = None,
    resources: Annotated[
        str | None, typer.Option(help="hardware of the run (JSON; default: of its model in config/models.yaml)")
    ] = None,
    trackers: Annotated[str, typer.Option(help="also record metrics with these, offline: tensorboard,wandb")] = "",
    ray_address: Annotated[
        str | None, typer.Option(help="an existing Ray cluster (default: the run starts its own)")
    ] = None,
    environment: Annotated[
        str | None, typer.Option(help="virtual environment in which openrlhf trains, relative to the clone")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="time limit of this job")] = None,
    time_limit: Annotated[
        str, typer.Option(help="enforced: stop at a checkpoint before --minutes are over; or none")
    ] = "none",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the command line of the engine and do nothing")
    ] = False,
) -> None:
    """Train one run, or continue it from its last complete checkpoint."""
    from dara.specs import RunSpec

    run = _read(RunSpec, spec)
    hardware = _resources(context.obj, run.model.name, resources)
    if dry_run:
        print(_command_line(run, hardware, model, scratch))
        return
    engine = ENGINES[run.engine]
    # Replaces this process, so it comes before the slow imports.
    if engine.program and environment:
        _continue_in(context.obj / environment)
    from dara.training.run import RunInputs

    data, model, scratch = _needed("data", data), _needed("model", model), _needed("scratch", scratch)
    check_inputs(run, data, model)
    inputs = RunInputs(
        data_dir=data.parent,
        model_dir=model_directory(model),
        scratch=scratch,
        out=spec.parent,
        methods_dir=context.obj / "config",
        model_sums=model_sums(model),
        trackers=tuple(name for name in trackers.split(",") if name),
        deadline=_deadline(time_limit, minutes),
    )
    with _error_kept(scratch, run):
        engine.train(run, inputs, resources=hardware, ray_address=ray_address)


@contextmanager
def _error_kept(scratch: Path, run: RunSpec) -> Iterator[None]:
    """Write the error that ends a training into its work directory, where `dara status` finds it."""
    from dara.runs import run_id
    from dara.status import ERROR
    from dara.training.stopping import OutOfTime

    file = scratch / run_id(run) / ERROR
    file.unlink(missing_ok=True)
    try:
        yield
    except OutOfTime:
        raise
    except Exception as error:
        if file.parent.is_dir():
            file.write_text(f"{type(error).__name__}: {error}\n", encoding="utf-8")
        raise


def evaluate(
    context: typer.Context,
    manifest: Annotated[Path | None, typer.Argument(help="manifest of a run or of a base model")] = None,
    benchmark: BENCHMARK = ...,
    data: DATA = None,
    out: Annotated[
        Path | None, typer.Option(help="directory to write (with --model: results/standalone/<model>)")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="with a manifest: only these checkpoints, such as 50,100 (default: all)")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="with a manifest: K/N, the K-th of N jobs that share the checkpoints")
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", help="with a manifest: all parts have ended; write what made their responses")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="instead of a manifest: any Hugging Face model, as a directory or OWNER/NAME@REVISION"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="with --model: only this many cases, spread over the categories")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="with --model: responses a case (default: the paper's)")] = None,
    batch_size: Annotated[int | None, typer.Option(help="with --model: sequences generated at once")] = None,
    max_response_tokens: Annotated[
        int | None, typer.Option(help="with --model: longest response (default: the paper's)")
    ] = None,
    sampler: Annotated[str, typer.Option(help="with --model: transformers or vllm")] = "transformers",
    fetch: FETCH = "{}",
) -> None:
    """Generate the responses of the checkpoints that a manifest names; with --model, evaluate any model."""
    of_model = {
        "limit": limit,
        "samples": samples,
        "batch_size": batch_size,
        "max_response_tokens": max_response_tokens,
    }
    if model is not None:
        given = {"manifest": manifest, "data": data, "steps": steps, "part": part, "gather": gather}
        _refuse(given, "without --model")
        from dara.standalone import evaluate_model

        print(evaluate_model(model, benchmark, **of_model, sampler=sampler, out=out, fetch=_fetch(context.obj, fetch)))
        return
    _refuse(of_model, "with --model")
    if manifest is None:
        raise ValueError("name the manifest of a run or of a base model, or any model with --model DIRECTORY_OR_ID")
    _generate(manifest, benchmark, _needed("data", data), _needed("out", out), _steps(manifest, steps), part, gather)


def _generate(
    manifest: Path, benchmark: str, data: Path, out: Path, steps: set[int], part: str | None, gather: bool
) -> None:
    """Generate the responses of checkpoints, or a part of them; or gather the parts."""
    from dara.evaluation import generate
    from dara.registries import definition
    from dara.specs import Benchmark
    from dara.store import directory_lock

    settings = _parsed(Benchmark, benchmark, "--benchmark")
    share = generate.Part.parse(part) if part else None
    cases = data.parent / definition(settings.name).cases_folder
    made = {step: path for step, path in checkpoints(manifest).items() if step in steps}
    with directory_lock(out / (f".part{share.number}" if share else ".lock")):
        if gather:
            generate.gather(list(made), settings, cases, out)
        else:
            generate.generate_checkpoints(made, settings, cases, out, part=share, checksums=checksums(manifest))


def _steps(manifest: Path, steps: str | None) -> set[int]:
    """Return the steps to evaluate: those of --steps, else all of the manifest. A diverged run may lack some."""
    there = {*saved_steps(manifest)}
    if steps is None:
        return there
    try:
        asked = {int(step) for step in steps.split(",")}
    except ValueError:
        raise ValueError(f"--steps is {steps!r}; it must be steps with commas, such as 50,100") from None
    absent = sorted(asked - there)
    if absent and read_json(manifest).get("outcome") != "diverged":
        raise ValueError(
            f"--steps {steps}: {manifest} has no checkpoint of step {absent[0]}; it has "
            f"{', '.join(map(str, sorted(there)))}"
        )
    return asked & there


def _refuse(options: dict[str, Any], form: str) -> None:
    """Raise ValueError for options of the other form of `evaluate`, which would be ignored."""
    given = [name for name, value in options.items() if value]
    if given:
        raise ValueError(f"--{given[0].replace('_', '-')} is an option of `evaluate` {form} only; leave it out")


def score(
    benchmark: BENCHMARK,
    data: Annotated[Path, typer.Option(help="manifest of the prepared data")],
    out: OUT,
    responses: Annotated[
        Path | None,
        typer.Option(help="directory of the responses, which are copied to --out (default: they are there)"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="processes that score (default: one a core)")] = None,
) -> None:
    """Score the responses in a directory."""
    from dara.evaluation.grading import score_checkpoints
    from dara.evaluation.records import copy_responses, responses_manifest
    from dara.registries import definition
    from dara.specs import Benchmark
    from dara.store import directory_lock

    settings = _parsed(Benchmark, benchmark, "--benchmark")
    with directory_lock(out / ".lock"):
        if responses is not None and responses.resolve() != out.resolve():
            copy_responses(responses, out)
        steps = [int(step) for step in responses_manifest(out)["checkpoints"]]
        score_checkpoints(out, steps, settings, data.parent / definition(settings.name).cases_folder, workers=workers)


def _needed(name: str, value: Path | None) -> Path:
    """Return an option that this form of a command requires."""
    if value is None:
        raise ValueError(f"--{name} is missing")
    return value


def _fetch(root: Path, settings: str) -> Fetch:
    """Return the source of public data and models: settings of the preset as JSON (`WorkflowPlan.fetching`)."""
    from dara.data.hub import fetch_as_configured

    return fetch_as_configured(root, json.loads(settings))


def _continue_in(environment: Path) -> None:
    """Replace this process by the Python of another environment, unless it already is that one."""
    from dara.preflight import python_of

    python = python_of(environment)
    if Path(sys.prefix).resolve() == environment.resolve():
        return
    if not python.is_file():
        raise ValueError(f"{environment} has no bin/python; make the environment with `make openrlhf-cpu` or -cuda")
    search = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment_variables = os.environ | {"PYTHONPATH": os.pathsep.join(search)}
    os.execve(python, [str(python), "-m", "dara", *sys.argv[1:]], environment_variables)


def _resources(root: Path, model: str, given: str | None) -> Resources:
    """Return the hardware of a run: not part of its specification, so it is looked up when the run starts."""
    from dara.config import Resources
    from dara.loading import check_known, read_models

    if given is not None:
        return _parsed(Resources, given, "--resources")
    models = read_models(root)
    check_known("the run's model", model, models, "a model of config/models.yaml")
    return models[model].resources


def _deadline(time_limit: str, minutes: float | None) -> Deadline | None:
    """Return when the batch system will end this job; None if no limit is enforced."""
    if time_limit not in ("none", "enforced"):
        raise ValueError(f"--time-limit is {time_limit!r}; it must be none or enforced")
    if time_limit == "none":
        return None
    if minutes is None:
        raise ValueError("--minutes is missing: --time-limit enforced needs the time limit of this job")
    from dara.training.stopping import Deadline

    return Deadline.of(minutes, STARTED)


def _command_line(spec: RunSpec, resources: Resources, manifest: Path | None, scratch: Path | None) -> str:
    """Return the command line with which the engine would be started."""
    from dara.runs import run_id

    output = (scratch or Path(".scratch")) / run_id(spec) / "openrlhf"
    model = model_directory(manifest) if manifest else Path(f"<{spec.model.name}>")
    return ENGINES[spec.engine].command_text(spec, resources, model=model, output=output)


def _read(kind: Any, path: Path) -> Any:
    return _parsed(kind, path.read_bytes(), str(path))


def _parsed(kind: Any, text: str | bytes, where: str) -> Any:
    """Return JSON as a model; raise ValueError with one sentence: where, which key, what is wrong."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {f'{place}: ' if place else ''}{first['msg']}") from None
