"""Runs: the matrix of a preset, and the identity of each run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dara import specs
from dara.config import Configuration, Experiment, Matrix, ModelEntry, TaskSettings
from dara.places import source_sha256
from dara.store import spec_hash

CONTRACT = 1
"""Version of the trainers' behaviour; raised when the same specification gives other results."""


def data_id(spec: specs.AnyData) -> str:
    """Return the name of a prepared data set."""
    return f"{spec.source.rpartition(':')[2]}-{spec_hash(spec)}"


def model_id(spec: specs.AnyModel) -> str:
    """Return the name of a base model."""
    return f"{spec.name}-{spec_hash(spec)}"


def base_id(spec: specs.AnyModel) -> str:
    """Return the name under which the base model (step 0) is evaluated, once for all runs that start from it."""
    return f"base-{model_id(spec)}"


def run_id(spec: specs.RunSpec) -> str:
    """Return `<task>-<model>-<method>-g<G>-s<seed>-<hash8>`."""
    return f"{spec.task}-{spec.model.name}-{spec.method.name}-g{spec.group_size}-s{spec.seed}-{spec_hash(spec)}"


def evaluation_id(settings: specs.Benchmark) -> str:
    """Return `<benchmark>-<hash8>`; the hash covers settings of the responses, not those of scoring alone."""
    defaults = {name: type(settings).model_fields[name].default for name in specs.SCORING_ONLY}
    return f"{settings.name}-{spec_hash(settings.model_copy(update=defaults))}"


Evaluation = dict[specs.Benchmark, tuple[int, ...]]
"""Benchmark -> the steps at which a run or base model is evaluated on it (0: the base model)."""


@dataclass(frozen=True)
class RunMatrix:
    """The runs of a preset: specifications by run id, and the run ids of each experiment in the matrix's order.

    evaluations: run id or base id -> what any experiment with the run requests; absent if none does.
    """

    runs: dict[str, specs.RunSpec]
    experiments: dict[str, list[str]]
    evaluations: dict[str, Evaluation]

    @property
    def data(self) -> dict[str, specs.AnyData]:
        """Return every data set that a run or its base model needs, by data id."""
        runs = self.runs.values()
        bases = [run.model for run in runs if isinstance(run.model, specs.ModelSpec)]
        return {data_id(spec.data): spec.data for spec in (*runs, *bases)}

    @property
    def models(self) -> dict[str, specs.AnyModel]:
        """Return every base model, by model id."""
        return {model_id(run.model): run.model for run in self.runs.values()}


def plan_runs(configuration: Configuration) -> RunMatrix:
    """Expand the matrices of the preset's experiments into runs. Two experiments that need the same run share it."""
    runs: dict[str, specs.RunSpec] = {}
    experiments: dict[str, list[str]] = {}
    evaluations: dict[str, Evaluation] = {}
    for name, matrix in configuration.preset.experiments.items():
        experiment, engines = configuration.experiments[name], matrix.engines or (configuration.preset.engine,)
        methods = configuration.methods_of(experiment, matrix)
        cells = itertools.product(engines, matrix.models, matrix.group_sizes, methods, matrix.seeds)
        experiments[name] = []
        for spec in (_run_spec(configuration, experiment, matrix, cell) for cell in cells):
            run, base = run_id(spec), base_id(spec.model)
            experiments[name].append(run)
            runs[run] = spec
            asked = [one for one in configuration.preset.tasks[spec.task].benchmarks if matrix.evaluates(one)]
            own = dict.fromkeys(asked, matrix.evaluate_at or spec.checkpoint_steps)
            evaluations[run] = joined(evaluations.get(run, {}), own)
            evaluations[base] = joined(evaluations.get(base, {}), dict.fromkeys(asked, (0,)))
    return RunMatrix(runs, experiments, evaluations)


def joined(one: Mapping[specs.Benchmark, Iterable[int]], other: Mapping[specs.Benchmark, Iterable[int]]) -> Evaluation:
    """Return the union of two evaluations."""
    return {
        benchmark: tuple(sorted({*one.get(benchmark, ()), *other.get(benchmark, ())})) for benchmark in {**one, **other}
    }


def _run_spec(
    configuration: Configuration, experiment: Experiment, matrix: Matrix, cell: tuple[specs.Engine, str, int, str, int]
) -> specs.RunSpec:
    """Return the specification of one cell of an experiment's matrix: engine, model, group size, method and seed."""
    engine, model, group_size, method, seed = cell
    settings, entry = configuration.preset.tasks[experiment.task], configuration.models[model]
    shared = {name: getattr(settings, name) for name in specs.TrainingSettings.model_fields}
    if matrix.learning_rate is not None:
        shared["optimizer"] = settings.optimizer.model_copy(update={"learning_rate": matrix.learning_rate})
    if settings.filter and entry.filter_rounds:  # the rounds that this model needs
        shared["filter"] = settings.filter.model_copy(update={"max_rounds": entry.filter_rounds})
    if entry.hub:
        base = specs.HubModel(name=model, hub=entry.hub, revision=entry.revision)
    else:
        made = {"architecture": entry.architecture, "warm_start": entry.warm_start}
        base = specs.ModelSpec(name=model, data=settings.data, **made)
    shared |= {
        "data": _data_spec(settings, entry, configuration.directory),
        "reward_params": {name: value for name, value in settings.reward_params.items() if name in experiment.rewards},
        "prompts_per_step": (matrix.responses_per_step or settings.prompts_per_step * group_size) // group_size,
        "steps": matrix.steps or settings.steps,
    }
    return specs.RunSpec(
        contract=CONTRACT,
        task=experiment.task,
        rewards=experiment.rewards,
        model=base,
        method=method_spec(configuration, method),
        group_size=group_size,
        engine=engine,
        seed=seed,
        **shared,
        reward_functions={
            name: specs.RewardSpec(function=function, source_sha256=source_sha256(function, configuration.directory))
            for name, function in experiment.reward_functions.items()
        },
    )


def _data_spec(settings: TaskSettings, entry: ModelEntry, directory: Path | None) -> specs.AnyData:
    """Return the task's data; public data and own data are rendered with the model's own chat template."""
    data = settings.data
    changes = {"source_sha256": source_sha256(data.source, directory)} if isinstance(data, specs.OwnData) else {}
    if isinstance(data, specs.HubData | specs.OwnData) and entry.hub:
        changes["tokenizer"] = f"{entry.hub}@{entry.revision}"
    return data.model_copy(update=changes)


def method_spec(configuration: Configuration, name: str) -> specs.MethodSpec:
    """Return the method as runs use it. It includes the checksum of a user's file: an edited function is a new run."""
    entry = configuration.methods[name]
    checksum = source_sha256(entry.function, configuration.directory) if entry.function else None
    return specs.MethodSpec(name=name, function=entry.function, source_sha256=checksum, params=entry.params)


def check_source(spec: specs.RunSpec, directory: Path | None) -> None:
    """Raise ValueError if a file of the user's own was edited after the run was planned."""
    method = spec.method
    own = [("method", method.name, method.function, method.source_sha256)] if method.function else []
    own += [("reward", name, one.function, one.source_sha256) for name, one in spec.reward_functions.items()]
    for kind, name, function, planned in own:
        if source_sha256(function, directory) != planned:
            raise ValueError(
                f"{function} ({kind} {name}) was edited after run {run_id(spec)} was planned; "
                f"start the workflow again, which plans a new run for the edited {kind}"
            )


@dataclass(frozen=True)
class Paths:
    """Paths of a preset's files. `results`: written by the workflow; `scratch`: checkpoints and unfinished work."""

    results: Path
    preset: str
    scratch: Path

    @property
    def root(self) -> Path:
        """Return the results of this preset."""
        return self.results / self.preset

    @property
    def frames(self) -> Path:
        """Return the folder of the tidy frames."""
        return self.root / "data"

    @property
    def published(self) -> Path:
        """Return the folder of the paper's numbers, and of the tables and figures drawn from them."""
        own = self.results / "published"
        return own if own.is_dir() else Path("results/published")  # in git, even if the results are elsewhere

    def inputs(self, data: str) -> Path:
        """Return the folder of a prepared data set."""
        return self.root / "inputs" / data

    def model(self, model: str) -> Path:
        """Return the folder of a base model's specification and manifest."""
        return self.root / "models" / model

    def run(self, run: str) -> Path:
        """Return the folder of the published files of a finished run."""
        return self.root / "runs" / run

    def cached_run(self, run: str) -> Path:
        """Return the folder of a run's results that are kept in git."""
        return self.results / "cached" / run

    def scores(self, run: str) -> Path:
        """Return the folder of responses and scores of a run's checkpoints, or of a base model."""
        return self.root / "scores" / run

    def evaluation(self, run: str, settings: specs.Benchmark) -> Path:
        """Return the folder of responses and scores of one evaluation."""
        return self.scores(run) / evaluation_id(settings)

    def cached_evaluation(self, run: str, settings: specs.Benchmark) -> Path:
        """Return the folder of an evaluation's results that are kept in git."""
        return self.cached_run(run) / evaluation_id(settings)
