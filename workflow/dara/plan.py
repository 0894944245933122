"""The plan of one preset as files: its runs, the paths of their files, and the functions that Snakemake rules call.

Methods with an argument `wildcards` are functions of rules: Snakemake calls them with the wildcards of a job.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dara import cache
from dara.config import Benchmark, Configuration, Resources
from dara.evaluation.records import RESPONSES, SCORES, covers, scored_by, steps_made
from dara.loading import ConfigurationError, check_directories, check_known, check_preset_name, load_configuration
from dara.manifests import saved_steps
from dara.outputs import Outputs
from dara.preflight import check_cached_only, check_preset_of_files, python_of
from dara.registries import ENGINES, BenchmarkDefinition, Engine, definition
from dara.runs import Paths, RunMatrix, base_id, data_id, evaluation_id, model_id, plan_runs
from dara.specs import ModelSpec, RunSpec
from dara.store import canonical_json

RUN_FILES = ("metrics.jsonl", "rewards.npz", "samples.jsonl.gz", "timings.json", "manifest.json")
FRAMES = ("runs", "training_curves", "checkpoint_scores", "score_intervals", "crossings", "energies")
GATHERING = Resources(cpus=1, memory_gb=8, hours=1)
"""Resources of a job that only checks that all parts of an evaluation are complete."""


@dataclass(frozen=True)
class WorkflowPlan:
    """The runs of one preset with their files and jobs."""

    configuration: Configuration
    root: Path
    """The repository."""

    @classmethod
    def load(cls, root: Path, values: dict[str, Any], overlays: list[Path]) -> WorkflowPlan:
        """Check the merged configuration of this workflow, and the files that it uses.

        Args:
            root: the repository.
            values: the configuration as Snakemake merged it.
            overlays: configuration files from the command line or the profile, on top of config/config.yaml.
        """
        default = root / "config" / "presets" / "laptop.yaml"
        files = [root / "config" / "config.yaml", *([Path(path) for path in overlays] or [default])]
        check_preset_of_files(values, files)
        plan = cls(load_configuration(root, values, files), root)
        for path in files:
            check_preset_name(root, path)
        check_directories(plan.configuration.preset, values, files)
        check_cached_only(plan)
        return plan

    @cached_property
    def matrix(self) -> RunMatrix:
        """Return the runs of the preset. ConfigurationError for a combination of settings that makes no run."""
        try:
            return plan_runs(self.configuration)
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigurationError(f"preset {self.name}: {problem}") from None

    @property
    def name(self) -> str:
        """Return the name of the preset."""
        return self.configuration.preset.preset

    @property
    def reuse(self) -> str:
        """Return whether cached runs are used: matching, only or none."""
        return self.configuration.preset.reuse

    @property
    def other_presets(self) -> list[str]:
        """Return the names of the other presets in config/presets/."""
        return sorted({path.stem for path in (self.root / "config" / "presets").glob("*.yaml")} - {self.name})

    @cached_property
    def paths(self) -> Paths:
        """Return the paths of files, relative to the directory in which the workflow runs."""
        preset = self.configuration.preset
        return Paths(Path(preset.results), preset.preset, Path(preset.scratch))

    @cached_property
    def outputs(self) -> Outputs:
        """Return the tables and figures of the preset."""
        return Outputs.of_preset(self.configuration, self.root, self.paths.root)

    @cached_property
    def published(self) -> Outputs:
        """Return the tables and figures of the paper's numbers."""
        return Outputs.of_published(self.root, self.paths.published)

    # --- cached results -----------------------------------------------------------------------------------------------

    @cached_property
    def cached(self) -> set[str]:
        """Return the ids of the runs that are taken from results/cached/."""
        runs = self.matrix.runs.items() if self.reuse != "none" else ()
        evaluations = self.matrix.evaluations
        return {run for run, spec in runs if cache.holds_run(self.paths.cached_run(run), spec, evaluations[run])}

    @cached_property
    def left(self) -> list[str]:
        """Return the ids of the runs that are trained here."""
        return [run for run in self.matrix.runs if run not in self.cached]

    @cached_property
    def cached_bases(self) -> set[str]:
        """Return the ids of base models with cached scores: all runs that start from them are cached."""
        left = {base_id(self.matrix.runs[run].model) for run in self.left}
        return {
            base
            for base in self.bases.keys() - left
            if cache.holds_scores(self.paths.cached_run(base), self.matrix.evaluations[base])
        }

    @cached_property
    def outdated(self) -> set[str]:
        """Return the ids of cached runs and base models scored by an older scorer; their responses are scored again."""
        return {
            name
            for name in self.cached | self.cached_bases
            for benchmark in self.benchmarks_of(name)
            if scored_by(self.paths.cached_evaluation(name, benchmark)) != definition(benchmark.name).scorer_version
        }

    # --- files of runs and base models --------------------------------------------------------------------------------

    @cached_property
    def bases(self) -> dict[str, str]:
        """Return base id -> model id of every base model."""
        return {base_id(spec): name for name, spec in self.matrix.models.items()}

    def spec(self, name: str) -> RunSpec:
        """Return the specification of a run; for a base model, that of a run that starts from it."""
        if name in self.bases:
            return next(spec for spec in self.matrix.runs.values() if base_id(spec.model) == name)
        return self.matrix.runs[name]

    def engine(self, run: str) -> Engine:
        """Return the engine that trains a run."""
        return ENGINES[self.matrix.runs[run].engine]

    def run_directory(self, run: str) -> Path:
        """Return the directory of a run's published files: in the cache, or in the results of this preset."""
        return self.paths.cached_run(run) if run in self.cached else self.paths.run(run)

    def manifest(self, name: str) -> str:
        """Return the manifest with the checkpoints of a run or base model."""
        directory = self.paths.model(self.bases[name]) if name in self.bases else self.run_directory(name)
        return str(directory / "manifest.json")

    @property
    def manifests(self) -> list[str]:
        """Return the manifests of all runs."""
        return [self.manifest(run) for run in self.matrix.runs]

    def prepared(self, data: str) -> str:
        """Return the manifest of a prepared data set, or of the cases of a benchmark."""
        return str(self.paths.inputs(data) / "manifest.json")

    def spec_json(self, wildcards: Any) -> str:
        """Return the specification in `<kind>/<name>/spec.json`: of a data set, a base model or a run."""
        matrix = self.matrix
        kinds = {"inputs": matrix.data, "models": matrix.models, "runs": matrix.runs}
        return canonical_json(kinds[wildcards.kind][wildcards.name])

    def configuration_json(self) -> str:
        """Return the merged configuration for configuration.json; later steps and commands read it.

        It omits settings that change no result: where checkpoints are, and how runs are chosen when none is cached.
        """
        preset = self.configuration.preset.model_dump(mode="json", exclude={"scratch"})
        return json.dumps(preset | {"reuse": "matching" if self.cached else "none"}, sort_keys=True)

    # --- preparation and training -------------------------------------------------------------------------------------

    def model_data(self, wildcards: Any) -> list[str]:
        """Return the manifest of the data that a base model starts from; none for a hub model."""
        spec = self.matrix.models[wildcards.model]
        return [self.prepared(data_id(spec.data))] if isinstance(spec, ModelSpec) else []

    def training_inputs(self, wildcards: Any) -> dict[str, str]:
        """Return the manifests of the data and the base model of a run."""
        spec = self.matrix.runs[wildcards.run]
        model = self.paths.model(model_id(spec.model)) / "manifest.json"
        return {"data": self.prepared(data_id(spec.data)), "model": str(model)}

    @property
    def fetching(self) -> str:
        """Return the settings for fetching public data and models, for the command line."""
        preset = self.configuration.preset
        keys = ("hub_mirror", "data_local", "models_local", "scratch")
        return json.dumps({key: getattr(preset, key) for key in keys}, sort_keys=True)

    @property
    def training_options(self) -> str:
        """Return the training options that change no result."""
        preset = self.configuration.preset
        hardware = canonical_json(preset.resources) if preset.resources else None
        options = {"--trackers": ",".join(preset.trackers), "--ray-address": preset.ray_address}
        options |= {"--environment": preset.training_environment, "--resources": hardware}
        return " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items() if value)

    # --- evaluation ---------------------------------------------------------------------------------------------------

    @property
    def evaluated(self) -> list[str]:
        """Return the base models and runs that at least one experiment evaluates."""
        return [name for name in (*self.bases, *self.matrix.runs) if self.matrix.evaluations[name]]

    def benchmarks_of(self, name: str) -> tuple[Benchmark, ...]:
        """Return the benchmarks on which a run or a base model is evaluated."""
        return tuple(self.matrix.evaluations[name])

    def settings(self, name: str, evaluation: str) -> Benchmark:
        """Return the settings of an evaluation of a run or base model, by its id."""
        settings = {evaluation_id(one): one for one in self.benchmarks_of(name)}
        check_known("scores", evaluation, settings, f"a benchmark on which this preset evaluates {name}")
        return settings[evaluation]

    @property
    def evaluation_python(self) -> str:
        """Return the Python of the environment that generates responses."""
        environment = self.configuration.preset.evaluation_environment
        return str(python_of(self.root / environment)) if environment else "python"

    def cases(self, name: str, evaluation: str) -> str:
        """Return the manifest of the data with the cases: a run's own held-out ones, or a public benchmark's."""
        benchmark = self.settings(name, evaluation).name
        public = definition(benchmark).kind == "published"
        return self.prepared(benchmark if public else data_id(self.spec(name).data))

    def evaluation_inputs(self, wildcards: Any) -> dict[str, str]:
        """Return the manifests of the checkpoints and of the cases of an evaluation."""
        return {"manifest": self.manifest(wildcards.run), "data": self.cases(wildcards.run, wildcards.evaluation)}

    def steps(self, name: str, evaluation: str) -> list[int]:
        """Return the steps that jobs evaluate: the requested ones, and those that already have responses.

        So an experiment that requests fewer steps loses no responses, and parts add to them if one requests more.
        """
        settings = self.settings(name, evaluation)
        return sorted({*self.matrix.evaluations[name][settings], *steps_made(self.paths.evaluation(name, settings))})

    def parts(self, name: str, evaluation: str) -> list[str]:
        """Return the outputs of the jobs that share the checkpoints of a run; empty if one job evaluates all."""
        settings = self.settings(name, evaluation)
        if definition(settings.name).kind == "validation":  # takes minutes only
            return []
        jobs = min(self.configuration.preset.evaluation_jobs, len(self.steps(name, evaluation)))
        files = [f"part{number}of{jobs}.done" for number in range(1, jobs + 1)] if jobs > 1 else []
        return [str(self.paths.evaluation(name, settings) / file) for file in files]

    def scoring_inputs(self, wildcards: Any) -> dict[str, str]:
        """Return the file that marks the responses (in its directory) as complete, and the cases' manifest."""
        run, settings = wildcards.run, self.settings(wildcards.run, wildcards.evaluation)
        made = self.paths.evaluation(run, settings) / RESPONSES
        responses = self.paths.cached_evaluation(run, settings) / SCORES if run in self.outdated else made
        return {"responses": str(responses), "data": self.cases(run, wildcards.evaluation)}

    def score_directory(self, name: str, benchmark: Benchmark) -> Path:
        """Return the directory with the scores of a run or base model on a benchmark."""
        in_cache = name in (self.cached | self.cached_bases) - self.outdated
        return (self.paths.cached_evaluation if in_cache else self.paths.evaluation)(name, benchmark)

    @property
    def score_directories(self) -> dict[str, dict[str, Path]]:
        """Return the score directories of every run and base model, by the name of the benchmark."""
        return {
            name: {one.name: self.score_directory(name, one) for one in self.benchmarks_of(name)}
            for name in self.evaluated
        }

    def score_files(self, name: str) -> list[str]:
        """Return the files that mark a run or base model as scored on its benchmarks."""
        return [str(self.score_directory(name, one) / SCORES) for one in self.benchmarks_of(name)]

    @property
    def scored(self) -> list[str]:
        """Return the `score_files` of every run and base model."""
        return [file for name in self.evaluated for file in self.score_files(name)]

    def due_steps(self, name: str, benchmark: Benchmark) -> set[int]:
        """Return the steps that need scores: the requested ones, as far as a diverged run has checkpoints."""
        manifest, steps = Path(self.manifest(name)), {*self.matrix.evaluations[name][benchmark]}
        return steps & {*saved_steps(manifest)} if manifest.is_file() else steps

    def is_scored(self, name: str, benchmark: Benchmark) -> bool:
        """Return whether a run or base model has all due scores of a benchmark."""
        return covers(self.score_directory(name, benchmark), self.due_steps(name, benchmark))

    def unscored(self, name: str) -> list[str]:
        """Return the ids of the evaluations of which a run or base model lacks due scores."""
        return [evaluation_id(one) for one in self.benchmarks_of(name) if not self.is_scored(name, one)]

    # --- hardware of jobs ---------------------------------------------------------------------------------------------

    def resources(self, name: str) -> Resources:
        """Return the hardware of a run or base model: the preset's, or that of its model."""
        own = self.configuration.models[self.spec(name).model.name].resources
        return self.configuration.preset.resources or own

    def hardware(self, rule: str, name: str, evaluation: str = "") -> Resources:
        """Return the resources of a job of a rule (train, evaluate or evaluate_part): GPUs, CPUs, memory, time."""
        own = self.resources(name)
        if rule == "train":  # the GPUs of an existing Ray cluster are not the job's
            return own.model_copy(update={"gpus": 0}) if self.configuration.preset.ray_address else own
        return GATHERING if rule == "evaluate" and self.parts(name, evaluation) else own.evaluation

    def asks(self, rule: str, key: str) -> Callable[[Any], Any]:
        """Return the function of wildcards that returns one value of `hardware`."""
        return lambda wildcards: getattr(self.hardware(rule, wildcards.run, wildcards.get("evaluation")), key)

    def benchmark_definition(self, wildcards: Any) -> BenchmarkDefinition:
        """Return the definition of the benchmark of an evaluation."""
        return definition(self.settings(wildcards.run, wildcards.evaluation).name)
