"""Specifications: everything that determines the outcome of a data set, a base model, a run or an evaluation.

Their checksums are identities (`dara.runs`), so the default of a field that is added later must reproduce the previous
behaviour. Each model rejects unknown keys; `docs/configuration.md` is generated from the descriptions here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, PlainSerializer, Tag, model_validator
from pydantic_core import PydanticCustomError

from dara.data import SOURCES
from dara.places import as_written, check_name, check_output, expanded
from dara.registries import ENGINES, REGISTRY, definition
from dara.rewards import check_names, check_params

Task = Literal["tool_calling", "math"]
Name = Annotated[str, AfterValidator(check_name)]
OutputName = Annotated[str, AfterValidator(check_output)]
PathText = Annotated[str, AfterValidator(expanded), PlainSerializer(as_written, when_used="json")]
HubId = Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0)]

Engine = Literal[tuple(ENGINES)]
PRECISION = "of the policy; master weights are float32 in either case"
NORMALIZATION = "token: methods that normalise over responses normalise over tokens, as the paper's tool training does"
SAMPLER_SEED = "seed of the rollouts' sampling; none: the run's seed"

SCORING_ONLY = ("length_limit", "seconds_per_case")
"""Settings of an evaluation that affect only its scores: after a change, the same responses are scored again."""
Generated = Literal[tuple(name for name, one in SOURCES.items() if one.generator)]
Public = Literal[tuple(name for name, one in SOURCES.items() if one.read)]


class Model(BaseModel):
    """Base class of all configuration models: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sampling(Model):
    """The sampling of responses from a policy."""

    temperature: float = Field(ge=0, description="softmax temperature; 0, at evaluation alone: the likeliest token")
    top_p: float = Field(gt=0, le=1, description="nucleus mass; 1 keeps the whole vocabulary (top-k is always off)")
    max_response_tokens: Positive = Field(description="longest response in tokens, end token included")


def _check_random(sampling: Sampling) -> Sampling:
    if sampling.temperature == 0:
        raise ValueError(
            "temperature 0 gives every response of a group the same tokens, and no advantage; it must be above 0"
        )
    return sampling


RolloutSampling = Annotated[Sampling, AfterValidator(_check_random)]


class Optimizer(Model):
    """AdamW and the clipped policy loss (token mean, one epoch per rollout batch, constant learning rate)."""

    learning_rate: PositiveFloat = Field(description="constant learning rate")
    betas: tuple[Share, Share] = Field(description="AdamW's betas")
    weight_decay: float = Field(ge=0, description="AdamW's decoupled weight decay")
    max_grad_norm: PositiveFloat = Field(description="gradients are clipped to this norm")
    updates_per_step: Positive = Field(description="optimiser updates a rollout batch; whole groups go to an update")
    clip_low: Share = Field(description="the policy ratio is clipped at 1 - clip_low")
    clip_high: PositiveFloat = Field(description="the policy ratio is clipped at 1 + clip_high")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None, description="where the advantage is negative, the policy ratio counts as this at most; none: no bound"
    )


class DataSpec(Model):
    """Generated problems, split into training prompts and held-out cases."""

    source: Generated = Field(description="the generator in dara/data/")
    version: Positive = Field(1, description="version of the preparation; a changed generator needs another here")
    seed: Seed = Field(description="seed of the generator")
    train_rows: Positive = Field(description="training prompts")
    held_out_rows: Positive = Field(description="held-out cases for evaluation, never in a prompt or demonstration")


class HubData(Model):
    """A public data set, fetched at a pinned revision and prepared for one model."""

    source: Public = Field(description="the data set; its module is in dara/data/")
    version: Positive = Field(1, description="version of the preparation; a changed preparation needs another here")
    revision: Revision = Field(description="commit of the data set")
    max_prompt_tokens: Positive = Field(description="prompts with more tokens are left out, and counted")
    validation_rows: Positive = Field(description="rows for the validation rewards during training, never trained on")
    tokenizer: str | None = Field(
        None, description="ID@REVISION of the model whose chat template renders the prompts; filled in for each run"
    )
    decontaminate: bool = Field(False, description="leave out training problems that also stand in a benchmark")


class OwnData(Model):
    """A user's own data set, prepared for one model from a function that returns the rows of each split."""

    source: str = Field(pattern=":", description="FILE.py:FUNCTION relative to config/, or package.module:FUNCTION")
    source_sha256: str | None = Field(None, description="checksum of that file; filled in for each run")
    max_prompt_tokens: Positive = Field(description="prompts with more tokens are left out, and counted")
    tokenizer: str | None = Field(
        None, description="ID@REVISION of the model whose chat template renders the prompts; filled in for each run"
    )


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
    """The supervised start that makes a base model, from demonstrations of which few are well formatted."""

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
    """A base model: everything that determines its weights."""

    name: Name = Field(description="name of the model in config/models.yaml")
    data: DataSpec = Field(description="the data set whose tokenizer and demonstrations it uses")
    architecture: Architecture = Field(description="its shape")
    warm_start: WarmStart = Field(description="its supervised start")


class HubModel(Model):
    """A hub model used as a base model, at a pinned revision."""

    name: Name = Field(description="name of the model in config/models.yaml")
    hub: HubId = Field(description="its id, OWNER/NAME")
    revision: Revision = Field(description="commit of its repository")


def _model_kind(value: Any) -> str:
    return "hub_model" if isinstance(value, HubModel) or (isinstance(value, dict) and "hub" in value) else "made_model"


def _data_kind(value: Any) -> str:
    source = value.get("source") if isinstance(value, dict) else getattr(value, "source", None)
    return "own_data" if isinstance(source, str) and ":" in source else "known_data"


KnownData = Annotated[DataSpec | HubData, Field(discriminator="source")]
AnyData = Annotated[
    Annotated[KnownData, Tag("known_data")] | Annotated[OwnData, Tag("own_data")], Discriminator(_data_kind)
]
AnyModel = Annotated[
    Annotated[ModelSpec, Tag("made_model")] | Annotated[HubModel, Tag("hub_model")], Discriminator(_model_kind)
]


class MethodSpec(Model):
    """An aggregation method with its parameters, as a run uses it."""

    name: Name = Field(description="name of the method in config/methods.yaml")
    function: str | None = Field(None, description="where a user's own function stands; none for a built-in method")
    source_sha256: str | None = Field(None, description="checksum of that file, so that an edited method is a new run")
    params: dict[str, Any] = Field(default={}, description="parameters of the method")


class RewardSpec(Model):
    """A user's own reward, as a run uses it."""

    function: str = Field(description="where the function is")
    source_sha256: str = Field(description="checksum of that file, so that an edited reward is a new run")


class KL(Model):
    """A penalty on the KL divergence from the base model."""

    placement: Literal["none", "loss", "reward", "reward_grpo"] = Field(
        "none", description="in the loss, in every token's reward, or in the reward where GRPO alone feels it"
    )
    coefficient: float = Field(0.0, ge=0, description="its weight")
    estimator: Literal["k1", "k2", "k3"] = Field("k1", description="Schulman (2020); k2: half the squared log ratio")

    @model_validator(mode="after")
    def _consistent(self) -> KL:
        if (self.placement == "none") != (self.coefficient == 0):
            raise ValueError(f"placement {self.placement} does not go with coefficient {self.coefficient:g}")
        return self


class Filter(Model):
    """Dynamic sampling: only groups that vary are trained on, and every step has its full number of groups."""

    criterion: Literal["sum_varies", "any_reward_varies"] = Field(
        description="groups that are kept: their weighted sum of the rewards varies, or a reward whose weight is not 0"
    )
    candidate_prompts: Positive = Field(description="prompts of the first round of generation, and at most of others")
    max_rounds: Positive = Field(description="rounds after which too few groups are an error, never a short batch")


class TrainingSettings(Model):
    """The training of a task: settings that a preset's task and a run have in common."""

    data: AnyData
    reward_params: dict[str, dict[str, float]] = Field(default={}, description="parameters of the rewards")
    prompts_per_step: Positive = Field(description="prompts a rollout batch (B)")
    steps: Positive = Field(description="rollout batches of a run")
    checkpoint_every: Positive = Field(10, description="steps between checkpoints; the last step is always one")
    sampling: RolloutSampling = Field(description="sampling of the rollouts")
    optimizer: Optimizer
    final_normalization: Literal["own", "token"] = Field("own", description=NORMALIZATION)
    kl: KL = Field(KL(), description="penalty on the divergence from the base model")
    entropy_coefficient: float = Field(0.0, ge=0, description="weight of the entropy bonus in the loss")
    filter: Filter | None = Field(None, description="dynamic sampling; none: every group is trained on")
    precision: Literal["float32", "bfloat16"] = Field("float32", description=PRECISION)
    sampler_seed: Seed | None = Field(None, description=SAMPLER_SEED)

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.prompts_per_step % self.optimizer.updates_per_step:
            raise ValueError(
                f"prompts_per_step {self.prompts_per_step} must be a multiple of updates_per_step "
                f"{self.optimizer.updates_per_step}, so that whole groups go to an update"
            )
        return self


class RunSpec(TrainingSettings):
    """A training run: everything that determines its outcome and is known before anything is downloaded."""

    contract: Literal[1] = Field(description="version of the trainer's contract")
    task: Task
    rewards: tuple[str, ...] = Field(min_length=1, description="the K rewards, in order")
    reward_params: dict[str, dict[str, float]] = Field(description="parameters of the rewards, for example a limit")
    reward_functions: dict[str, RewardSpec] = Field(
        default={}, exclude_if=lambda own: not own, description="a user's own rewards among `rewards`"
    )
    model: AnyModel
    method: MethodSpec
    group_size: int = Field(ge=2, description="responses a prompt (G)")
    checkpoint_every: Positive = Field(description="steps between checkpoints; the last step is always one")
    engine: Engine
    seed: Seed
    repeat: int = Field(0, ge=0, description="0, 1, ... for the same seed again")

    @model_validator(mode="after")
    def _consistent(self) -> RunSpec:
        check_rewards(self.task, self.rewards, self.reward_params, self.reward_functions)
        check_data("data.source", self.data, self.task)
        if self.filter and self.filter.candidate_prompts < self.prompts_per_step:
            raise ValueError(
                f"filter.candidate_prompts {self.filter.candidate_prompts} is less than the {self.prompts_per_step} "
                "groups of a step"
            )
        ENGINES[self.engine].check(self)
        return self

    @property
    def reward_weights(self) -> tuple[float, ...]:
        """Return the weight of each reward in the sum: a parameter of every method, default 1."""
        return tuple(self.method.params.get("reward_weights") or [1.0] * len(self.rewards))

    @property
    def rollout_seed(self) -> int:
        """Return the seed of the rollouts' sampling."""
        return self.seed if self.sampler_seed is None else self.sampler_seed

    @property
    def checkpoint_steps(self) -> list[int]:
        """Return the steps that have a checkpoint; see the function `checkpoint_steps`."""
        return checkpoint_steps(self.steps, self.checkpoint_every)


def _check_benchmark(name: str) -> str:
    if name not in REGISTRY:
        *others, last = (f"'{known}'" for known in REGISTRY)
        raise PydanticCustomError("literal_error", f"Input should be {', '.join(others)} or {last}")
    return name


class Benchmark(Model):
    """The evaluation of a checkpoint on a benchmark."""

    name: Annotated[str, AfterValidator(_check_benchmark)] = Field(
        description="the benchmark in dara/registries.py", examples=[*REGISTRY]
    )
    samples: Positive = Field(description="responses a case")
    sampling: Sampling = Field(description="decoding at evaluation")
    seed: Seed = Field(description="seed of the sampler, the same for every checkpoint")
    batch_size: Positive = Field(description="responses generated at once (part of the evaluation's identity)")
    sampler: Literal["transformers", "vllm"] = Field("transformers", description="what generates")
    tensor_parallel: Positive = Field(1, description="vllm: GPUs that share one copy of the model")
    length_limit: Positive | None = Field(
        None, description="math: tokens beyond which a response exceeds; bfcl_v4: words of thought (none: 16)"
    )
    seconds_per_case: PositiveFloat = Field(10.0, description="time limit of scoring one response")
    max_context: Positive | None = Field(None, description="tokens of prompt and response; none: the model's own limit")
    limit: Positive | None = Field(None, description="only this many cases, spread over the categories: a first look")
    max_steps: Positive = Field(20, description="multi-turn cases: outputs a turn before the case is ended")

    @model_validator(mode="after")
    def _consistent(self) -> Benchmark:
        if self.sampling.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"samples is {self.samples}, but at temperature 0 all responses to a case are the same; set samples: 1"
            )
        needed = definition(self.name).length_limit_needed
        if needed and self.length_limit is None:
            raise ValueError(needed)
        return self

    @property
    def of_responses(self) -> dict[str, Any]:
        """Return the settings, as JSON values, that affect the responses; those equal to their default are omitted."""
        return self.model_dump(mode="json", exclude={"name", *SCORING_ONLY}, exclude_defaults=True)


def checkpoint_steps(steps: int, every: int) -> list[int]:
    """Return the steps that have a checkpoint in a run of this length: every `every` steps, and the last."""
    return sorted({*range(every, steps + 1, every), steps})


def check_rewards(
    task: str, rewards: tuple[str, ...], params: Mapping[str, Mapping[str, float]], own: Collection[str] = ()
) -> None:
    """Raise ValueError unless `rewards` are distinct rewards of `task` and `params` belongs to rewards of the task.

    own: names of the user's own rewards.
    """
    check_names(task, rewards, own)
    check_params(task, params, own)
    if len(set(rewards)) != len(rewards):
        raise ValueError(f"rewards has an entry twice: {list(rewards)}")


def check_data(key: str, data: AnyData, task: str) -> None:
    """Raise ValueError unless the data has a source for the task; a user's own function fits any task."""
    if not isinstance(data, OwnData):
        check_choice(key, data.source, tuple(name for name, one in SOURCES.items() if one.task == task))


def check_choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{key} is {value}; it must be {' or '.join(allowed)}")
