"""OpenRLHF's classes with our parts: DeepSpeed's strategy and ranks, and the trainer that leads the steps of a run.

The changes are the settings for which OpenRLHF has no flag, our prompts, groups and advantages, and the values that
metrics and checkpoints need. OpenRLHF is changed when this is imported, in the processes of Ray that unpickle the
strategy; it is sent to every process of a run.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import openrlhf.trainer.ppo_trainer as ppo_trainer
import openrlhf.trainer.ray.ppo_actor as ppo_actor
import openrlhf.trainer.ray.vllm_engine as vllm_engine
import openrlhf.utils.utils
import ray
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.utils.deepspeed import DeepspeedStrategy
from torch.utils.data import DataLoader

from dara.files import remove, write_atomically
from dara.methods import Method
from dara.runs import run_id
from dara.specs import RunSpec
from dara.training import run
from dara.training.openrlhf.command import MARKER, OUTCOME, PROGRESS, PROMPTS, Settings, remove_other_states, state_tag
from dara.training.openrlhf.rollouts import Label, collect, consumed, prompt_batches, set_advantages, shard_samples
from dara.training.step import KL_REFERENCE, Progress, Rollouts, trackers, weights_are_finite
from dara.training.stopping import Deadline, Divergence, OutOfTime

METRICS = {"clip_fraction": "ppo_clip_ratio", "kl": "ppo_kl", "entropy": "entropy_loss"}
METRICS |= {"grad_norm": "actor_grad_norm", "lr": "actor_lr"}
"""Our name -> OpenRLHF's name, in the status of a step; each is a mean over its updates."""


FLOAT32 = "fp32"  # OpenRLHF has no name for it; with this one, its DeepSpeed configuration enables no half precision
_dtype_of = openrlhf.utils.utils.convert_to_torch_dtype
openrlhf.utils.utils.convert_to_torch_dtype = lambda name: torch.float32 if name == FLOAT32 else _dtype_of(name)
# No shuffling: an update gets its own groups, not random responses.
ppo_actor.DataLoader = lambda *args, **kwargs: DataLoader(*args, **{**kwargs, "shuffle": False})


class DaraStrategy(DeepspeedStrategy):
    """OpenRLHF's strategy; keeps the gradient norm of each update and adapts processes without a GPU.

    dara: the run's settings, which are sent to every process in this way.
    """

    dara: Settings
    grad_norms: list[float]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Adapt the process in which Ray unpickles this, before OpenRLHF uses it."""
        self.__dict__.update(state)
        if not self.dara.on_gpu:
            from dara.training.openrlhf import cpu

            cpu.install_training()

    def optimizer_step(self, optimizer: Any, model: Any, scheduler: Any, name: str = "model", **kwargs: Any) -> None:
        """Run OpenRLHF's step; keep the norm before clipping if it completes an update."""
        engine = model.model if isinstance(model, Actor) else model
        complete = engine.is_gradient_accumulation_boundary()
        super().optimizer_step(optimizer, model, scheduler, name=name, **kwargs)
        if complete:
            self.grad_norms.append(self.get_grad_norm(model))


def strategy_of(arguments: Namespace, settings: Settings) -> DaraStrategy:
    """Return the strategy of a run, in place of OpenRLHF's `get_strategy`."""
    if settings.spec.precision == "float32":
        arguments.ds.param_dtype = FLOAT32
    train = arguments.train
    strategy = DaraStrategy(
        seed=train.seed,
        full_determinism=train.full_determinism_enable,
        max_norm=arguments.actor.max_norm,
        micro_train_batch_size=train.micro_batch_size,
        train_batch_size=train.batch_size,
        zero_stage=arguments.ds.zero_stage,
        args=arguments,
    )
    strategy.dara, strategy.grad_norms = settings, []
    return strategy


def k3_in_place_of_k1(loss: torch.nn.Module, args: tuple, kwargs: dict[str, Any], output: tuple) -> tuple:
    """Set the loss's third value, only logged, to the k3 estimate (Schulman, 2020) that the TRL engine has too.

    It estimates KL(policy that sampled || policy that is updated), and cannot be negative. A hook of the policy loss.
    """
    log_ratio = (args[0] - args[1]).detach()[kwargs["action_mask"].bool()]  # log-probabilities: now, when sampled
    return (*output[:2], (log_ratio.exp() - 1 - log_ratio).mean(), *output[3:])


class DaraActorTrainer(ppo_actor.ActorPPOTrainer):
    """Makes the updates of a rank; the loss also returns the values for our metrics."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actor_loss_fn.register_forward_hook(k3_in_place_of_k1, with_kwargs=True)

    def training_step(
        self, experience: Experience, kl_ctl: float, step: int, loss_batch_info: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run OpenRLHF's step; make entropy and loss KL means over the micro-batch's tokens, like the other metrics.

        OpenRLHF's values are the micro-batch's contributions to the update's means; averaged over m micro-batches, they
        are m times too small.
        """
        info = loss_batch_info or ppo_actor.get_loss_batch_info(
            self.strategy,
            experience.action_mask,
            replay_buffer=self.replay_buffer,
            step=step,
            dynamic_batch=self.args.train.dynamic_batch_enable,
        )
        status = super().training_step(experience, kl_ctl, step, info)
        part = info["dp_size"] * status["num_action_tokens"] / float(info["batch_num_tokens"])
        for name in ("entropy_loss", *(["kl"] if self.args.algo.kl.use_loss else [])):
            status["metrics"][name] = status["metrics"][name] / part
        return status


ppo_actor.ActorPPOTrainer = DaraActorTrainer


class DaraPolicyActor(ppo_actor.PolicyModelActor.__ray_metadata__.modified_class):
    """A rank of the policy."""

    def init_model_from_pretrained(self, strategy: DaraStrategy, *args: Any, **kwargs: Any) -> None:
        """Initialise as OpenRLHF does; continue the step count from the completed steps."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        self._step = strategy.dara.done

    def fit(self, kl_ctl: float = 0) -> dict[str, Any]:
        """Make the updates of a step; the gradient norm is their mean, `weights_finite` is over all ranks."""
        self._step += 1
        self.strategy.grad_norms.clear()
        if self.strategy.dara.keep_advantages:
            items = self.trainer.replay_buffer.items  # sample by sample, in the order of the updates
            np.savez(
                self.strategy.dara.output / f"advantages_{self._step}_{self.strategy.get_rank()}.npz",
                index=np.array([int(item.info["index"]) for item in items]),
                lengths=np.array([int(item.action_mask.sum()) for item in items]),
                advantages=np.concatenate([item.advantages[item.action_mask.bool()].numpy() for item in items]),
            )
        status = super().fit(kl_ctl)
        status["actor_grad_norm"] = float(np.mean(self.strategy.grad_norms))
        broken = not weights_are_finite(self.actor.model.parameters())
        status["weights_finite"] = self.strategy.all_reduce(float(broken), "max") == 0  # each rank has a shard
        return status

    def save_model(self) -> None:
        """Do nothing: the last step already has a checkpoint."""


def prepare_datasets(strategy: DaraStrategy, tokenizer: Any) -> tuple[Iterator, None, int]:
    """Return the run's prompts in their order, no evaluation, and the number of optimiser updates."""
    settings, spec = strategy.dara, strategy.dara.spec
    start = consumed(run.load(settings.directory, settings.done).metrics, spec.prompts_per_step)
    prompts = prompt_batches(settings.output / PROMPTS, spec.seed, spec.rollout_seed, start)
    return prompts, None, spec.steps * spec.optimizer.updates_per_step


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
    """

    rollouts: Rollouts

    def __init__(self, strategy: DaraStrategy, *args: Any, **kwargs: Any) -> None:
        super().__init__(strategy, *args, **kwargs)
        self.spec, self.step = strategy.dara.spec, strategy.dara.done
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
            world_size=self.strategy.dara.devices,
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


class DaraExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker with the run's method in place of its advantage estimators.

    rollouts: the batch whose experiences are made; it gets the method's output.
    """

    method: Method
    rollouts: Rollouts

    @torch.no_grad()
    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Return the experiences of a step with their advantages, in shards of whole groups for each update.

        Micro-batches of equal size, on one rank, are already in the order of the rollouts; those by tokens are not.
        """
        settings, experiences = self.strategy.dara, super().make_experience_batch(rollout_samples)
        if settings.devices == 1 and not self.args.train.dynamic_batch_enable:
            return experiences
        in_order: dict[int, Any] = {}
        for experience in experiences:
            in_order |= zip(experience.index, split_experience_batch(experience), strict=True)
        lengths = [int(in_order[place].total_length) for place in range(len(in_order))]
        shards = shard_samples(lengths, settings.spec.optimizer.updates_per_step, settings.devices)
        return [make_experience_batch([in_order[place] for place in shard]) for shard in shards]

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """Set the method's advantages on all response tokens, with the KL if the reward has one."""
        kl_in_reward = self.initial_model_group is not None and not self.args.algo.kl.use_loss
        coefficient = self.kl_ctl.value if kl_in_reward else None
        set_advantages(experiences, self.rollouts, self.strategy.dara.spec, self.method, coefficient)
        if self.strategy.dara.keep_advantages:
            for experience in experiences:
                experience.info["index"] = torch.tensor(experience.index, dtype=torch.float64)
        return experiences


ppo_trainer.prepare_datasets = prepare_datasets
ppo_trainer.SamplesGenerator = DaraSamplesGenerator
ppo_trainer.RemoteExperienceMaker = DaraExperienceMaker
# OpenRLHF's would spread groups over updates.
ppo_trainer.balance_experiences = lambda experiences, arguments: experiences


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
        self.experience_maker.method = self.progress.method

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
