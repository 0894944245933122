"""What the Snakemake rules ask: which files belong to which run, and the specifications that are written for them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dara import cache
from dara.config import Benchmark, Configuration, Experiment, HubData, HubModel, ModelSpec, Resources, RunSpec
from dara.loading import ConfigurationError, load_all_presets, load_configuration, load_published
from dara.runs import Paths, Plan, base_id, canonical_json, data_id, model_id, plan_runs

RUN_FILES = ("metrics.jsonl", "rewards.npz", "samples.jsonl.gz", "timings.json", "manifest.json")
FORMS = {"tables": ("md", "tex", "csv"), "side_by_side": ("md", "tex", "csv"), "figures": ("png", "svg")}
PUBLISHED_BENCHMARKS = ("bfcl_v4", "math_five")
FRAMES = ("runs", "training_curves", "checkpoint_scores", "score_intervals", "crossings", "energies")


@dataclass(frozen=True)
class Workflow:
    """The plan of one preset as files. Every method gives a path as a string, or JSON that a rule writes."""

    configuration: Configuration
    root: Path

    run_files = RUN_FILES
    frames = FRAMES

    @classmethod
    def load(cls, root: Path, values: dict[str, Any], overlays: list[Path]) -> Workflow:
        """Check every preset and experiment file, then the merged configuration of this workflow.

        Args:
            root: the repository.
            values: the configuration as Snakemake merged it.
            overlays: configuration files from the command line or the profile, on top of config/config.yaml.
        """
        presets = load_all_presets(root)
        default = root / "config" / "presets" / "laptop.yaml"
        files = [root / "config" / "config.yaml", *([Path(path) for path in overlays] or [default])]
        flow = cls(load_configuration(root, values, files), root)
        flow._check_cached_only(presets)
        return flow

    @cached_property
    def plan(self) -> Plan:
        """The runs of the preset. ConfigurationError for a combination of settings that makes no run."""
        try:
            return plan_runs(self.configuration)
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigurationError(f"preset {self.configuration.preset.preset}: {problem}") from None

    @cached_property
    def paths(self) -> Paths:
        """Where files are."""
        return Paths.of(self.configuration)

    @property
    def reuse(self) -> str:
        """Whether cached runs are taken: matching, only or none."""
        return self.configuration.preset.reuse

    @cached_property
    def cached(self) -> set[str]:
        """Ids of the runs that are taken from results/cached/."""
        if self.reuse == "none":
            return set()
        return {
            run
            for run, spec in self.plan.runs.items()
            if cache.holds_run(self.paths.cached_run(run), spec, self.benchmarks_of(run))
        }

    @cached_property
    def cached_bases(self) -> set[str]:
        """Ids of the base models whose scores are taken from there: all runs that start from them are."""
        children = {base: set() for base in self.bases}
        for run, spec in self.plan.runs.items():
            children[base_id(spec.model)].add(run)
        return {
            base
            for base, runs in children.items()
            if runs <= self.cached and cache.holds_scores(self.paths.cached_run(base), self.benchmarks_of(base))
        }

    @cached_property
    def bases(self) -> dict[str, str]:
        """Base id -> model id of every base model."""
        return {base_id(spec): name for name, spec in self.plan.models.items()}

    @property
    def evaluated(self) -> list[str]:
        """Everything that is evaluated: the base models and the runs."""
        return [*self.bases, *self.plan.runs]

    def run_directory(self, run: str) -> Path:
        """Where the published files of a run are: in the cache, or in the results of this preset."""
        return self.paths.cached_run(run) if run in self.cached else self.paths.run(run)

    def run_file(self, run: str, name: str) -> str:
        """A published file of a run."""
        return str(self.run_directory(run) / name)

    @property
    def run_directories(self) -> dict[str, Path]:
        """The same for all runs."""
        return {run: self.run_directory(run) for run in self.plan.runs}

    def score_directory(self, run: str) -> Path:
        """Where the scores of a run or a base model are."""
        in_cache = run in self.cached or run in self.cached_bases
        return self.paths.cached_run(run) / "scores" if in_cache else self.paths.scores(run)

    def score_files(self, run: str) -> list[str]:
        """The files that say that a run (or a base model) has been scored on its benchmarks."""
        names = [benchmark.name for benchmark in self.benchmarks_of(run)]
        return [str(self.score_directory(run) / f"{name}.scored.json") for name in names]

    @property
    def scored(self) -> list[str]:
        """The same of every run and base model."""
        return [file for run in self.evaluated for file in self.score_files(run)]

    def benchmarks_of(self, run: str) -> tuple[Benchmark, ...]:
        """The benchmarks of a run's task."""
        return self.configuration.preset.tasks[self._spec(run).task].benchmarks

    def benchmark_json(self, name: str) -> str:
        """Settings of a benchmark, for the command line."""
        tasks = self.configuration.preset.tasks.values()
        settings = {benchmark.name: benchmark for task in tasks for benchmark in task.benchmarks}
        return canonical_json(settings[name])

    def data_json(self, data: str) -> str:
        """Specification of a data set."""
        return canonical_json(self.plan.data[data])

    def evaluation_parts(self, run: str, benchmark: str) -> list[str]:
        """What the jobs that share the checkpoints of a run leave behind; none where one job makes all."""
        if benchmark != self.benchmarks_of(run)[0].name:  # validation rewards take minutes
            return []
        checkpoints = 1 if run in self.bases else len(self.plan.runs[run].checkpoint_steps)
        jobs = min(self.configuration.preset.evaluation_jobs, checkpoints)
        parts = [f"{benchmark}.part{number}of{jobs}.done" for number in range(1, jobs + 1)] if jobs > 1 else []
        return [str(self.paths.scores(run) / part) for part in parts]

    def evaluation_job(self, run: str, benchmark: str) -> Resources:
        """The hardware of the job that evaluates a run, as those of a training: little where it only gathers parts."""
        if self.evaluation_parts(run, benchmark):
            return Resources(cpus=1, memory_gb=8, hours=1)
        own = self.resources(run)
        gpus, cpus, hours = own.evaluation_gpus, own.evaluation_cpus, own.evaluation_hours
        return Resources(gpus=gpus, cpus=cpus, memory_gb=own.evaluation_memory_mb / 1000, hours=hours)

    def scoring_cores(self, name: str) -> int:
        """Cores that score the responses to a benchmark: one for those of the laptop, which are few."""
        return 16 if name in PUBLISHED_BENCHMARKS else 1

    def model_json(self, model: str) -> str:
        """Specification of a base model."""
        return canonical_json(self.plan.models[model])

    def run_json(self, run: str) -> str:
        """Specification of a run."""
        return canonical_json(self.plan.runs[run])

    def configuration_json(self) -> str:
        """The merged configuration, so that later steps read what this workflow was told.

        Without what changes no result: where checkpoints are, and how runs are chosen when none comes from the cache.
        """
        preset = self.configuration.preset.model_dump(mode="json", exclude={"scratch"})
        return json.dumps(preset | {"reuse": "matching" if self.cached else "none"}, sort_keys=True)

    def model_data(self, model: str) -> list[str]:
        """Manifest of the data that a base model starts from; none for a published model."""
        spec = self.plan.models[model]
        return [str(self.paths.inputs(data_id(spec.data)) / "manifest.json")] if isinstance(spec, ModelSpec) else []

    def run_data(self, run: str) -> str:
        """Manifest of the data that a run trains on."""
        return str(self.paths.inputs(data_id(self.plan.runs[run].data)) / "manifest.json")

    def run_model(self, run: str) -> str:
        """Manifest of the base model that a run starts from."""
        return str(self.paths.model(model_id(self.plan.runs[run].model)) / "manifest.json")

    def evaluated_manifest(self, run: str) -> str:
        """Manifest that names the checkpoints to evaluate: of a run, or of a base model."""
        if run in self.bases:
            return str(self.paths.model(self.bases[run]) / "manifest.json")
        return self.run_file(run, "manifest.json")

    def evaluated_data(self, run: str, benchmark: str) -> str:
        """Manifest of the data whose cases are used: the run's own held-out ones, or a published benchmark."""
        owner = benchmark if benchmark in PUBLISHED_BENCHMARKS else data_id(self._spec(run).data)
        return str(self.paths.inputs(owner) / "manifest.json")

    def resources(self, run: str) -> Resources:
        """The hardware of the jobs of a run or a base model: the preset's, or that of its model."""
        own = self.configuration.models[self._spec(run).model.name].resources
        return self.configuration.preset.resources or own

    @property
    def fetching(self) -> str:
        """How published data and models are fetched, for the command line."""
        preset = self.configuration.preset
        keys = ("hub_mirror", "data_local", "models_local", "scratch")
        return json.dumps({key: getattr(preset, key) for key in keys}, sort_keys=True)

    @property
    def training_options(self) -> str:
        """What else a training is told, for the command line: nothing of it changes the run's results."""
        preset = self.configuration.preset
        hardware = canonical_json(preset.resources) if preset.resources else None
        options = {
            "--trackers": ",".join(preset.trackers),
            "--ray-address": preset.ray_address,
            "--environment": preset.training_environment,
            "--resources": hardware,
        }
        return " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items() if value)

    @property
    def evaluation_python(self) -> str:
        """The Python of the environment that generates."""
        environment = self.configuration.preset.evaluation_environment
        return str(python_of(self.root / environment)) if environment else "python"

    def check_available(self) -> None:
        """ConfigurationError that lists published data and models which are neither here nor within reach."""
        models = [spec for spec in self.plan.models.values() if isinstance(spec, HubModel)]
        data = [spec for spec in self.plan.data.values() if isinstance(spec, HubData)]
        if self.reuse == "only" or not (models or data):
            return
        from dara.data.hub import check_available, fetch_as_configured
        from dara.data.published import sources_of, sources_of_benchmark

        benchmarks = {item.name for run in self.plan.runs for item in self.benchmarks_of(run)} & {*PUBLISHED_BENCHMARKS}
        sources = [name for spec in data for name in sources_of(spec)]
        sources += [name for benchmark in benchmarks for name in sources_of_benchmark(benchmark)]
        fetch = fetch_as_configured(self.root, json.loads(self.fetching))
        try:
            check_available(sources, [(spec.hub, spec.revision) for spec in models], fetch)
        except ValueError as error:
            raise ConfigurationError(f"preset {self.configuration.preset.preset}: {error}") from None

    def check_environments(self) -> None:
        """ConfigurationError if an environment that trains or generates is not there."""
        preset = self.configuration.preset
        engines = {spec.engine for run, spec in self.plan.runs.items() if run not in self.cached}
        needed = {"training": preset.training_environment} if "openrlhf" in engines else {}
        needed["evaluation"] = preset.evaluation_environment
        for stage, environment in needed.items():
            if self.reuse != "only" and environment and not python_of(self.root / environment).is_file():
                raise ConfigurationError(
                    f"{stage}_environment of preset {preset.preset}: {environment} is not there; "
                    "make it with `make openrlhf-cpu` (no GPU) or `make openrlhf-cuda`"
                )

    def outputs(self, kind: str) -> list[str]:
        """Ids (file names) of all tables or figures of the preset's experiments."""
        experiments = [self.configuration.experiments[name] for name in self.configuration.preset.experiments]
        return [output for experiment in experiments for output in getattr(experiment, kind)]

    def owner_of(self, kind: str, output: str) -> tuple[Experiment, str]:
        """The experiment that has this table or figure, with this preset's methods, and the module that makes it."""
        for name, matrix in self.configuration.preset.experiments.items():
            experiment = self.configuration.experiments[name]
            if output in getattr(experiment, kind):
                methods = self.configuration.methods_of(experiment, matrix)
                return experiment.model_copy(update={"methods": methods}), getattr(experiment, kind)[output]
        known = ", ".join(self.outputs(kind))
        raise ConfigurationError(
            f"no experiment of preset {self.configuration.preset.preset} has {kind}.{output}; it has {known}"
        )

    def code_of(self, kind: str, output: str) -> str:
        """The module that draws a table or figure, so that an edit redraws it."""
        return self._module(kind, self.owner_of(kind, output)[1])

    def files_of(self, kind: str) -> list[str]:
        """Every file of the preset's tables, figures, or side-by-side tables."""
        suffix = "_side_by_side" if kind == "side_by_side" else ""
        return _files(self.paths.root, kind, [output + suffix for output in self.outputs(kind)])

    @property
    def drawn(self) -> list[str]:
        """Every file of every table and figure of the preset."""
        return [file for kind in FORMS for file in self.files_of(kind)]

    @property
    def published_drawn(self) -> list[str]:
        """Every file of every published table and figure."""
        kinds = ("tables", "figures")
        return [file for kind in kinds for file in _files(self.paths.published, kind, self.published_outputs(kind))]

    @cached_property
    def published(self) -> dict[str, Experiment]:
        """The published experiments."""
        return load_published(self.root)

    @property
    def published_data(self) -> list[str]:
        """The files of published numbers."""
        return sorted(str(path) for path in (self.paths.published / "data").glob("*.csv"))

    @property
    def published_settings(self) -> list[str]:
        """The configuration files that published tables and figures are made from."""
        return [os.path.relpath(self.root / "config" / name) for name in ("published.yaml", "methods.yaml")]

    def published_outputs(self, kind: str) -> list[str]:
        """Ids of all published tables or figures."""
        return [output for experiment in self.published.values() for output in getattr(experiment, kind)]

    def published_code(self, kind: str, output: str) -> str:
        """The module that draws a published table or figure."""
        return self._module(kind, published_owner(self.published, kind, output)[1])

    def settings_of(self, kind: str, output: str) -> list[str]:
        """The configuration files that a table or figure is made from, so that an edit (a label) makes it again."""
        experiment, _ = self.owner_of(kind, output)
        return [*self._experiment_files(experiment.experiment), os.path.relpath(self.root / "config/methods.yaml")]

    @property
    def thresholds(self) -> list[str]:
        """The files that name the thresholds, so that another one is analysed."""
        return self._experiment_files(*self.configuration.preset.experiments)

    def summary(self) -> str:
        """Where the results are, for the end of a workflow."""
        preset, runs = self.configuration.preset.preset, len(self.plan.runs)
        return f"Results of preset {preset} ({runs} runs): {self.paths.root}/tables/, figures/ and data/"

    def _spec(self, run: str) -> RunSpec:
        if run in self.bases:
            return next(spec for spec in self.plan.runs.values() if base_id(spec.model) == run)
        return self.plan.runs[run]

    def _module(self, kind: str, module: str) -> str:
        folder = "figures" if kind == "figures" else "tables"
        return os.path.relpath(self.root / "workflow/dara/analysis" / folder / f"{module}.py")

    def _experiment_files(self, *names: str) -> list[str]:
        return [os.path.relpath(self.root / f"config/experiments/{name}.yaml") for name in names]

    def _check_cached_only(self, presets: dict[str, Configuration]) -> None:
        """With `reuse: only` a run that is not cached is an error that names it."""
        missing = [run for run in self.plan.runs if run not in self.cached]
        if self.reuse != "only" or not missing:
            return
        preset = self.configuration.preset.preset
        with_that = f"`make reproduce PRESET={preset}`" if preset in presets else "the workflow with `reuse: matching`"
        raise ConfigurationError(
            f"{len(missing)} of {len(self.plan.runs)} runs of preset {preset} are not in {self.paths.results}/cached/ "
            f"(the first: {missing[0]}), and `reuse: only` forbids training. Train them with {with_that}."
        )


def _files(directory: Path, kind: str, outputs: list[str]) -> list[str]:
    folder = directory / ("figures" if kind == "figures" else "tables")
    return [str(folder / f"{output}.{form}") for output in outputs for form in FORMS[kind]]


def published_owner(experiments: dict[str, Experiment], kind: str, output: str) -> tuple[Experiment, str]:
    """The published experiment that has this table or figure, and the module that makes it."""
    for experiment in experiments.values():
        if output in getattr(experiment, kind):
            return experiment, getattr(experiment, kind)[output]
    known = ", ".join(output for experiment in experiments.values() for output in getattr(experiment, kind))
    raise ConfigurationError(f"config/published.yaml has no {kind}.{output}; it has {known}")


def python_of(environment: Path) -> Path:
    """The Python of a virtual environment."""
    return environment / "bin" / "python"


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turn a mistake in the configuration into its sentence alone, without a traceback, and end with exit code 1."""
    try:
        yield
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None
