"""Checks before a job runs: profiles, GPUs, environments, fetched inputs, cached runs, the lock of the clone.

`check_settings` runs while Snakemake reads the rules, so a dry run reports its mistakes too; `start_jobs` runs in
`onstart`, which Snakemake calls only where jobs will run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.loading import ConfigurationError, check_known, errors_at, read_yaml
from dara.places import make_writable
from dara.profiles import Asked, check_profile_files, check_resources, check_rule_names, gpus_asked, setting_of
from dara.registries import definition, names_of
from dara.runs import evaluation_id
from dara.specs import HubData, HubModel
from dara.store import LockedError, directory_lock
from dara.system import sentence

if TYPE_CHECKING:
    from dara.config import Configuration
    from dara.plan import WorkflowPlan

WORKFLOW_LOCK = Path(".snakemake/workflow/lock")
SLURM_SECONDS = 60

_held = ExitStack()  # closed by the end of the process, as a workflow's lock should be


def check_settings(plan: WorkflowPlan, workflow: Any) -> None:
    """Raise ConfigurationError for the first mistake in methods, profiles or numbers of GPUs.

    workflow: Snakemake's workflow object, which knows the resources of all profiles and of the command line.
    """
    check_profile_files(plan.root)
    settings = workflow.resource_settings
    check_rule_names(plan.root, settings)
    check_gpus(plan, settings.overwrite_resources)
    check_method_parameters(plan.configuration)  # takes seconds, so it is the last


def start_jobs(plan: WorkflowPlan, workflow: Any) -> None:
    """Lock the clone until this process ends, and check what jobs will need.

    The kernel releases the lock when its process ends, so there is nothing to unlock after a crash. The profiles turn
    off Snakemake's own lock, whose files remain after a crash.

    Raises:
        ConfigurationError: another workflow runs here, or something is missing without which a job would fail, be
            lost, or wait in vain.
    """
    try:
        _held.enter_context(directory_lock(WORKFLOW_LOCK.parent, seconds=0))
    except LockedError as error:
        raise ConfigurationError(
            f"Another workflow runs in this clone: {error}. `snakemake -n` works beside it, and so does a second clone."
        ) from None
    if workflow.touch:
        return
    executor = workflow.executor_plugin.name
    check_resources(executor, workflow.resource_settings)
    if executor == "slurm":
        check_slurm(workflow.executor_settings.status_command)
    for directory in (plan.paths.root, *([plan.paths.scratch] if plan.reuse != "only" else [])):
        make_writable(directory)
    check_hardware(plan)
    check_trackers(plan)
    check_environments(plan)
    check_available(plan)


def check_method_parameters(configuration: Configuration, *, unused: bool = False) -> None:
    """Load each method of the preset with its parameters, and run it on a batch of each of its experiments.

    unused: load the other methods of config/methods.yaml too.

    Raises ConfigurationError for the first that does not work.
    """
    import torch  # takes seconds, so only the start of a workflow imports it

    from dara.methods import load_method
    from dara.methods.contract import FAILURES
    from dara.rewards import check_params, load_rewards, reward_ranges

    preset, directory = configuration.preset, configuration.directory
    for name, experiment in configuration.experiments.items():
        with errors_at(f"config/experiments/{name}.yaml: reward_functions"):
            load_rewards(experiment.task, experiment.reward_functions, directory)
            params = preset.tasks[experiment.task].reward_params
            check_params(experiment.task, {key: params[key] for key in experiment.reward_functions if key in params})
    for name, entry in configuration.methods.items():
        asking = [
            experiment
            for experiment in configuration.experiments.values()
            if name in configuration.methods_of(experiment, preset.experiments[experiment.experiment])
        ]
        if not (asking or unused):
            continue
        try:
            method = load_method(name, function=entry.function, base_dir=directory, **entry.params)
            for experiment in asking:
                ranges = reward_ranges(experiment.task, experiment.rewards)
                lengths = torch.ones(2, 2, dtype=torch.int64)
                method(torch.tensor(ranges).T.expand(2, 2, len(ranges)), lengths=lengths, ranges=ranges)
        except FAILURES as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ConfigurationError(f"{directory / 'methods.yaml'}: {name}: {kind}{error}") from None


def check_slurm(status_command: str | None) -> None:
    """Raise ConfigurationError if Slurm does not answer from this machine.

    status_command: the command by which the executor queries jobs.
    """
    absent = [program for program in ("sbatch", "squeue", "scancel") if shutil.which(program) is None]
    if absent:
        raise ConfigurationError(
            f"executor slurm: {', '.join(absent)} not found on this machine; start the workflow on a login node of the "
            "cluster (where a module loads Slurm, after `module load`), or run it here: --profile profiles/local"
        )
    sacct = status_command == "sacct" and shutil.which("sacct")
    question = ["sacct" if sacct else "squeue", "--noheader", "--name", "none"]  # the executor's repeated query
    try:
        said = subprocess.run(question, capture_output=True, text=True, timeout=SLURM_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"executor slurm: `{question[0]}` gave no answer within {SLURM_SECONDS} s; try later"
        ) from None
    if said.returncode:
        reason = " ".join(said.stderr.split()) or f"exit code {said.returncode}"
        raise ConfigurationError(f"executor slurm: Slurm does not answer `{question[0]}` on this machine: {reason}")


def refuse_other_preset(plan: WorkflowPlan, preset: str, file: str) -> None:
    """Raise ConfigurationError for a file of another preset, which no rule of this workflow makes."""
    target = plan.paths.results / preset / file
    raise ConfigurationError(
        f"{target} belongs to preset {preset}, and this workflow is of preset {plan.name}; "
        f"choose the other one: --configfile config/presets/{preset}.yaml -- {target}"
    )


def refuse_unknown_output(plan: WorkflowPlan, file: str) -> None:
    """Raise ConfigurationError, with the nearest name, for a table or figure that the preset does not have."""
    check_known(str(plan.paths.root), file, plan.outputs.names, f"a table or figure of preset {plan.name}")


def check_available(plan: WorkflowPlan) -> None:
    """Raise ConfigurationError that lists public data and models which are neither here nor reachable."""
    models = [spec for spec in plan.matrix.models.values() if isinstance(spec, HubModel)]
    data = [spec for spec in plan.matrix.data.values() if isinstance(spec, HubData)]
    if plan.reuse == "only" or not (models or data):
        return
    from dara.data import hub
    from dara.data.prepare import files_of

    benchmarks = {item.name for run in plan.matrix.runs for item in plan.benchmarks_of(run)} & {*names_of("published")}
    sources = [name for spec in data for name in files_of(spec)]
    sources += [name for benchmark in benchmarks for name in definition(benchmark).data_files]
    fetch = hub.fetch_as_configured(plan.root, json.loads(plan.fetching))
    with errors_at(f"preset {plan.name}"):
        hub.check_available(sources, [(spec.hub, spec.revision) for spec in models], fetch)


def check_environments(plan: WorkflowPlan) -> None:
    """Raise ConfigurationError if an environment for training or generation does not exist."""
    preset = plan.configuration.preset
    needed = {"training": preset.training_environment} if any(plan.engine(run).program for run in plan.left) else {}
    needed |= {"evaluation": preset.evaluation_environment} if plan.reuse != "only" else {}
    for stage, environment in needed.items():
        if environment and not python_of(plan.root / environment).is_file():
            raise ConfigurationError(
                f"{stage}_environment of preset {preset.preset}: {environment} is not there; "
                "make it with `make openrlhf-cpu` (no GPU) or `make openrlhf-cuda`"
            )


def check_hardware(plan: WorkflowPlan) -> None:
    """Raise ConfigurationError for hardware on which a run that is not cached cannot be trained or evaluated."""
    for run in plan.left:
        spec, resources = plan.matrix.runs[run], plan.resources(run)
        with errors_at(f"preset {plan.name}"):
            plan.engine(run).check_resources(spec, resources)
        for benchmark in plan.benchmarks_of(run):
            if benchmark.tensor_parallel > max(resources.evaluation_gpus, 1):
                raise ConfigurationError(
                    f"preset {plan.name}: benchmark {benchmark.name} has tensor_parallel "
                    f"{benchmark.tensor_parallel}, and an evaluation of {spec.model.name} {resources.evaluation_gpus} "
                    "GPUs; raise evaluation_gpus in its resources, or lower tensor_parallel"
                )


def check_gpus(plan: WorkflowPlan, asked: Asked) -> None:
    """Raise ConfigurationError if `set-resources` sets a number of GPUs that differs from what the jobs use."""
    for run in sorted(plan.left):
        model, used = plan.matrix.runs[run].model.name, plan.hardware("train", run).gpus
        given = gpus_asked(asked, "train", used)
        if plan.engine(run).program and given != used:
            raise ConfigurationError(
                f"{setting_of(plan.root, 'train')} asks for {given} GPUs, and a training of {model} uses "
                f"{used}: `gpus` of its resources in config/models.yaml, where the number is changed"
            )
        own = plan.resources(run).evaluation_gpus
        for benchmark in plan.benchmarks_of(run) if own else ():
            rule = "evaluate_part" if plan.parts(run, evaluation_id(benchmark)) else "evaluate"
            given = gpus_asked(asked, rule, own)
            if given < benchmark.tensor_parallel:
                raise ConfigurationError(
                    f"{setting_of(plan.root, rule)} asks for {given} GPUs, and benchmark {benchmark.name} needs "
                    f"{benchmark.tensor_parallel} (its tensor_parallel) for {model}"
                )


def check_trackers(plan: WorkflowPlan) -> None:
    """Raise ConfigurationError if a tracker's package is missing here and runs of the small engine are made.

    Runs of OpenRLHF are made in another environment, whose file has both packages.
    """
    from dara.training import run_files

    if any(not plan.engine(run).program for run in plan.left):
        with errors_at(f"trackers of preset {plan.name}"):
            run_files.check_trackers(plan.configuration.preset.trackers)


def check_preset_of_files(values: Mapping[str, Any], files: Sequence[Path]) -> None:
    """Raise ConfigurationError if `--config preset=NAME` would write a preset's runs into another's results."""
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


def check_cached_only(plan: WorkflowPlan) -> None:
    """Raise ConfigurationError that names a run which is not cached, if the preset has `reuse: only`."""
    preset, missing = plan.name, plan.left
    if plan.reuse != "only" or not (missing or plan.outdated):
        return
    if not missing:
        raise ConfigurationError(
            f"{len(plan.outdated)} runs and base models in {plan.paths.results}/cached/ (the first: "
            f"{min(plan.outdated)}) have scores of an older scorer, and `reuse: only` forbids scoring. Score their "
            "responses again by the workflow with `reuse: matching`."
        )
    named = (plan.root / "config" / "presets" / f"{preset}.yaml").is_file()
    with_that = f"`make reproduce PRESET={preset}`" if named else "the workflow with `reuse: matching`"
    raise ConfigurationError(
        f"{len(missing)} of {len(plan.matrix.runs)} runs of preset {preset} are not in {plan.paths.results}/cached/ "
        f"(the first: {missing[0]}), and `reuse: only` forbids training. Train them with {with_that}."
    )


def python_of(environment: Path) -> Path:
    """Return the Python of a virtual environment."""
    return environment / "bin" / "python"


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turn a mistake in the configuration, or a file that cannot be used, into its sentence and exit code 1."""
    try:
        yield
    except (ConfigurationError, OSError) as error:
        sys.stderr.write(f"{sentence(error) if isinstance(error, OSError) else error}\n")
        raise SystemExit(1) from None
