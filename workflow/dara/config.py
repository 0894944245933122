"""The configuration: pydantic models that are the source of truth for every key.

Each model refuses unknown keys; `docs/configuration.md` is generated from the descriptions here. A preset is the scale
(which models, how many seeds), an experiment is the question (which task, methods, tables and figures).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dara.rewards import check_params, reward_ranges

Task = Literal["tool_calling", "math"]
IDENTIFIER = r"^[a-z0-9]+([._-][a-z0-9]+)*$"
Identifier = Annotated[str, Field(pattern=IDENTIFIER)]
FileName = Annotated[str, Field(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$")]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0)]

SOURCE_OF_TASK = {"tool_calling": "laptop_tools", "math": "laptop_math"}


class Model(BaseModel):
    """Base of all configuration models: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sampling(Model):
    """How responses are drawn from a policy."""

    temperature: float = Field(gt=0, description="softmax temperature")
    top_p: float = Field(gt=0, le=1, description="nucleus mass; 1 keeps the whole vocabulary (top-k is always off)")
    max_response_tokens: Positive = Field(description="longest response in tokens, end token included")


class Optimizer(Model):
    """AdamW and the clipped policy loss (token mean, one epoch a rollout batch, constant learning rate)."""

    learning_rate: PositiveFloat = Field(description="constant learning rate")
    betas: tuple[Share, Share] = Field(description="AdamW's betas")
    weight_decay: float = Field(ge=0, description="AdamW's decoupled weight decay")
    max_grad_norm: PositiveFloat = Field(description="gradients are clipped to this norm")
    updates_per_step: Positive = Field(description="optimiser updates a rollout batch; whole groups go to an update")
    clip_low: Share = Field(description="the policy ratio is clipped at 1 - clip_low")
    clip_high: PositiveFloat = Field(description="the policy ratio is clipped at 1 + clip_high")


class DataSpec(Model):
    """A prepared data set: generated problems, split into training prompts and held-out cases."""

    source: Literal["laptop_tools", "laptop_math"] = Field(description="the generator in dara/data/")
    version: Positive = Field(1, description="version of the preparation; a changed generator needs another here")
    seed: Seed = Field(description="seed of the generator")
    train_rows: Positive = Field(description="training prompts")
    held_out_rows: Positive = Field(description="held-out cases for evaluation, never in a prompt or demonstration")


class Architecture(Model):
    """A small Llama with tied embeddings."""

    vocabulary: int = Field(ge=300, description="tokens of the byte-level BPE tokenizer")
    hidden_size: Positive = Field(description="width")
    layers: Positive = Field(description="transformer layers")
    heads: Positive = Field(description="attention heads; a head size of 32 also runs in vLLM on a CPU")
    intermediate_size: Positive = Field(description="width of the feed-forward layers")
    initializer_range: PositiveFloat = Field(description="standard deviation of the initial weights")

    @model_validator(mode="after")
    def _head_size(self) -> Architecture:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of 2 x heads ({2 * self.heads})")
        return self


class WarmStart(Model):
    """The supervised start that makes a base model: demonstrations of which few are well formatted."""

    steps: Positive = Field(description="optimiser steps")
    batch_size: Positive = Field(description="demonstrations a step")
    learning_rate: PositiveFloat = Field(description="peak learning rate (linear warm-up, then cosine)")
    warmup_steps: int = Field(ge=0, description="steps of linear warm-up")
    betas: tuple[Share, Share] = Field(description="AdamW's betas")
    weight_decay: float = Field(ge=0, description="AdamW's decoupled weight decay")
    max_grad_norm: PositiveFloat = Field(description="gradients are clipped to this norm")
    seed: Seed = Field(description="seed of the initial weights and of the demonstrations")
    demonstrations: dict[str, float] = Field(
        default={}, description="parameters of the demonstrations that differ from the generator's own"
    )


class ModelSpec(Model):
    """A base model: everything that decides its weights."""

    name: Identifier = Field(description="name of the model in config/models.yaml")
    data: DataSpec = Field(description="the data set whose tokenizer and demonstrations it uses")
    architecture: Architecture = Field(description="its shape")
    warm_start: WarmStart = Field(description="its supervised start")


class MethodSpec(Model):
    """An aggregation method with its parameters, as a run uses it."""

    name: str = Field(description="name of the method in config/methods.yaml")
    function: str | None = Field(None, description="where a user's own function stands; none for a built-in method")
    source_sha256: str | None = Field(None, description="checksum of that file, so that an edited method is a new run")
    params: dict[str, Any] = Field(default={}, description="parameters of the method")


class RunSpec(Model):
    """One training: everything that decides its outcome and is known before anything is downloaded."""

    contract: Literal[1] = Field(description="version of the trainer's contract")
    task: Task
    rewards: tuple[str, ...] = Field(min_length=1, description="the K rewards, in order")
    reward_params: dict[str, dict[str, float]] = Field(description="parameters of the rewards, for example a limit")
    data: DataSpec
    model: ModelSpec
    method: MethodSpec
    group_size: int = Field(ge=2, description="responses a prompt (G)")
    prompts_per_step: Positive = Field(description="prompts a rollout batch (B)")
    steps: Positive = Field(description="rollout batches")
    checkpoint_every: Positive = Field(description="steps between checkpoints; the last step is always one")
    sampling: Sampling
    optimizer: Optimizer
    engine: Literal["trl"]
    seed: Seed
    repeat: int = Field(0, ge=0, description="0, 1, ... for the same seed again")

    @model_validator(mode="after")
    def _consistent(self) -> RunSpec:
        check_rewards(self.task, self.rewards, self.reward_params)
        if self.data.source != SOURCE_OF_TASK[self.task]:
            raise ValueError(
                f"data.source is {self.data.source}, but task {self.task} needs {SOURCE_OF_TASK[self.task]}"
            )
        check_groups(self.prompts_per_step, self.optimizer.updates_per_step)
        return self

    @property
    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint: every `checkpoint_every` and the last."""
        return sorted({*range(self.checkpoint_every, self.steps + 1, self.checkpoint_every), self.steps})


class Benchmark(Model):
    """How a checkpoint is evaluated."""

    name: Literal["laptop_tools", "laptop_math"] = Field(description="the benchmark in dara/evaluation/")
    samples: Positive = Field(description="responses a case")
    sampling: Sampling = Field(description="decoding at evaluation")
    seed: Seed = Field(description="seed of the sampler, the same for every checkpoint")
    batch_size: Positive = Field(description="responses generated at once (part of the evaluation's identity)")
    sampler: Literal["transformers"] = Field("transformers", description="what generates")
    length_limit: Positive | None = Field(None, description="math only: a response with more tokens exceeds")
    seconds_per_case: PositiveFloat = Field(10.0, description="time limit of scoring one response")

    @model_validator(mode="after")
    def _limit(self) -> Benchmark:
        if self.name == "laptop_math" and self.length_limit is None:
            raise ValueError("length_limit is missing; the math benchmark needs it, in tokens with the end token")
        return self


class MethodEntry(Model):
    """A row of the comparison: config/methods.yaml."""

    function: str | None = Field(
        None,
        description="a user's own method: FILE.py:FUNCTION relative to config/methods.yaml, or package.module:FUNCTION",
    )
    label: str = Field(min_length=1, description="name in tables and figures")
    color: str = Field(pattern=r"^#[0-9a-fA-F]{6}$", description="colour in every figure")
    params: dict[str, Any] = Field(default={}, description="parameters of the method")


class ModelEntry(Model):
    """A base model of config/models.yaml."""

    task: Task = Field(description="the task whose data it starts from")
    architecture: Architecture
    warm_start: WarmStart


class Experiment(Model):
    """A question with the rewards, methods, tables and figures that answer it: config/experiments/*.yaml."""

    experiment: Identifier = Field(description="name, the same as the file's")
    question: str = Field(min_length=1, description="what it asks, in one sentence")
    task: Task
    rewards: tuple[str, ...] = Field(min_length=1, description="the K rewards, in order")
    sparse_reward: str = Field(description="the reward whose crossing answers the question")
    methods: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all"] = Field(
        description="rows of config/methods.yaml, or all of them"
    )
    thresholds: dict[str, tuple[Share, ...]] = Field(description="for a reward, the levels whose crossing is reported")
    tables: dict[FileName, str] = Field(description="file name -> module in dara/analysis/tables/")
    side_by_side: dict[FileName, str] = Field(
        default={}, description="name -> module whose table of ours stands beside the published: <name>_side_by_side"
    )
    figures: dict[FileName, str] = Field(description="file name -> module in dara/analysis/figures/")

    @field_validator("methods")
    @classmethod
    def _no_repeats(cls, value: tuple | str) -> tuple | str:
        return without_repeats(value)

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        check_rewards(self.task, self.rewards, {})
        for where, name in [("sparse_reward", self.sparse_reward), *(("thresholds", key) for key in self.thresholds)]:
            if name not in self.rewards:
                raise ValueError(f"{where}: {name!r} is not one of the experiment's rewards {list(self.rewards)}")
        for reward, levels in self.thresholds.items():
            if not levels or len(set(levels)) != len(levels):
                raise ValueError(f"thresholds.{reward}: needs one or more levels, each once (given: {list(levels)})")
        return self


class TaskSettings(Model):
    """A task at the scale of a preset: its data, its training and its evaluation."""

    data: DataSpec
    reward_params: dict[str, dict[str, float]] = Field(default={}, description="parameters of the rewards")
    prompts_per_step: Positive = Field(description="prompts a rollout batch (B)")
    steps: Positive = Field(description="rollout batches of a run")
    checkpoint_every: Positive = Field(10, description="steps between checkpoints that are evaluated")
    sampling: Sampling = Field(description="sampling of the rollouts")
    optimizer: Optimizer
    benchmark: Benchmark

    @model_validator(mode="after")
    def _consistent(self) -> TaskSettings:
        check_groups(self.prompts_per_step, self.optimizer.updates_per_step)
        if self.data.train_rows < self.prompts_per_step:
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

    @model_validator(mode="after")
    def _whole_groups(self) -> Matrix:
        for group_size in self.group_sizes:
            if self.responses_per_step and self.responses_per_step % group_size:
                raise ValueError(f"responses_per_step {self.responses_per_step} must be a multiple of {group_size}")
        return self

    @field_validator("models", "methods", "seeds", "group_sizes")
    @classmethod
    def _no_repeats(cls, value: tuple | str | None) -> tuple | str | None:
        return without_repeats(value)


class Preset(Model):
    """The whole configuration of a workflow: config/config.yaml with a preset of config/presets/ on top."""

    preset: Identifier = Field(description="name of the preset; results are written to results/<preset>/")
    extends: Identifier | None = Field(None, description="a preset whose settings this one changes or adds to")
    reuse: Literal["matching", "only", "none"] = Field(
        description="matching: take cached runs of the same identity, train others; only: never train; none: train all"
    )
    results: str = Field(min_length=1, description="directory of the results")
    scratch: str = Field(min_length=1, description="directory of checkpoints and of work in progress")
    engine: Literal["trl"] = Field(description="what trains")
    tasks: dict[Task, TaskSettings] = Field(min_length=1, description="the tasks at this scale")
    experiments: dict[Identifier, Matrix] = Field(min_length=1, description="the experiments and their runs")

    @model_validator(mode="after")
    def _tasks(self) -> Preset:
        for task, settings in self.tasks.items():
            check_rewards(task, (), settings.reward_params)
            limit = settings.reward_params.get("length", {}).get("limit")
            if task == "math" and limit is not None and limit != settings.benchmark.length_limit:
                raise ValueError(
                    f"tasks.math.benchmark.length_limit is {settings.benchmark.length_limit}, but the length reward's "
                    f"limit is {limit:g}; Exceed counts what the reward forbids"
                )
            source = SOURCE_OF_TASK[task]
            for key, name in (("data.source", settings.data.source), ("benchmark.name", settings.benchmark.name)):
                if name != source:
                    raise ValueError(f"tasks.{task}.{key} is {name}; it must be {source}")
        return self


@dataclass(frozen=True)
class Configuration:
    """Everything that the files in config/ say, checked and with references resolved."""

    preset: Preset
    methods: dict[str, MethodEntry]
    models: dict[str, ModelEntry]
    experiments: dict[str, Experiment]
    directory: Path

    def methods_of(self, experiment: Experiment, matrix: Matrix) -> tuple[str, ...]:
        """The methods of an experiment: the preset's list where it has one, else the experiment's."""
        chosen = experiment.methods if matrix.methods is None else matrix.methods
        return tuple(self.methods) if chosen == "all" else chosen


def without_repeats(value: tuple | str | None) -> tuple | str | None:
    """The value; ValueError for a list with an entry twice."""
    if isinstance(value, tuple) and len(set(value)) != len(value):
        raise ValueError(f"has an entry twice: {list(value)}")
    return value


def check_groups(prompts_per_step: int, updates_per_step: int) -> None:
    """Raise ValueError unless whole groups go to each update of a step."""
    if prompts_per_step % updates_per_step:
        raise ValueError(
            f"prompts_per_step {prompts_per_step} must be a multiple of updates_per_step {updates_per_step}, "
            "so that whole groups go to an update"
        )


def check_rewards(task: str, rewards: tuple[str, ...], params: dict[str, dict[str, float]]) -> None:
    """Raise ValueError unless `rewards` are distinct rewards of `task` and `params` belongs to rewards of the task."""
    reward_ranges(task, rewards)
    check_params(task, params)
    if len(set(rewards)) != len(rewards):
        raise ValueError(f"rewards has an entry twice: {list(rewards)}")
