"""What makes data, models, runs and scores: called by the workflow's rules."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.engines import ENGINES
from dara.files import read_json
from dara.manifests import (
    check_inputs,
    checkpoints,
    checksums,
    model_directory,
    model_sums,
    saved_steps,
)
from dara.store import directory_lock

if TYPE_CHECKING:
    from dara.config import Resources
    from dara.data.hub import Fetch
    from dara.specs import RunSpec
    from dara.training.stopping import Deadline

STARTED = time.monotonic()  # of the process, near enough: a time limit counts from here


def prepare(arguments: argparse.Namespace) -> None:
    """Write training prompts, held-out cases and tokenizer of a data specification, or fetch a published data set."""
    from dara.data.prepare import prepare as prepare_data
    from dara.specs import AnyData

    data, own_files = _read(AnyData, arguments.spec), arguments.root / "config"
    prepare_data(data, arguments.out, fetch=_fetch(arguments), own_files=own_files)


def prepare_benchmark(arguments: argparse.Namespace) -> None:
    """Write the cases of a published benchmark."""
    from dara.data.prepare import prepare_benchmark as prepare_cases

    prepare_cases(arguments.name, arguments.out, fetch=_fetch(arguments))


def base_model(arguments: argparse.Namespace) -> None:
    """Make a base model by its supervised warm start, or fetch a published one."""
    from dara.specs import AnyModel, HubModel

    spec = _read(AnyModel, arguments.spec)
    if isinstance(spec, HubModel):
        from dara.data.hub import write_model_manifest

        write_model_manifest(spec, arguments.manifest, fetch=_fetch(arguments))
        return
    from dara.training.warm_start import warm_start

    if arguments.data is None:
        raise ValueError(f"--data is missing: the warm start of {spec.name} needs the manifest of its data")
    warm_start(spec, arguments.data.parent, arguments.scratch, arguments.manifest)


def train(arguments: argparse.Namespace) -> None:
    """Train one run, or continue it from its last complete checkpoint."""
    from dara.specs import RunSpec

    spec = _read(RunSpec, arguments.spec)
    resources = _resources(spec.model.name, arguments)
    if arguments.dry_run:
        print(_command_line(spec, resources, arguments))
        return
    engine = ENGINES[spec.engine]
    if engine.program and arguments.environment:
        _continue_in(arguments.root / arguments.environment)
    from dara.training.run import RunInputs

    check_inputs(spec, _needed(arguments, "data"), _needed(arguments, "model"))
    inputs = RunInputs(
        data_dir=_needed(arguments, "data").parent,
        model_dir=model_directory(_needed(arguments, "model")),
        scratch=_needed(arguments, "scratch"),
        out=arguments.spec.parent,
        methods_dir=arguments.root / "config",
        model_sums=model_sums(arguments.model),
        trackers=tuple(name for name in arguments.trackers.split(",") if name),
        deadline=_deadline(arguments),
    )
    engine.train(spec, inputs, resources=resources, ray_address=arguments.ray_address)


def evaluate(arguments: argparse.Namespace) -> None:
    """Generate the responses of the checkpoints that a manifest names; with --model, evaluate any model."""
    if arguments.model is not None:
        _refuse(arguments, ("manifest", "data", "steps", "part", "gather"), "without --model")
        _evaluate_model(arguments)
        return
    _refuse(arguments, ("limit", "samples", "batch_size", "max_response_tokens"), "with --model")
    from dara.benchmarks import definition
    from dara.evaluation.generate import Part, gather, generate_checkpoints
    from dara.specs import Benchmark

    if arguments.manifest is None:
        raise ValueError("name the manifest of a run or of a base model, or any model with --model DIRECTORY_OR_ID")
    benchmark, out = _parsed(Benchmark, arguments.benchmark, "--benchmark"), _needed(arguments, "out")
    part = Part.parse(arguments.part) if arguments.part else None
    cases = _needed(arguments, "data").parent / definition(benchmark.name).cases_folder
    asked = _steps(arguments)
    made = {step: path for step, path in checkpoints(arguments.manifest).items() if step in asked}
    with directory_lock(out / (f".part{part.number}" if part else ".lock")):
        if arguments.gather:
            gather(list(made), benchmark, cases, out)
        else:
            sums = checksums(arguments.manifest)
            generate_checkpoints(made, benchmark, cases, out, part=part, checksums=sums)


def _steps(arguments: argparse.Namespace) -> set[int]:
    """The steps to evaluate: those of --steps, else all that the manifest has. A diverged run may not have all."""
    there = {*saved_steps(arguments.manifest)}
    if arguments.steps is None:
        return there
    try:
        asked = {int(step) for step in arguments.steps.split(",")}
    except ValueError:
        raise ValueError(f"--steps is {arguments.steps!r}; it must be steps with commas, such as 50,100") from None
    absent = sorted(asked - there)
    if absent and read_json(arguments.manifest).get("outcome") != "diverged":
        raise ValueError(
            f"--steps {arguments.steps}: {arguments.manifest} has no checkpoint of step {absent[0]}; it has "
            f"{', '.join(map(str, sorted(there)))}"
        )
    return asked & there


def _refuse(arguments: argparse.Namespace, names: Sequence[str], form: str) -> None:
    """ValueError for options of the other form of a verb, which would be ignored."""
    given = [name for name in names if getattr(arguments, name)]
    if given:
        raise ValueError(f"--{given[0].replace('_', '-')} is an option of `evaluate` {form} only; leave it out")


def _evaluate_model(arguments: argparse.Namespace) -> None:
    from dara.standalone import evaluate_model

    names = ("limit", "sampler", "out", "batch_size", "samples", "max_response_tokens")
    settings = {name: getattr(arguments, name) for name in names}
    print(evaluate_model(arguments.model, arguments.benchmark, **settings, fetch=_fetch(arguments)))


def score(arguments: argparse.Namespace) -> None:
    """Score the responses in a directory."""
    from dara.benchmarks import definition
    from dara.evaluation.grading import score_checkpoints
    from dara.evaluation.records import copy_responses, responses_manifest
    from dara.specs import Benchmark

    benchmark, out = _parsed(Benchmark, arguments.benchmark, "--benchmark"), arguments.out
    with directory_lock(out / ".lock"):
        if arguments.responses is not None and arguments.responses.resolve() != out.resolve():
            copy_responses(arguments.responses, out)
        steps = [int(step) for step in responses_manifest(out)["checkpoints"]]
        cases = arguments.data.parent / definition(benchmark.name).cases_folder
        score_checkpoints(out, steps, benchmark, cases, workers=arguments.workers)


def _needed(arguments: argparse.Namespace, name: str) -> Path:
    """An option that this form of a verb cannot do without."""
    value = getattr(arguments, name)
    if value is None:
        raise ValueError(f"--{name} is missing")
    return value


def _fetch(arguments: argparse.Namespace) -> Fetch:
    """How published data and models are fetched: settings of the preset as JSON (`Workflow.fetching`)."""
    from dara.data.hub import fetch_as_configured

    return fetch_as_configured(arguments.root, json.loads(arguments.fetch))


def _continue_in(environment: Path) -> None:
    """Go on as the same process with the Python of another environment, unless this is it already."""
    from dara.preflight import python_of

    python = python_of(environment)
    if Path(sys.prefix).resolve() == environment.resolve():
        return
    if not python.is_file():
        raise ValueError(f"{environment} has no bin/python; make the environment with `make openrlhf-cpu` or -cuda")
    search = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment_variables = os.environ | {"PYTHONPATH": os.pathsep.join(search)}
    os.execve(python, [str(python), "-m", "dara", *sys.argv[1:]], environment_variables)


def _resources(model: str, arguments: argparse.Namespace) -> Resources:
    """The hardware of a run: no part of its specification, so it is looked up when the run starts."""
    from dara.config import Resources
    from dara.loading import check_known, read_models

    if arguments.resources is not None:
        return _parsed(Resources, arguments.resources, "--resources")
    models = read_models(arguments.root)
    check_known("the run's model", model, models, "a model of config/models.yaml")
    return models[model].resources


def _deadline(arguments: argparse.Namespace) -> Deadline | None:
    """When the batch system will end this job; None where nobody will."""
    if arguments.time_limit not in ("none", "enforced"):
        raise ValueError(f"--time-limit is {arguments.time_limit!r}; it must be none or enforced")
    if arguments.time_limit == "none":
        return None
    if arguments.minutes is None:
        raise ValueError("--minutes is missing: --time-limit enforced needs the time limit of this job")
    from dara.training.stopping import Deadline

    return Deadline.of(arguments.minutes, STARTED)


def _command_line(spec: RunSpec, resources: Resources, arguments: argparse.Namespace) -> str:
    """Return what the engine would be started with."""
    from dara.runs import run_id

    output = (arguments.scratch or Path(".scratch")) / run_id(spec) / "openrlhf"
    model = model_directory(arguments.model) if arguments.model else Path(f"<{spec.model.name}>")
    return ENGINES[spec.engine].command_text(spec, resources, model=model, output=output)


def _read(kind: Any, path: Path) -> Any:
    return _parsed(kind, path.read_bytes(), str(path))


def _parsed(kind: Any, text: str | bytes, where: str) -> Any:
    """JSON as a model; ValueError with one sentence: where, which key, what is wrong."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {f'{place}: ' if place else ''}{first['msg']}") from None
