"""What the Snakemake rules ask: which files belong to which run, and the specifications that are written for them."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dara import cache
from dara.benchmarks import definition
from dara.config import Benchmark, Configuration, ModelSpec, Resources, RunSpec
from dara.evaluation.records import RESPONSES, SCORES, covers, scored_by, steps_made
from dara.loading import ConfigurationError, check_directories, check_known, check_preset_name, load_configuration
from dara.manifests import saved_steps
from dara.outputs import Outputs
from dara.places import make_writable
from dara.preflight import check_cached_only, check_preset_of_files, python_of
from dara.runs import Paths, Plan, base_id, data_id, evaluation_id, model_id, plan_runs
from dara.store import canonical_json

RUN_FILES = ("metrics.jsonl", "rewards.npz", "samples.jsonl.gz", "timings.json", "manifest.json")
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
        """Check the merged configuration of this workflow, and the files that it uses.

        Args:
            root: the repository.
            values: the configuration as Snakemake merged it.
            overlays: configuration files from the command line or the profile, on top of config/config.yaml.
        """
        default = root / "config" / "presets" / "laptop.yaml"
        files = [root / "config" / "config.yaml", *([Path(path) for path in overlays] or [default])]
        check_preset_of_files(values, files)
        flow = cls(load_configuration(root, values, files), root)
        for path in files:
            check_preset_name(root, path)
        check_directories(flow.configuration.preset, values, files)
        check_cached_only(flow)
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

    def make_directories(self) -> None:
        """Make the directories of results and scratch. OSError, with the name, for one that cannot be written."""
        for directory in (self.paths.root, *([self.paths.scratch] if self.reuse != "only" else [])):
            make_writable(directory)

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
            if cache.holds_run(self.paths.cached_run(run), spec, self.plan.evaluations[run])
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
            if runs <= self.cached and cache.holds_scores(self.paths.cached_run(base), self.plan.evaluations[base])
        }

    @cached_property
    def outdated(self) -> set[str]:
        """Ids of those whose scores there are of an older scorer: their responses there are scored again."""
        return {
            name
            for name in self.cached | self.cached_bases
            for benchmark in self.benchmarks_of(name)
            if scored_by(self.paths.cached_evaluation(name, benchmark)) != definition(benchmark.name).scorer_version
        }

    @cached_property
    def bases(self) -> dict[str, str]:
        """Base id -> model id of every base model."""
        return {base_id(spec): name for name, spec in self.plan.models.items()}

    @property
    def evaluated(self) -> list[str]:
        """Everything that is evaluated: of the base models and the runs, those for which an experiment asks for it."""
        return [name for name in (*self.bases, *self.plan.runs) if self.plan.evaluations[name]]

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

    def score_directory(self, run: str, benchmark: Benchmark) -> Path:
        """Where the scores of a run or a base model on a benchmark are."""
        in_cache = run in (self.cached | self.cached_bases) - self.outdated
        return (self.paths.cached_evaluation if in_cache else self.paths.evaluation)(run, benchmark)

    @property
    def score_directories(self) -> dict[str, dict[str, Path]]:
        """The same of every run and base model, by the name of the benchmark."""
        return {
            run: {one.name: self.score_directory(run, one) for one in self.benchmarks_of(run)} for run in self.evaluated
        }

    def responses(self, run: str, evaluation: str) -> str:
        """The file that says that all responses of a run or a base model are there, beside which they are."""
        settings = self.settings(run, evaluation)
        if run in self.outdated:
            return str(self.paths.cached_evaluation(run, settings) / SCORES)
        return str(self.paths.evaluation(run, settings) / RESPONSES)

    def score_files(self, run: str) -> list[str]:
        """The files that say that a run (or a base model) has been scored on its benchmarks."""
        return [str(self.score_directory(run, benchmark) / SCORES) for benchmark in self.benchmarks_of(run)]

    @property
    def scored(self) -> list[str]:
        """The same of every run and base model."""
        return [file for run in self.evaluated for file in self.score_files(run)]

    def due_steps(self, run: str, benchmark: Benchmark) -> set[int]:
        """The steps at which scores are due: those that are asked for, as far as a diverged run has checkpoints."""
        manifest, steps = Path(self.evaluated_manifest(run)), {*self.plan.evaluations[run][benchmark]}
        return steps & {*saved_steps(manifest)} if manifest.is_file() else steps

    def is_scored(self, run: str, benchmark: Benchmark) -> bool:
        """Whether a run or a base model has the scores of a benchmark that are due."""
        return covers(self.score_directory(run, benchmark), self.due_steps(run, benchmark))

    def benchmarks_of(self, run: str) -> tuple[Benchmark, ...]:
        """What a run or a base model is evaluated on."""
        return tuple(self.plan.evaluations[run])

    def settings(self, run: str, evaluation: str) -> Benchmark:
        """The settings of an evaluation of a run or a base model, by its id."""
        settings = {evaluation_id(one): one for one in self.benchmarks_of(run)}
        check_known("scores", evaluation, settings, f"a benchmark on which this preset evaluates {run}")
        return settings[evaluation]

    def evaluated_steps(self, run: str, evaluation: str) -> list[int]:
        """The steps that jobs evaluate: those that are asked for, and those whose responses are there already.

        So an experiment that asks for less loses nothing, and parts add to what is there where one asks for more.
        """
        settings = self.settings(run, evaluation)
        return sorted({*self.plan.evaluations[run][settings], *steps_made(self.paths.evaluation(run, settings))})

    def steps_option(self, run: str, evaluation: str) -> str:
        """The same for the command line."""
        return ",".join(map(str, self.evaluated_steps(run, evaluation)))

    def benchmark_json(self, run: str, evaluation: str) -> str:
        """Settings of an evaluation, for the command line."""
        return canonical_json(self.settings(run, evaluation))

    def data_json(self, data: str) -> str:
        """Specification of a data set."""
        return canonical_json(self.plan.data[data])

    def evaluation_parts(self, run: str, evaluation: str) -> list[str]:
        """What the jobs that share the checkpoints of a run leave behind; none where one job makes all."""
        settings = self.settings(run, evaluation)
        if definition(settings.name).kind == "validation":  # takes minutes
            return []
        jobs = min(self.configuration.preset.evaluation_jobs, len(self.evaluated_steps(run, evaluation)))
        parts = [f"part{number}of{jobs}.done" for number in range(1, jobs + 1)] if jobs > 1 else []
        return [str(self.paths.evaluation(run, settings) / part) for part in parts]

    def evaluation_job(self, run: str, evaluation: str) -> Resources:
        """The hardware of the job that evaluates a run, as those of a training: little where it only gathers parts."""
        if self.evaluation_parts(run, evaluation):
            return Resources(cpus=1, memory_gb=8, hours=1)
        own = self.resources(run)
        gpus, cpus, hours = own.evaluation_gpus, own.evaluation_cpus, own.evaluation_hours
        return Resources(gpus=gpus, cpus=cpus, memory_gb=own.evaluation_memory_mb / 1000, hours=hours)

    def scorer_version(self, run: str, evaluation: str) -> int:
        """The version of the scorer of a benchmark."""
        return definition(self.settings(run, evaluation).name).scorer_version

    def scoring_cores(self, run: str, evaluation: str) -> int:
        """Cores that score the responses to a benchmark: one for those of the laptop, which are few."""
        return 16 if definition(self.settings(run, evaluation).name).kind == "published" else 1

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

    def evaluated_data(self, run: str, evaluation: str) -> str:
        """Manifest of the data whose cases are used: the run's own held-out ones, or a published benchmark."""
        name = self.settings(run, evaluation).name
        owner = name if definition(name).kind == "published" else data_id(self._spec(run).data)
        return str(self.paths.inputs(owner) / "manifest.json")

    def resources(self, run: str) -> Resources:
        """The hardware of the jobs of a run or a base model: the preset's, or that of its model."""
        own = self.configuration.models[self._spec(run).model.name].resources
        return self.configuration.preset.resources or own

    def training_gpus(self, run: str) -> int:
        """GPUs that the job of a training asks for: none where they are those of a Ray cluster that runs already."""
        return 0 if self.configuration.preset.ray_address else self.resources(run).gpus

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

    @cached_property
    def outputs(self) -> Outputs:
        """The tables and figures of the preset."""
        return Outputs.of_preset(self.configuration, self.root, self.paths.root)

    @cached_property
    def published(self) -> Outputs:
        """Those of the authors' numbers."""
        return Outputs.of_published(self.root, self.paths.published)

    @property
    def published_data(self) -> list[str]:
        """The files of published numbers."""
        return sorted(str(path) for path in (self.paths.published / "data").glob("*.csv"))

    def summary(self) -> str:
        """Where the results are, for the end of a workflow."""
        preset, runs = self.configuration.preset.preset, len(self.plan.runs)
        return f"Results of preset {preset} ({runs} runs): {self.paths.root}/tables/, figures/ and data/"

    def _spec(self, run: str) -> RunSpec:
        if run in self.bases:
            return next(spec for spec in self.plan.runs.values() if base_id(spec.model) == run)
        return self.plan.runs[run]
