"""The actor that leads a run: OpenRLHF's trainer with our prompts, groups, advantages, metrics and checkpoints."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import openrlhf.trainer.ppo_trainer as ppo_trainer
import openrlhf.trainer.ray.vllm_engine as vllm_engine
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from dara.files import remove, write_atomically
from dara.methods import Method
from dara.runs import run_id
from dara.specs import RunSpec
from dara.training import run
from dara.training.openrlhf.actor import DaraStrategy
from dara.training.openrlhf.command import MARKER, OUTCOME, PROGRESS, PROMPTS, remove_other_states, state_tag
from dara.training.openrlhf.rollouts import Label, collect, consumed, prompt_batches, set_advantages, shard_samples
from dara.training.step import KL_REFERENCE, Progress, Rollouts, trackers
from dara.training.stopping import Deadline, Divergence, OutOfTime

METRICS = {
    "clip_fraction": "ppo_clip_ratio",
    "kl": "ppo_kl",
    "entropy": "entropy_loss",
    "grad_norm": "actor_grad_norm",
    "lr": "actor_lr",
}
"""Our name -> OpenRLHF's name, in the status of a step; each is a mean over its updates."""


def prepare_datasets(strategy: DaraStrategy, tokenizer: Any) -> tuple[Iterator, None, int]:
    """Return the run's prompts in their order, no evaluation, and the number of optimiser updates."""
    settings, spec = strategy.dara, strategy.dara.spec
    start = consumed(run.load(settings.directory, settings.done).metrics, spec.prompts_per_step)
    prompts = prompt_batches(settings.output / PROMPTS, spec.seed, spec.rollout_seed, start)
    return prompts, None, spec.steps * spec.optimizer.updates_per_step


ppo_trainer.prepare_datasets = prepare_datasets
# OpenRLHF's would spread groups over updates.
ppo_trainer.balance_experiences = lambda experiences, arguments: experiences


# --- rollouts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RolloutGroup:
    """The responses to one prompt: G samples."""

    row: dict[str, str]  # {"id", "prompt", "reference"}
    experiences: list[Experience]
    responses: list[str]
    rewards: np.ndarray  # (G, K) float64, raw: OpenRLHF's own are float32
    lengths: np.ndarray  # (G,) tokens, end token included


class DaraSamplesGenerator(SamplesGenerator):
    """Generates the groups of a step, in the order of their prompts, after the run's filter.

    rollouts: after `generate_samples`, the rollout batch that trains, and its candidate pool.
    done: steps of the run before this start. world_size: GPUs of the actor.
    """

    rollouts: Rollouts

    def __init__(self, *args: Any, spec: RunSpec, done: int = 0, world_size: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spec, self.step, self.world_size = spec, done, world_size
        self._prompts = iter(self.prompts_dataloader)

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[Experience], float | None, int, bool]:
        """Return the samples of a step.

        These are prompts_per_step groups of group_size single-sample experiences, the accepted share in percent, the
        number of prompts taken, and False: the prompts never run out.

        Raises the exception of a rollout actor (as Ray passes it on), and ValueError if too few groups vary.
        """
        spec, self.step = self.spec, self.step + 1
        # With sleep mode, vLLM shares its GPUs with the policy and is awake only while it samples.
        if self.args.vllm.enable_sleep:
            vllm_engine.batch_vllm_engine_call(self.vllm_engines, "wake_up")
        pool = collect(
            lambda n: self._groups(n, generate_kwargs),
            spec.prompts_per_step,
            spec.filter,
            spec.reward_weights,
            world_size=self.world_size,
            step=f"step {self.step}",
        )
        if self.args.vllm.enable_sleep:
            vllm_engine.batch_vllm_engine_call(self.vllm_engines, "sleep")
        kept = [pool.groups[i] for i in pool.kept]
        rewards, lengths, pool_rewards, pool_lengths = (
            torch.from_numpy(np.stack([getattr(group, name) for group in groups]))
            for groups in (kept, pool.groups)
            for name in ("rewards", "lengths")
        )
        self.rollouts = Rollouts(
            rows=[group.row for group in kept for _ in group.responses],
            responses=[text for group in kept for text in group.responses],
            rewards=rewards,
            lengths=lengths,
            pool_rewards=pool_rewards,
            pool_lengths=pool_lengths,
            filtered=pool.metrics,
        )
        share = 100 * pool.metrics["filter/acceptance"] if pool.metrics else None
        return [one for group in kept for one in group.experiences], share, len(pool.groups), False

    def _groups(self, size: int, generate_kwargs: dict[str, Any]) -> list[RolloutGroup]:
        """Return the groups of the next `size` prompts, in their order, whichever is ready first."""
        rows = [next(self._prompts) for _ in range(size)]
        prompts = [prompt for _, [prompt], _, _ in rows]
        labels = [label for _, _, [label], _ in rows]
        # The first token may be the end token, as in the TRL engine; OpenRLHF's default requires one token before it.
        refs = self._dispatch_prompts_to_vllm(prompts, labels, **{**generate_kwargs, "min_new_tokens": 0})
        groups = []
        for prompt, text, outputs in zip(prompts, labels, ray.get(refs), strict=True):
            if len(outputs) != self.spec.group_size:
                raise ValueError(f"a prompt has {len(outputs)} responses; a group has {self.spec.group_size}")
            label = Label.loads(text)
            rewards = [[output["extra_logs"][name] for name in self.spec.rewards] for output in outputs]
            group = RolloutGroup(
                row={"id": label.id, "prompt": prompt, "reference": label.reference},
                experiences=[self._process_response_into_experience(output, **generate_kwargs) for output in outputs],
                responses=[output["response"] for output in outputs],
                rewards=np.array(rewards, dtype=np.float64),
                lengths=np.array([end - start for output in outputs for start, end in output["action_ranges"]]),
            )
            groups.append(group)
        return groups


# --- advantages -------------------------------------------------------------------------------------------------------


class DaraExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker with the run's method in place of its advantage estimators.

    rollouts: the batch whose experiences are made; it gets the method's output.
    """

    spec: RunSpec
    method: Method
    ranks: int
    rollouts: Rollouts
    keep_index: bool = False  # keep each sample's position in the rollout batch

    @torch.no_grad()
    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Return the experiences of a step with their advantages, in shards of whole groups for each update.

        Micro-batches of equal size, on one rank, are already in the order of the rollouts; those by tokens are not.
        """
        experiences = super().make_experience_batch(rollout_samples)
        if self.ranks == 1 and not self.args.train.dynamic_batch_enable:
            return experiences
        in_order: dict[int, Any] = {}
        for experience in experiences:
            in_order |= zip(experience.index, split_experience_batch(experience), strict=True)
        lengths = [int(in_order[place].total_length) for place in range(len(in_order))]
        shards = shard_samples(lengths, self.spec.optimizer.updates_per_step, self.ranks)
        return [make_experience_batch([in_order[place] for place in shard]) for shard in shards]

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """Set the method's advantages on all response tokens, with the KL if the reward has one."""
        kl_in_reward = self.initial_model_group is not None and not self.args.algo.kl.use_loss
        coefficient = self.kl_ctl.value if kl_in_reward else None
        set_advantages(experiences, self.rollouts, self.spec, self.method, coefficient)
        if self.keep_index:
            for experience in experiences:
                experience.info["index"] = torch.tensor(experience.index, dtype=torch.float64)
        return experiences


# --- the run ----------------------------------------------------------------------------------------------------------


class DaraTrainer(ppo_trainer.PPOTrainer.__ray_metadata__.modified_class):
    """OpenRLHF's trainer that leads the steps of a run and writes its files."""

    def __init__(self, pretrain: str, strategy: DaraStrategy, *args: Any, **kwargs: Any) -> None:
        self.settings = settings = strategy.dara
        progress_lines = logging.FileHandler(settings.output / PROGRESS, encoding="utf-8")  # the launcher shows them
        progress_lines.setFormatter(logging.Formatter("%(message)s"))
        logging.getLogger("dara.training").addHandler(progress_lines)
        logging.getLogger("dara.training").setLevel(logging.INFO)
        super().__init__(pretrain, strategy, *args, **kwargs)
        # The job started in another process: its wall-clock start is converted to the monotonic clock of this one.
        began = time.monotonic() - (time.time() - settings.started)
        self.progress = Progress.resume(
            settings.spec,
            settings.directory,
            run.load(settings.directory, settings.done),
            settings.methods_dir,
            None if settings.minutes is None else Deadline(settings.minutes, began),
        )
        ranks = self.args.actor.num_nodes * self.args.actor.num_gpus_per_node
        self.samples_generator = DaraSamplesGenerator(
            strategy=strategy,
            prompts_dataloader=self.prompts_dataloader,
            eval_dataloader=None,
            tokenizer=self.tokenizer,
            vllm_engines=self.vllm_engines,
            spec=settings.spec,
            world_size=ranks,
            done=settings.done,
        )
        self.experience_maker = maker = DaraExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
        )
        maker.spec, maker.method, maker.ranks = settings.spec, self.progress.method, ranks
        maker.keep_index = settings.keep_advantages

    def fit(self, global_step: int = 0) -> None:
        """Make the missing steps, or fewer if the run diverges. Write the outcome for the launcher."""
        settings, progress, record = self.settings, self.progress, self.progress.record
        if record.steps:
            self.broadcast_to_vllm()  # vLLM started from the base model
        record.startups.append(round(time.time() - settings.started, 3))
        found = out_of_time = None
        with trackers(settings.trackers, settings.directory, run_id(settings.spec), record.metrics) as progress.track:
            self._step_began = time.monotonic()
            try:
                while record.steps < settings.spec.steps and not found:
                    found = self._step()
                    if not found:
                        if record.steps in settings.spec.checkpoint_steps:
                            self._checkpoint(record.steps)
                        progress.check_deadline()
            except OutOfTime as stop:
                out_of_time = str(stop)
        if found:
            run.save(settings.directory, record, settings.spec)
        outcome = {"divergence": asdict(found) if found else None, "out_of_time": out_of_time}
        write_atomically(settings.output / OUTCOME, json.dumps(outcome) + "\n")

    def _step(self) -> Divergence | None:
        """Make a step and record it, unless the run diverged in it.

        The seconds of the step include the checkpoint before it, as in the TRL engine.
        """
        samples, *_ = self.samples_generator.generate_samples(**self.generate_kwargs)
        self.experience_maker.rollouts = rollouts = self.samples_generator.rollouts
        status, step = self.train_step(samples, self.progress.record.steps)
        engine = engine_metrics(self.settings.spec, status)
        values = [status["policy_loss"], *engine.values()]
        if not status["weights_finite"] or not all(math.isfinite(value) for value in values):
            return Divergence(step, "the loss, the gradient or a weight is not finite")
        began, self._step_began = self._step_began, time.monotonic()
        return self.progress.complete_step(rollouts, engine, self._step_began - began)

    def _compute_rollout_stats(self, experiences: list) -> dict[str, float]:
        """Return no statistics: our metrics are in metrics.jsonl."""
        return {}

    def _checkpoint(self, step: int) -> None:
        """Write step_<N>, complete once it has this name.

        The state to resume from is written before, and the older one is deleted after: a run that is stopped in between
        resumes from the older step_<N> and its state.
        """
        settings, tag = self.settings, state_tag(step)
        ray.get(self.actor_model_group.async_run_method(method_name="save_checkpoint", tag=tag, client_states={}))
        written = settings.directory / f"checkpoint-{step}"
        remove(written)
        os.replace(settings.output / f"{tag}_hf", written)
        write_atomically(written / MARKER, json.dumps({"engine": "openrlhf", "step": step}) + "\n")
        self.progress.complete_checkpoint(written)
        remove_other_states(settings.output, step)


def engine_metrics(spec: RunSpec, status: dict[str, Any]) -> dict[str, float]:
    """Return the engine's metrics of a step, from OpenRLHF's status of the step."""
    names = METRICS | ({KL_REFERENCE: "kl"} if spec.kl.placement == "loss" else {})
    return {ours: float(status[theirs]) for ours, theirs in names.items()}
