"""A step of a run, the same for every engine: its prompts and rewards, the advantages, its metrics, and its record.

A rollout batch is processed in this order: `score_sample` scores each response, `batch_advantages` computes from the
rewards (B, G, K) the advantages (B, G) for the engine's loss, and `Progress.complete_step` writes the metrics.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dara.methods import Method, Output, energies, load_method
from dara.rewards import load_rewards, reward_ranges, score
from dara.specs import RunSpec
from dara.training import run
from dara.training.run import RunRecord
from dara.training.stopping import Deadline, Divergence, Metrics, divergence

log = logging.getLogger(__name__)

SCHEMA = 1
ENGINE_METRICS = ("clip_fraction", "kl", "entropy", "grad_norm", "lr")
"""Metrics from the engine: share of tokens whose policy ratio is clipped; an estimate of the KL divergence (nats per
token) between the policy that sampled and the one that is updated; entropy (nats per token); norm of the gradient
before clipping; learning rate. Each is the mean over the step's optimiser updates."""
KL_REFERENCE = "kl_reference"
"""Metric from the engine in runs with a KL in the loss only: its estimate of the KL divergence between the policy that
is updated and the base model (nats per token), before the coefficient."""
REPORT_EVERY = 5  # steps between progress lines
SAMPLES = 4  # responses kept for reading at each checkpoint
SHOWN = 1000  # characters of a prompt or response in an error


@dataclass
class Rollouts:
    """The rollout batch of a step: B groups of G responses, K rewards, prompt by prompt."""

    rows: Sequence[Mapping[str, str]]  # B * G times {"id", "prompt", "reference"}
    responses: Sequence[str]  # B * G
    rewards: Tensor  # (B, G, K) float64
    lengths: Tensor  # (B, G) tokens
    output: Output | None = None  # the method's output
    pool_rewards: Tensor | None = None  # (P, G, K): before filtering; None without a filter
    pool_lengths: Tensor | None = None  # (P, G)
    filtered: Mapping[str, float] | None = None  # filter/*


def prompt_positions(rows: int, seed: int) -> Iterator[int]:
    """Yield indices of rows without end: a random permutation, and a new one whenever all rows are used.

    The order depends on `seed` and not on the method, so that paired runs see the same prompts.
    """
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.permutation(rows).tolist()


def training_rows(rows: list[dict[str, str]], spec: RunSpec) -> list[dict[str, str]]:
    """Return the prompts of all steps of a run without a filter, in order: steps x prompts_per_step rows."""
    needed = spec.steps * spec.prompts_per_step
    return [rows[i] for i in islice(prompt_positions(len(rows), spec.seed), needed)]


class RewardError(ValueError):
    """A reward of a sample could not be computed, or is not a finite number."""


def score_sample(
    task: str,
    names: Sequence[str],
    params: Mapping[str, Mapping[str, float]],
    *,
    prompt_id: str,
    prompt: str,
    reference: str,
    response: str,
    n_tokens: int,
) -> dict[str, float]:
    """Return the K rewards of one response by name, in the order of `names`.

    response: the decoded tokens without special tokens. n_tokens: their number, the end token included. Raises
    RewardError, with the cause, the prompt and the response, for any exception in a reward and for a value that is not
    finite: a missing reward never becomes 0.
    """
    sample = f"for prompt {prompt_id} ({_shown(prompt)}) and response {_shown(response)}"
    try:
        values = score(task, names, response=response, reference=reference, n_tokens=n_tokens, params=params)
    except Exception as error:
        raise RewardError(
            f"the rewards {', '.join(names)} failed ({type(error).__name__}: {error}) {sample}"
        ) from error
    scores = dict(zip(names, values, strict=True))
    for name, value in scores.items():
        if value is None or not math.isfinite(value):
            raise RewardError(f"reward {name} is {value}, not a number, {sample}")
    return scores


def _shown(text: str) -> str:
    """Return the text in quotes; of a long text the beginning and the end."""
    if len(text) <= SHOWN:
        return repr(text)
    return f"{text[: SHOWN // 2]!r} ... {text[-SHOWN // 2 :]!r} ({len(text)} characters)"


def run_method(spec: RunSpec, methods_dir: Path | None = None) -> Method:
    """Return the method of a run with its parameters, and load the run's own rewards.

    In a run with `final_normalization: token`, methods that would normalise over responses normalise over tokens; a
    method with another normalisation keeps it. methods_dir: to which paths of a user's own files are relative.
    """
    load_rewards(spec.task, {name: one.function for name, one in spec.reward_functions.items()}, methods_dir)
    entry, own_file = spec.method, {"function": spec.method.function, "base_dir": methods_dir}
    method = load_method(entry.name, **own_file, **entry.params)
    own = method.default_final_normalization == "response" and "final_normalization" not in entry.params
    if spec.final_normalization == "own" or not own:
        return method
    return load_method(entry.name, **own_file, **entry.params, final_normalization=spec.final_normalization)


def batch_advantages(
    spec: RunSpec, method: Method, rewards: Tensor, lengths: Tensor, penalty: Tensor | None = None
) -> tuple[Output, Tensor]:
    """Return the method's output for a rollout batch, and the advantages (B, G) for the loss.

    rewards (B, G, K) raw, in the order of spec.rewards; lengths (B, G) response tokens, the end token included.
    penalty (B, G): GRPO only, added to the sum of the rewards before the group's z-score; densities, weights and
    energies are those of the rewards alone.
    """
    output = method(rewards, lengths=lengths, ranges=reward_ranges(spec.task, spec.rewards))
    if penalty is not None:
        if spec.method.name != "grpo":
            raise ValueError(f"a penalty on the summed reward is for grpo, not for {spec.method.name}")
        # GRPO depends only on the sum, so the penalty is one more reward.
        params = dict(spec.method.params)
        if params.get("reward_weights") is not None:
            params["reward_weights"] = (*params["reward_weights"], 1.0)
        with_penalty = torch.cat([rewards, penalty.to(rewards)[..., None]], dim=-1)
        output = replace(output, advantages=load_method("grpo", **params)(with_penalty, lengths=lengths).advantages)
    # The advantages carry the method's loss weight: for q >= 0 the clipped surrogate of q A is q times that of A, so no
    # engine changes its loss.
    return output, output.advantages * output.loss_weight


def metric_names(rewards: Sequence[str]) -> list[str]:
    """Return the names of metrics in every step, for these rewards; a method or a filter may add its own."""
    parts = ["reward/{}/mean", "reward/{}/std", "density/{}", "active_groups/{}", "weight/{}"]
    parts += [f"{energy}/{{}}/{sign}" for energy in ("energy", "energy_contributed") for sign in ("pos", "neg")]
    common = ["advantage/mean", "advantage/std", "groups", "group_size", "response_length/mean", "response_length/max"]
    return [part.format(name) for name in rewards for part in parts] + common + list(ENGINE_METRICS)


def step_metrics(
    step: int,
    names: Sequence[str],
    *,
    pool_rewards: Tensor,
    pool_lengths: Tensor,
    output: Output,
    engine: Mapping[str, float],
    filtered: Mapping[str, float] | None = None,
) -> dict[str, float | int]:
    """Return one line of metrics.jsonl (schema 1); ValueError for other names of an engine, or a name written twice.

    step: from 1. names: the K rewards. pool_rewards (P, G, K) and pool_lengths (P, G), in tokens with the end token:
    the pool before any group is filtered. output: the method's, for its B groups. engine: ENGINE_METRICS, exactly, and
    KL_REFERENCE where the loss has a KL. filtered: `filter/*`, where a filter is on. Standard deviations have divisor
    n - 1. An energy is a sum of squares over all responses; that of the contributions omits those that are not kept.
    """
    if set(engine) - {KL_REFERENCE} != set(ENGINE_METRICS):
        raise ValueError(f"the engine's metrics are {sorted(engine)}; they must be {sorted(ENGINE_METRICS)}")
    groups, group_size, _ = output.z.shape
    pool = pool_rewards.double().flatten(0, 1)
    line: dict[str, float | int] = {"schema": SCHEMA, "step": step}
    for k, name in enumerate(names):
        line[f"reward/{name}/mean"], line[f"reward/{name}/std"] = pool[:, k].mean().item(), pool[:, k].std().item()
        line[f"density/{name}"] = output.density[k].item()
        line[f"active_groups/{name}"] = round(output.density[k].item() * groups)
        line[f"weight/{name}"] = output.weights[k].item()
        parts = {"energy": (output.z, None), "energy_contributed": (output.contributed, output.keep)}
        for energy, (values, keep) in parts.items():
            positive, negative = energies(values[..., k : k + 1], keep)
            line[f"{energy}/{name}/pos"], line[f"{energy}/{name}/neg"] = positive.item(), negative.item()
    line |= {"advantage/mean": output.advantages.mean().item(), "advantage/std": output.advantages.std().item()}
    line |= {"groups": groups, "group_size": group_size}
    line["response_length/mean"] = pool_lengths.double().mean().item()
    line["response_length/max"] = int(pool_lengths.max())
    line |= {name: float(engine[name]) for name in (*ENGINE_METRICS, KL_REFERENCE) if name in engine}
    for name, value in {**output.diagnostics, **(filtered or {})}.items():
        if name in line:
            raise ValueError(f"the method's diagnostic {name!r} is the name of a metric of every step; rename it")
        line[name] = float(value)
    return line


@dataclass
class Progress:
    """A run in progress, called by an engine after each step and at each checkpoint."""

    spec: RunSpec
    directory: Path
    record: RunRecord
    method: Method
    deadline: Deadline | None
    track: Callable[[Metrics], None] = lambda line: None  # gives a line of metrics to the trackers

    @classmethod
    def resume(
        cls, spec: RunSpec, directory: Path, record: RunRecord, methods_dir: Path | None, deadline: Deadline | None
    ) -> Progress:
        """Return the run after the steps of `record`, with the method's state at that step."""
        method = run_method(spec, methods_dir)
        if record.steps and method.has_state:
            path = directory / f"step_{record.steps}" / "method_state.pt"
            method.load_state_dict(torch.load(path, weights_only=True))
        return cls(spec, directory, record, method, deadline)

    def __post_init__(self) -> None:
        self._done = self.record.steps  # at the start of this process

    @property
    def step(self) -> int:
        """Return the step that is being made, from 1."""
        return self.record.steps + 1

    def complete_step(self, rollouts: Rollouts, engine: Mapping[str, float], seconds: float) -> Divergence | None:
        """Record a step, unless the run diverged in it: then return the divergence; the files end before the step.

        engine: the engine's metrics of the step, see step_metrics. seconds: wall-clock time of the step.
        """
        spec, record, step = self.spec, self.record, self.step
        line = step_metrics(
            step,
            spec.rewards,
            pool_rewards=rollouts.rewards if rollouts.pool_rewards is None else rollouts.pool_rewards,
            pool_lengths=rollouts.lengths if rollouts.pool_lengths is None else rollouts.pool_lengths,
            output=rollouts.output,
            engine=engine,
            filtered=rollouts.filtered,
        )
        ranges = dict(zip(spec.rewards, reward_ranges(spec.task, spec.rewards), strict=True))
        found = divergence([*record.metrics, line], ranges)
        if found:
            return found
        if step in spec.checkpoint_steps:
            self._keep_samples(rollouts)
        run.append_metrics(self.directory, line)
        record.metrics.append(line)
        record.rewards.append(rollouts.rewards.numpy())
        record.lengths.append(rollouts.lengths.numpy())
        record.seconds.append(round(seconds, 4))
        if step in (1, spec.steps) or step % REPORT_EVERY == 0:
            self._report(line)
        self.track(line)
        return None

    def _keep_samples(self, rollouts: Rollouts) -> None:
        """Keep a few responses of the step for people to read: the first of each of evenly spread prompts."""
        spec = self.spec
        for b in range(0, spec.prompts_per_step, max(1, spec.prompts_per_step // SAMPLES))[:SAMPLES]:
            sample = {
                "step": self.step,
                **rollouts.rows[b * spec.group_size],
                "response": rollouts.responses[b * spec.group_size],
                "n_tokens": rollouts.lengths[b, 0].item(),
                "rewards": dict(zip(spec.rewards, rollouts.rewards[b, 0].tolist(), strict=True)),
                "advantage": rollouts.output.advantages[b, 0].item(),
            }
            self.record.samples.append(sample)

    def _report(self, line: Metrics) -> None:
        spec, step, pace = self.spec, self.record.steps, float(np.mean(self.record.seconds[-REPORT_EVERY:]))
        means = " ".join(f"{name} {line[f'reward/{name}/mean']:.3g}" for name in spec.rewards)
        densities = " ".join(f"{line[f'density/{name}']:.2f}" for name in spec.rewards)
        minutes, seconds = divmod(round(pace * (spec.steps - step)), 60)
        log.info(
            "%s | step %d/%d | %s | density %s | %.2f s/step, %d:%02d left",
            *(run.title(spec), step, spec.steps, means, densities, pace, minutes, seconds),
        )

    def complete_checkpoint(self, written: Path) -> None:
        """Give a fully written checkpoint its name, after everything that a resume from it needs is written."""
        if self.method.has_state:
            torch.save(self.method.state_dict(), written / "method_state.pt")
        run.save(self.directory, self.record, self.spec)
        run.complete_checkpoint(self.directory, written, self.record.steps)

    def check_deadline(self) -> None:
        """Raise OutOfTime or LimitTooShort, after a step and its checkpoint if it has one, if the time is too short."""
        if self.deadline:
            seconds = self.record.seconds[self._done :]
            self.deadline.check(self.record.steps, self.spec.checkpoint_steps, seconds, time.monotonic())


def weights_are_finite(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Return whether no weight of this rank is NaN or infinite; ZeRO stage 3 has a rank's shard in `ds_tensor`."""
    return all(torch.isfinite(getattr(parameter, "ds_tensor", parameter)).all().item() for parameter in parameters)


@contextmanager
def trackers(
    names: Sequence[str], directory: Path, run_id: str, lines: Iterable[Metrics]
) -> Iterator[Callable[[Metrics], None]]:
    """Yield a function that gives a line of metrics to the trackers `names` of a run, in `<directory>/trackers/`.

    Their files are rewritten at each start from the steps so far (`lines`), so a resumed run has no step twice. There
    is no network access. Raises ValueError for an unknown name and for a tracker whose package is not installed.
    """
    run.check_trackers(names)
    root, writer, wandb_run = directory / "trackers", None, None
    shutil.rmtree(root, ignore_errors=True)

    def track(line: Metrics) -> None:
        values, step = {k: float(value) for k, value in line.items() if k not in ("schema", "step")}, int(line["step"])
        if writer:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()
        if wandb_run:
            wandb_run.log(values, step)

    with ExitStack() as stack:
        if "tensorboard" in names:
            from torch.utils.tensorboard import SummaryWriter

            writer = stack.enter_context(closing(SummaryWriter(log_dir=str(root / "tensorboard" / run_id))))
        if "wandb" in names:
            import wandb

            (root / "wandb").mkdir(parents=True)
            quiet = {"console": "off", "silent": True, "disable_git": True, "save_code": False}
            settings = wandb.Settings(**quiet, disable_job_creation=True, x_disable_stats=True)
            stack.callback(wandb.teardown)  # waits until wandb's process has written everything; `finish` does not
            # The mode is passed explicitly, because it then overrides the environment.
            where = {"project": "dara", "dir": str(root / "wandb"), "mode": "offline"}
            wandb_run = wandb.init(**where, id=run_id, name=run_id, settings=settings)
            stack.callback(wandb_run.finish)
        for line in lines:
            track(line)
        yield track
