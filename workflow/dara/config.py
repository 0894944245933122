"""The configuration: pydantic models, the single source of every key.

Each model rejects unknown keys; `docs/configuration.md` is generated from the descriptions here. A preset sets the
scale (which models, how many seeds), an experiment the question (which task, methods, tables and figures). Everything
that determines a run's outcome is in `dara.specs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from dara.registries import names_of
from dara.rewards import REWARDS
from dara.specs import (
    KL,
    Architecture,
    Benchmark,
    DataSpec,
    Engine,
    Filter,
    HubData,
    HubId,
    Model,
    Name,
    Optimizer,
    OutputName,
    OwnData,
    PathText,
    Positive,
    PositiveFloat,
    Revision,
    Sampling,
    Seed,
    Share,
    Task,
    TrainingSettings,
    WarmStart,
    check_choice,
    check_data,
    check_rewards,
)
from dara.table_options import Beside, ScoreColumn, ScoreTable, TableEntry


def without_repeats(value: tuple | str | None) -> tuple | str | None:
    """Return the value; raise ValueError for a list with a repeated entry."""
    if isinstance(value, tuple) and len(set(value)) != len(value):
        raise ValueError(f"has an entry twice: {list(value)}")
    return value


class MethodEntry(Model):
    """A row of the comparison: config/methods.yaml."""

    function: str | None = Field(
        None,
        description="a user's own method: FILE.py:FUNCTION relative to config/methods.yaml, or package.module:FUNCTION",
    )
    label: str = Field(min_length=1, description="name in tables and figures")
    color: str = Field(pattern=r"^#[0-9a-fA-F]{6}$", description="colour in every figure")
    params: dict[str, Any] = Field(default={}, description="parameters of the method")


class Resources(Model):
    """The hardware of a run; not part of its identity."""

    gpus: int = Field(0, ge=0, description="GPUs of a training; 0: the CPU")
    cpus: Positive = Field(1, description="CPU cores of a training")
    memory_gb: PositiveFloat = Field(4.0, description="main memory of a job")
    hours: PositiveFloat = Field(1.0, description="time limit of a training job")
    disk_gb: PositiveFloat = Field(1.0, description="scratch space of a run")
    evaluation_gpus: int = Field(0, ge=0, description="GPUs of an evaluation")
    evaluation_hours: PositiveFloat = Field(1.0, description="time limit of an evaluation job")
    tensor_parallel: Positive = Field(1, description="GPUs that share one copy of the model in vLLM")
    vllm_memory: Share = Field(0.6, description="share of a GPU's memory for vLLM during training")
    vllm_max_sequences: Positive = Field(256, description="sequences that vLLM works on at once")
    tokens_per_gpu: Positive = Field(16384, description="tokens of a micro-batch")

    @property
    def memory_mb(self) -> int:
        """Return the main memory in MB, the unit of schedulers."""
        return round(self.memory_gb * 1000)

    @property
    def minutes(self) -> int:
        """Return the time limit of a training job."""
        return math.ceil(self.hours * 60)

    @property
    def evaluation(self) -> Resources:
        """Return the resources of an evaluation: by GPUs, its share of a training's CPU cores and memory."""
        share = self.evaluation_gpus / self.gpus if self.gpus and self.evaluation_gpus else 1.0
        return Resources(
            gpus=self.evaluation_gpus,
            cpus=max(1, round(self.cpus * share)),
            memory_gb=math.ceil(self.memory_mb * share) / 1000,
            hours=self.evaluation_hours,
        )


class ModelEntry(Model):
    """A base model of config/models.yaml: made here by a warm start, or a hub model by id and revision."""

    task: Task = Field(description="the task whose data it starts from")
    architecture: Architecture | None = Field(None, description="shape of a model that is made here")
    warm_start: WarmStart | None = Field(None, description="its supervised start")
    hub: HubId | None = Field(None, description="id of a published model, OWNER/NAME")
    revision: Revision | None = Field(None, description="commit of its repository")
    resources: Resources = Field(Resources(), description="what its jobs need")
    filter_rounds: Positive | None = Field(None, description="instead of the task's filter.max_rounds")

    @model_validator(mode="after")
    def _one_kind(self) -> ModelEntry:
        made, hub = (self.architecture, self.warm_start), (self.hub, self.revision)
        if not ((all(made) and not any(hub)) or (all(hub) and not any(made))):
            raise ValueError("has either architecture and warm_start (made here) or hub and revision (published)")
        return self


class Experiment(Model):
    """A question with the rewards, methods, tables and figures that answer it: config/experiments/*.yaml."""

    experiment: Name = Field(description="name, the same as the file's")
    question: str = Field(min_length=1, description="what it asks, in one sentence")
    task: Task
    rewards: tuple[str, ...] = Field(min_length=1, description="the K rewards, in order")
    reward_functions: dict[Name, str] = Field(
        default={}, description="a user's own rewards: FILE.py:FUNCTION relative to config/, or package.module:FUNCTION"
    )
    sparse_reward: str = Field(description="the reward whose crossing answers the question")
    methods: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all"] = Field(
        description="rows of config/methods.yaml, or all of them"
    )
    thresholds: dict[str, tuple[Share, ...]] = Field(description="for a reward, the levels whose crossing is reported")
    score_steps: tuple[Positive, ...] = Field(
        (),
        description="the authors' steps at which methods are compared in their scores, besides the last; a training of "
        "less than 100 steps at the same share of it",
    )
    tables: dict[OutputName, TableEntry] = Field(
        description="file name -> name of a table, or what a table of scores shows (ScoreTable)"
    )
    side_by_side: dict[OutputName, TableEntry] = Field(
        default={}, description="the same of tables with the published numbers beside ours: <file name>_side_by_side"
    )
    figures: dict[OutputName, str] = Field(description="file name -> module in dara/analysis/figures/")

    _methods_once = field_validator("methods")(without_repeats)

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        check_rewards(self.task, self.rewards, {}, self.reward_functions)
        for name in self.reward_functions:
            built_in = name in REWARDS[self.task]
            if built_in or name not in self.rewards:
                why = "is the name of a built-in reward" if built_in else "is not in `rewards`"
                raise ValueError(f"reward_functions: {name!r} {why}; name an own reward of `rewards`")
        for where, name in [("sparse_reward", self.sparse_reward), *(("thresholds", key) for key in self.thresholds)]:
            if name not in self.rewards:
                raise ValueError(f"{where}: {name!r} is not one of the experiment's rewards {list(self.rewards)}")
        for reward, levels in self.thresholds.items():
            if not levels or len(set(levels)) != len(levels):
                raise ValueError(f"thresholds.{reward}: needs one or more levels, each once (given: {list(levels)})")
        return self


class TaskSettings(TrainingSettings):
    """A task at the scale of a preset: its data, its training and its evaluation."""

    benchmark: Benchmark
    further_benchmarks: tuple[Benchmark, ...] = Field((), description="other benchmarks of the task")
    validation: Benchmark | None = Field(None, description="the training rewards on rows that are never trained on")

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
        """Return the benchmarks of the task and, where there are validation rows, the validation rewards."""
        return (self.benchmark, *self.further_benchmarks, *([self.validation] if self.validation else []))

    @model_validator(mode="after")
    def _consistent(self) -> TaskSettings:
        names = [one.name for one in self.benchmarks]
        if len(set(names)) != len(names):
            raise ValueError(f"further_benchmarks: a benchmark is there twice: {', '.join(names)}")
        if isinstance(self.data, DataSpec) and self.data.train_rows < self.prompts_per_step:
            raise ValueError(
                f"data.train_rows {self.data.train_rows} is less than the {self.prompts_per_step} prompts of a step"
            )
        return self


class Matrix(Model):
    """The runs of an experiment at the scale of a preset: the product of these lists."""

    models: tuple[str, ...] = Field(min_length=1, description="names in config/models.yaml")
    methods: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all"] | None = Field(
        None, description="instead of the experiment's own list"
    )
    seeds: tuple[Seed, ...] = Field(min_length=1, description="training seeds")
    group_sizes: tuple[Annotated[int, Field(ge=2)], ...] = Field(min_length=1, description="responses a prompt")
    responses_per_step: Positive | None = Field(
        None, description="instead of the task's prompts_per_step: every group size has as many responses a step"
    )
    learning_rate: PositiveFloat | None = Field(None, description="instead of the task's, for larger batches")
    steps: Positive | None = Field(None, description="instead of the task's number of rollout batches")
    engines: tuple[Engine, ...] | None = Field(None, description="instead of the preset's one engine")
    evaluate_at: tuple[Positive, ...] | None = Field(
        None, min_length=1, description="steps whose checkpoints are evaluated; none: all that a run has"
    )
    benchmarks: tuple[str, ...] | None = Field(
        None, description="of the task's benchmark and validation, those that are evaluated ([]: neither); none: both"
    )

    def evaluates(self, benchmark: Benchmark | None) -> bool:
        """Return whether runs of the experiment are evaluated on this benchmark."""
        return benchmark is not None and (self.benchmarks is None or benchmark.name in self.benchmarks)

    @model_validator(mode="after")
    def _whole_groups(self) -> Matrix:
        for group_size in self.group_sizes:
            if self.responses_per_step and self.responses_per_step % group_size:
                raise ValueError(f"responses_per_step {self.responses_per_step} must be a multiple of {group_size}")
        return self

    _each_once = field_validator("models", "methods", "seeds", "group_sizes", "engines", "evaluate_at", "benchmarks")(
        without_repeats
    )


class Preset(Model):
    """The whole configuration of a workflow: config/config.yaml with a preset of config/presets/ on top."""

    preset: Name = Field(description="name of the preset; results are written to results/<preset>/")
    extends: Name | None = Field(None, description="a preset whose settings this one changes or adds to")
    reuse: Literal["matching", "only", "none"] = Field(
        description="matching: take cached runs of the same identity, train others; only: never train; none: train all"
    )
    results: PathText = Field(description="directory of the results")
    scratch: PathText = Field(description="directory of checkpoints and of work in progress")
    engine: Engine = Field(description="what trains")
    training_environment: PathText | None = Field(
        None, description="virtual environment of engine openrlhf, relative to the clone; none: the workflow's own"
    )
    evaluation_environment: PathText | None = Field(
        None, description="virtual environment that generates at evaluation"
    )
    evaluation_jobs: Positive = Field(1, description="jobs that share the checkpoints of a run at evaluation")
    resources: Resources | None = Field(None, description="hardware of every run; none: of its model")
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = Field((), description="what also records metrics, offline")
    hub_mirror: str | None = Field(None, description="endpoint of a mirror of the hub")
    data_local: dict[str, PathText] = Field({}, description="data set -> local file, for machines without a network")
    models_local: dict[str, PathText] = Field(
        {}, description="model id -> local directory, for machines without a network"
    )
    ray_address: str | None = Field(None, description="an existing Ray cluster; none: each training has its own")
    tasks: dict[Task, TaskSettings] = Field(min_length=1, description="the tasks at this scale")
    experiments: dict[Name, Matrix] = Field(min_length=1, description="the experiments and their runs")

    @field_validator("hub_mirror")
    @classmethod
    def _whole_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://")):
            raise ValueError(f"must begin with https:// or http://, such as https://{value}")
        return value

    @model_validator(mode="after")
    def _tasks(self) -> Preset:
        for task, settings in self.tasks.items():
            known = {name: value for name, value in settings.reward_params.items() if name in REWARDS[task]}
            check_rewards(task, (), known)  # other names: `loading`, which knows the experiments' own rewards
            limit = settings.reward_params.get("length", {}).get("limit")
            if task == "math" and limit is not None and limit != settings.benchmark.length_limit:
                raise ValueError(
                    f"tasks.math.benchmark.length_limit is {settings.benchmark.length_limit}, but the length reward's "
                    f"limit is {limit:g}; Exceed counts what the reward forbids"
                )
            check_data(f"tasks.{task}.data.source", settings.data, task)
            for key, benchmarks, kinds in (
                ("benchmark", (settings.benchmark,), ("laptop", "published")),
                ("further_benchmarks", settings.further_benchmarks, ("laptop", "published")),
                ("validation", filter(None, (settings.validation,)), ("validation",)),
            ):
                allowed = [name for kind in kinds for name in names_of(kind, task)]
                for one in benchmarks:
                    check_choice(f"tasks.{task}.{key}.name", one.name, allowed)
        return self


@dataclass(frozen=True)
class Configuration:
    """The content of all files in config/, checked and with references resolved."""

    preset: Preset
    methods: dict[str, MethodEntry]
    models: dict[str, ModelEntry]
    experiments: dict[str, Experiment]
    directory: Path

    def methods_of(self, experiment: Experiment, matrix: Matrix) -> tuple[str, ...]:
        """Return the methods of an experiment: the preset's list if there is one, else the experiment's."""
        chosen = experiment.methods if matrix.methods is None else matrix.methods
        return tuple(self.methods) if chosen == "all" else chosen


# --- the page of all keys ---------------------------------------------------------------------------------------------

SECTIONS = {
    "config/config.yaml and config/presets/*.yaml": (
        Preset,
        Matrix,
        TaskSettings,
        DataSpec,
        HubData,
        OwnData,
        Sampling,
        Optimizer,
        KL,
        Filter,
        Benchmark,
    ),
    "config/experiments/*.yaml": (Experiment, ScoreTable, ScoreColumn, Beside),
    "config/methods.yaml": (MethodEntry,),
    "config/models.yaml": (ModelEntry, Architecture, WarmStart, Resources),
}
INTRODUCTION = """# Configuration keys

Generated by `make keys` from the models in `workflow/dara/config.py` and `specs.py`; do not edit. An unknown key is an
error. A preset is merged on top of `config/config.yaml`, and `--config KEY=VALUE` on top of both.

A **name** of a preset, an experiment, a model or a method is part of file names: at most 64 small letters and digits,
with single `.`, `_` or `-` between them; in names of tables and figures only `_`.

A **path** (`results`, `scratch`, the environments, `data_local`, `models_local`) counts from the directory in which
the workflow runs, the clone; a method's file from `config/methods.yaml`. `~`, `~user`, `$NAME` and `${NAME}` are
replaced as a shell does, and a variable that is not set is an error; `$$` is a dollar sign. Spaces, quotes and other
signs are fine, except line breaks, `{`, `}`, and a `-` at the beginning. `results`, `results/<preset>` and `scratch`
may be links to directories on other disks.
"""


def keys_page() -> str:
    """Return the page of all keys as Markdown, generated from the models so that it is always up to date."""
    parts = [INTRODUCTION]
    for files, models in SECTIONS.items():
        parts.append(f"## {files}\n")
        for model in models:
            rows = [_row(name, field) for name, field in model.model_fields.items()]
            head = [f"### {model.__name__}\n", f"{_summary(model)}\n", "| key | type | default | meaning |"]
            parts += [*head, "|---|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _summary(model: type[Model]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _row(name: str, field: FieldInfo) -> str:
    nested = isinstance(field.default, Model)
    default = "required" if field.is_required() else "its own defaults" if nested else f"`{field.default!r}`"
    kinds = [
        kind
        for kind in (field.annotation, *get_args(field.annotation))
        if isinstance(kind, type) and issubclass(kind, Model)
    ]
    meaning = field.description or (_summary(kinds[0]).rstrip(".") if kinds else "the kind of problem")
    kind = " or ".join(f"`{one}`" for one in field.examples) if field.examples else _type_name(field.annotation)
    return f"| `{name}` | {kind} | {default} | {meaning} |"


def _type_name(annotation: Any) -> str:
    arguments = get_args(annotation)
    if not arguments:
        return getattr(annotation, "__name__", str(annotation))
    if hasattr(annotation, "__metadata__"):
        return _type_name(arguments[0])
    if all(isinstance(argument, str) for argument in arguments):
        return " or ".join(f"`{argument}`" for argument in arguments)
    names = ["none" if one is type(None) else "..." if one is ... else _type_name(one) for one in arguments]
    forms = {dict: "mapping {0} to {1}", tuple: "list of {0}"}
    return forms.get(get_origin(annotation), " or ".join(names)).format(*names)
