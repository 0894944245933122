"""What must be there before a job runs: environments, what is fetched, and cached runs where nothing may be trained."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.benchmarks import names_of
from dara.engines import ENGINES
from dara.loading import ConfigurationError, read_yaml
from dara.profiles import gpus_asked
from dara.runs import evaluation_id
from dara.snakemake_command import Command
from dara.specs import HubData, HubModel
from dara.system import sentence

if TYPE_CHECKING:
    from dara.dag import Workflow


SLURM_PROGRAMS = ("sbatch", "squeue", "scancel")
SLURM_SECONDS = 60


def check_before_jobs(flow: Workflow, command: Command) -> None:
    """ConfigurationError for the first thing without which a job would fail, be lost, or wait in vain."""
    check_slurm(command)
    check_hardware(flow)
    check_trackers(flow)
    check_environments(flow)
    check_available(flow)


def check_slurm(command: Command) -> None:
    """ConfigurationError where jobs are to be submitted to Slurm and no Slurm answers from this machine."""
    if command.options.executor != "slurm":
        return
    where = f"{command.origins.get('executor', 'command line')}: executor slurm"
    absent = [program for program in SLURM_PROGRAMS if shutil.which(program) is None]
    if absent:
        raise ConfigurationError(
            f"{where}: {', '.join(absent)} not found on this machine; start the workflow on a login node of the "
            "cluster (where a module loads Slurm, after `module load`), or run it here: --profile profiles/local"
        )
    sacct = command.options.slurm_status_command == "sacct" and shutil.which("sacct")
    question = ["sacct" if sacct else "squeue", "--noheader", "--name", "none"]  # as the executor asks, again and again
    try:
        said = subprocess.run(question, capture_output=True, text=True, timeout=SLURM_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{where}: `{question[0]}` gave no answer within {SLURM_SECONDS} s; try later"
        ) from None
    if said.returncode:
        reason = " ".join(said.stderr.split()) or f"exit code {said.returncode}"
        raise ConfigurationError(f"{where}: Slurm does not answer `{question[0]}` on this machine: {reason}")


def check_targets(flow: Workflow, command: Command) -> None:
    """ConfigurationError for a file of another preset, which no rule of this workflow makes."""
    own, results = flow.configuration.preset.preset, flow.paths.results.absolute()
    for target in command.options.targets:
        path = Path(os.path.abspath(target))
        name = path.relative_to(results).parts[0] if path.is_relative_to(results) and path != results else own
        if name != own and (flow.root / "config" / "presets" / f"{name}.yaml").is_file():
            raise ConfigurationError(
                f"{target} belongs to preset {name}, and this workflow is of preset {own}; choose the other one: "
                f"--configfile config/presets/{name}.yaml -- {target}"
            )


def check_available(flow: Workflow) -> None:
    """ConfigurationError that lists published data and models which are neither here nor within reach."""
    models = [spec for spec in flow.plan.models.values() if isinstance(spec, HubModel)]
    data = [spec for spec in flow.plan.data.values() if isinstance(spec, HubData)]
    if flow.reuse == "only" or not (models or data):
        return
    from dara.data import hub
    from dara.data.prepare import files_of, files_of_benchmark

    benchmarks = {item.name for run in flow.plan.runs for item in flow.benchmarks_of(run)} & {*names_of("published")}
    sources = [name for spec in data for name in files_of(spec)]
    sources += [name for benchmark in benchmarks for name in files_of_benchmark(benchmark)]
    fetch = hub.fetch_as_configured(flow.root, json.loads(flow.fetching))
    try:
        hub.check_available(sources, [(spec.hub, spec.revision) for spec in models], fetch)
    except ValueError as error:
        raise ConfigurationError(f"preset {flow.configuration.preset.preset}: {error}") from None


def check_environments(flow: Workflow) -> None:
    """ConfigurationError if an environment that trains or generates is not there."""
    preset = flow.configuration.preset
    engines = {spec.engine for run, spec in flow.plan.runs.items() if run not in flow.cached}
    needed = {"training": preset.training_environment} if any(ENGINES[name].program for name in engines) else {}
    needed["evaluation"] = preset.evaluation_environment
    for stage, environment in needed.items():
        if flow.reuse != "only" and environment and not python_of(flow.root / environment).is_file():
            raise ConfigurationError(
                f"{stage}_environment of preset {preset.preset}: {environment} is not there; "
                "make it with `make openrlhf-cpu` (no GPU) or `make openrlhf-cuda`"
            )


def check_hardware(flow: Workflow) -> None:
    """ConfigurationError for hardware on which a run that is to be made cannot be trained or evaluated."""
    for run in set(flow.plan.runs) - flow.cached if flow.reuse != "only" else ():
        spec, resources = flow.plan.runs[run], flow.resources(run)
        try:
            ENGINES[spec.engine].check_resources(spec, resources)
        except ValueError as error:
            raise ConfigurationError(f"preset {flow.configuration.preset.preset}: {error}") from None
        for benchmark in flow.benchmarks_of(run):
            if benchmark.tensor_parallel > max(resources.evaluation_gpus, 1):
                raise ConfigurationError(
                    f"preset {flow.configuration.preset.preset}: benchmark {benchmark.name} has tensor_parallel "
                    f"{benchmark.tensor_parallel}, and an evaluation of {spec.model.name} {resources.evaluation_gpus} "
                    "GPUs; raise evaluation_gpus in its resources, or lower tensor_parallel"
                )


def check_gpus(flow: Workflow, command: Command) -> None:
    """ConfigurationError where `set-resources` gives jobs another number of GPUs than what they start will use."""
    where = f"{command.origins.get('set-resources', 'command line')}: set-resources"
    for run in sorted(set(flow.plan.runs) - flow.cached) if flow.reuse != "only" else ():
        spec, used = flow.plan.runs[run], flow.training_gpus(run)
        asked = gpus_asked(command, "train", used)
        if ENGINES[spec.engine].program and asked != used:
            raise ConfigurationError(
                f"{where}.train asks for {asked} GPUs, and a training of {spec.model.name} uses {used}: `gpus` of its "
                "resources in config/models.yaml, where the number is changed"
            )
        own = flow.resources(run).evaluation_gpus
        for benchmark in flow.benchmarks_of(run) if own else ():
            rule = "evaluate_part" if flow.evaluation_parts(run, evaluation_id(benchmark)) else "evaluate"
            asked = gpus_asked(command, rule, own)
            if asked < benchmark.tensor_parallel:
                raise ConfigurationError(
                    f"{where}.{rule} asks for {asked} GPUs, and benchmark {benchmark.name} needs "
                    f"{benchmark.tensor_parallel} (its tensor_parallel) for {spec.model.name}"
                )


def check_trackers(flow: Workflow) -> None:
    """ConfigurationError if a tracker's package is missing here, where runs of the small engine are made.

    Those of OpenRLHF are made in another environment, whose file has both packages.
    """
    from dara.training import run_files

    here = any(not ENGINES[spec.engine].program for run, spec in flow.plan.runs.items() if run not in flow.cached)
    try:
        run_files.check_trackers(flow.configuration.preset.trackers if here and flow.reuse != "only" else ())
    except ValueError as error:
        raise ConfigurationError(f"trackers of preset {flow.configuration.preset.preset}: {error}") from None


def check_preset_of_files(values: Mapping[str, Any], files: Sequence[Path]) -> None:
    """ConfigurationError where `--config preset=NAME` would put one preset's matrix into the results of another."""
    if not {"experiments", "extends"} & values.keys():
        raise ConfigurationError(
            f"{files[-1]}: is no preset: it has neither `extends` nor `experiments`, and a --configfile takes the "
            f"place of the profile's; give both (--configfile config/presets/NAME.yaml {files[-1]}), or, if it is a "
            f"profile, --profile {files[-1]}"
        )
    named = [(read_yaml(path).get("preset"), path) for path in files if path.is_file()]
    preset, path = next(((name, path) for name, path in reversed(named) if name is not None), (None, None))
    if preset is not None and values.get("preset") != preset:
        raise ConfigurationError(
            f"--config preset={values.get('preset')} only renames the results of {path}; choose a preset by its file: "
            f"--configfile config/presets/{values.get('preset')}.yaml"
        )


def check_cached_only(flow: Workflow) -> None:
    """ConfigurationError that names a run which is not cached, where the preset says `reuse: only`."""
    missing = [run for run in flow.plan.runs if run not in flow.cached]
    if flow.reuse != "only" or not (missing or flow.outdated):
        return
    preset = flow.configuration.preset.preset
    if not missing:
        raise ConfigurationError(
            f"{len(flow.outdated)} runs and base models in {flow.paths.results}/cached/ (the first: "
            f"{min(flow.outdated)}) have scores of an older scorer, and `reuse: only` forbids scoring. Score their "
            "responses again by the workflow with `reuse: matching`."
        )
    named = (flow.root / "config" / "presets" / f"{preset}.yaml").is_file()
    with_that = f"`make reproduce PRESET={preset}`" if named else "the workflow with `reuse: matching`"
    raise ConfigurationError(
        f"{len(missing)} of {len(flow.plan.runs)} runs of preset {preset} are not in {flow.paths.results}/cached/ "
        f"(the first: {missing[0]}), and `reuse: only` forbids training. Train them with {with_that}."
    )


def python_of(environment: Path) -> Path:
    """The Python of a virtual environment."""
    return environment / "bin" / "python"


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turn a mistake in the configuration, or a file that cannot be used, into its sentence and exit code 1."""
    try:
        yield
    except (ConfigurationError, OSError) as error:
        sys.stderr.write(f"{sentence(error) if isinstance(error, OSError) else error}\n")
        raise SystemExit(1) from None
