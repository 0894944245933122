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

from typer import Argument, Context, Option

from dara.files import read_json
from dara.registries import ENGINES
from dara.store import base_model, checkpoints, directory_lock
from dara.training.stopping import Deadline, OutOfTime

if TYPE_CHECKING:
    from dara.data.hub import Fetch
    from dara.specs import Benchmark, RunSpec

STARTED = time.monotonic()  # approximate start of the process: a time limit counts from here

SPEC = Annotated[Path, Argument(help="specification (JSON)")]
OUT = Annotated[Path, Option(help="directory to write")]
DATA = Annotated[Path | None, Option(help="manifest of the prepared data")]
SCRATCH = Annotated[Path | None, Option(help="directory of checkpoints and work in progress")]
BENCHMARK = Annotated[str, Option(help="settings of the benchmark (JSON); with --model its name, such as bfcl_v4")]
FETCH = Annotated[str, Option(help="sources of data and models (JSON: scratch, data_local, models_local, hub_mirror)")]


def prepare(context: Context, spec: SPEC, out: OUT, fetch: FETCH = "{}") -> None:
    """Write training prompts, held-out cases and tokenizer of a data specification, or fetch a public data set."""
    from dara.data.prepare import prepare as prepare_data
    from dara.specs import AnyData

    prepare_data(_parsed(AnyData, spec), out, fetch=_fetch(context.obj, fetch), own_files=context.obj / "config")


def prepare_benchmark(
    context: Context, name: Annotated[str, Argument(help="bfcl_v4 or math_five")], out: OUT, fetch: FETCH = "{}"
) -> None:
    """Write the cases of a public benchmark."""
    from dara.data.prepare import prepare_benchmark as prepare_cases

    prepare_cases(name, out, fetch=_fetch(context.obj, fetch))


def prepare_model(
    context: Context,
    spec: SPEC,
    scratch: Annotated[Path, Option(help="directory of checkpoints and work in progress")],
    manifest: Annotated[Path, Option(help="manifest to write")],
    data: DATA = None,
    fetch: FETCH = "{}",
) -> None:
    """Make a base model by its supervised warm start, or fetch a public one."""
    from dara.specs import AnyModel, HubModel

    model = _parsed(AnyModel, spec)
    if isinstance(model, HubModel):
        from dara.data.hub import write_model_manifest

        write_model_manifest(model, manifest, fetch=_fetch(context.obj, fetch))
        return
    from dara.training.warm_start import warm_start

    data = _needed("data", data, f": the warm start of {model.name} needs the manifest of its data")
    warm_start(model, data.parent, scratch, manifest)


def train(
    context: Context,
    spec: SPEC,
    data: DATA = None,
    model: Annotated[Path | None, Option(help="manifest of the base model")] = None,
    scratch: SCRATCH = None,
    resources: Annotated[
        str | None, Option(help="hardware (JSON; default: of its model in config/models.yaml)")
    ] = None,
    trackers: Annotated[str, Option(help="also record metrics with these, offline: tensorboard,wandb")] = "",
    ray_address: Annotated[str | None, Option(help="an existing Ray cluster (default: the run starts its own)")] = None,
    environment: Annotated[str | None, Option(help="virtual environment of openrlhf, relative to the clone")] = None,
    minutes: Annotated[float | None, Option(help="time limit of this job")] = None,
    time_limit: Annotated[str, Option(help="enforced: stop at a checkpoint before --minutes end; or none")] = "none",
    dry_run: Annotated[bool, Option("--dry-run", help="print the command line of the engine and do nothing")] = False,
) -> None:
    """Train one run, or continue it from its last complete checkpoint."""
    from dara.config import Resources
    from dara.loading import check_known, read_models
    from dara.runs import run_id
    from dara.specs import RunSpec

    run = _parsed(RunSpec, spec)
    engine = ENGINES[run.engine]
    if resources is not None:
        hardware = _parsed(Resources, resources, "--resources")
    else:  # not part of the specification, so it is looked up when the run starts
        models = read_models(context.obj)
        check_known("the run's model", run.model.name, models, "a model of config/models.yaml")
        hardware = models[run.model.name].resources
    if dry_run:
        weights = Path(base_model(model)["directory"] if model else f"<{run.model.name}>")
        output = (scratch or Path(".scratch")) / run_id(run) / "openrlhf"
        print(engine.command_text(run, hardware, model=weights, output=output))
        return
    # Replaces this process, so it comes before the slow imports.
    if engine.program and environment:
        _continue_in(context.obj / environment)
    from dara.training.run import RunInputs

    data, model, scratch = _needed("data", data), _needed("model", model), _needed("scratch", scratch)
    _check_inputs(run, data=data, model=model)
    base = base_model(model)
    inputs = RunInputs(
        data_dir=data.parent,
        model_dir=Path(base["directory"]),
        scratch=scratch,
        out=spec.parent,
        methods_dir=context.obj / "config",
        model_sums=base["sha256"],
        trackers=tuple(name for name in trackers.split(",") if name),
        deadline=_deadline(time_limit, minutes),
    )
    with _error_kept(scratch / run_id(run)):
        engine.train(run, inputs, resources=hardware, ray_address=ray_address)


def _check_inputs(run: RunSpec, **manifests: Path) -> None:
    """Raise ValueError if the manifests are of other data or of another base model than the specification's."""
    for key, manifest in manifests.items():
        if read_json(manifest).get(key) != getattr(run, key).model_dump(mode="json"):
            raise ValueError(
                f"{manifest} is not of the {key} that the run's specification names; give the manifest of it"
            )


@contextmanager
def _error_kept(work: Path) -> Iterator[None]:
    """Write the error that ends a training into its work directory, where `dara status` finds it."""
    from dara.status import ERROR

    file = work / ERROR
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
    context: Context,
    manifest: Annotated[Path | None, Argument(help="manifest of a run or of a base model")] = None,
    benchmark: BENCHMARK = ...,
    data: DATA = None,
    out: Annotated[Path | None, Option(help="directory to write (with --model: results/standalone/<model>)")] = None,
    steps: Annotated[str | None, Option(help="with a manifest: only steps such as 50,100 (default: all)")] = None,
    part: Annotated[str | None, Option(help="with a manifest: K/N, the K-th of N jobs that share checkpoints")] = None,
    gather: Annotated[bool, Option("--gather", help="with a manifest: all parts ended; write their identity")] = False,
    model: Annotated[str | None, Option(help="any Hugging Face model: a directory or OWNER/NAME@REVISION")] = None,
    limit: Annotated[int | None, Option(help="with --model: only this many cases, spread over the categories")] = None,
    samples: Annotated[int | None, Option(help="with --model: responses a case (default: the paper's)")] = None,
    batch_size: Annotated[int | None, Option(help="with --model: sequences generated at once")] = None,
    max_response_tokens: Annotated[int | None, Option(help="with --model: longest response (default: paper's)")] = None,
    sampler: Annotated[str, Option(help="with --model: transformers or vllm")] = "transformers",
    fetch: FETCH = "{}",
) -> None:
    """Generate the responses of the checkpoints that a manifest names; with --model, evaluate any model."""
    changes = {"limit": limit, "samples": samples, "batch_size": batch_size}
    changes["max_response_tokens"] = max_response_tokens
    if model is not None:
        given = {"manifest": manifest, "data": data, "steps": steps, "part": part, "gather": gather}
        _refuse(given, "without --model")
        from dara.standalone import evaluate_model

        print(evaluate_model(model, benchmark, sampler=sampler, out=out, fetch=_fetch(context.obj, fetch), **changes))
        return
    _refuse(changes, "with --model")
    if manifest is None:
        raise ValueError("name the manifest of a run or of a base model, or any model with --model DIRECTORY_OR_ID")
    from dara.evaluation import generate

    (settings, cases), out = _settings(benchmark, _needed("data", data)), _needed("out", out)
    made = _checkpoints(manifest, steps)
    share = generate.Part.parse(part) if part else None
    with directory_lock(out / (f".part{share.number}" if share else ".lock")):
        if gather:
            generate.gather(list(made), settings, cases, out)
            return
        directories = {step: Path(entry["directory"]) for step, entry in made.items()}
        checksums = {step: entry["sha256"] for step, entry in made.items()}
        generate.generate_checkpoints(directories, settings, cases, out, part=share, checksums=checksums)


def _checkpoints(manifest: Path, steps: str | None) -> dict[int, dict[str, Any]]:
    """Return the checkpoints to evaluate: those of --steps, else all of the manifest. A diverged run may lack some."""
    saved = checkpoints(manifest)
    if steps is None:
        return saved
    try:
        asked = {int(step) for step in steps.split(",")}
    except ValueError:
        raise ValueError(f"--steps is {steps!r}; it must be steps with commas, such as 50,100") from None
    absent = sorted(asked - saved.keys())
    if absent and read_json(manifest).get("outcome") != "diverged":
        has = ", ".join(map(str, sorted(saved)))
        raise ValueError(f"--steps {steps}: {manifest} has no checkpoint of step {absent[0]}; it has {has}")
    return {step: entry for step, entry in saved.items() if step in asked}


def _refuse(options: dict[str, Any], form: str) -> None:
    """Raise ValueError for options of the other form of `evaluate`, which would be ignored."""
    given = [name for name, value in options.items() if value]
    if given:
        raise ValueError(f"--{given[0].replace('_', '-')} is an option of `evaluate` {form} only; leave it out")


def score(
    benchmark: BENCHMARK,
    data: Annotated[Path, Option(help="manifest of the prepared data")],
    out: OUT,
    responses: Annotated[Path | None, Option(help="responses to copy to --out (default: they are there)")] = None,
    workers: Annotated[int | None, Option(help="processes that score (default: one a core)")] = None,
) -> None:
    """Score the responses in a directory."""
    from dara.evaluation.grading import score_checkpoints
    from dara.evaluation.records import copy_responses, responses_manifest

    settings, cases = _settings(benchmark, data)
    with directory_lock(out / ".lock"):
        if responses is not None and responses.resolve() != out.resolve():
            copy_responses(responses, out)
        steps = [int(step) for step in responses_manifest(out)["checkpoints"]]
        score_checkpoints(out, steps, settings, cases, workers=workers)


def _settings(benchmark: str, data: Path) -> tuple[Benchmark, Path]:
    """Return the settings of --benchmark, and the directory of its cases beside the manifest of the data."""
    from dara.registries import definition
    from dara.specs import Benchmark

    settings = _parsed(Benchmark, benchmark, "--benchmark")
    return settings, data.parent / definition(settings.name).cases_folder


def _needed(name: str, value: Any, why: str = "") -> Any:
    """Return an option that this form of a command requires."""
    if value is None:
        raise ValueError(f"--{name} is missing{why}")
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


def _deadline(time_limit: str, minutes: float | None) -> Deadline | None:
    """Return when the batch system will end this job; None if no limit is enforced."""
    if time_limit not in ("none", "enforced"):
        raise ValueError(f"--time-limit is {time_limit!r}; it must be none or enforced")
    if time_limit == "none":
        return None
    minutes = _needed("minutes", minutes, ": --time-limit enforced needs the time limit of this job")
    return Deadline(minutes, STARTED)


def _parsed(kind: Any, source: Path | str, option: str = "") -> Any:
    """Return JSON of a file or an option as a model; raise ValueError that says where, which key, and what is wrong."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(source.read_bytes() if isinstance(source, Path) else source)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(": ".join(filter(None, [option or str(source), place, first["msg"]]))) from None
