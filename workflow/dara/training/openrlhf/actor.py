"""OpenRLHF's DeepSpeed side: the strategy that is sent to every process of a run, and the policy's ranks.

This module has the settings for which OpenRLHF has no flag, and the values that metrics and checkpoints need from an
update. It changes OpenRLHF when it is imported, in the processes of Ray that unpickle the strategy.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import openrlhf.trainer.ray.ppo_actor as ppo_actor
import openrlhf.utils.utils
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.deepspeed import DeepspeedStrategy
from torch.utils.data import DataLoader

from dara.training.openrlhf.command import Settings
from dara.training.step import weights_are_finite

FLOAT32 = "fp32"
"""Our name of float32, for which OpenRLHF has none; with it, its DeepSpeed configuration enables no half precision."""

_dtype_of = openrlhf.utils.utils.convert_to_torch_dtype
openrlhf.utils.utils.convert_to_torch_dtype = lambda name: torch.float32 if name == FLOAT32 else _dtype_of(name)
# No shuffling: an update gets its own groups, not random responses.
ppo_actor.DataLoader = lambda *args, **kwargs: DataLoader(*args, **{**kwargs, "shuffle": False})


class DaraStrategy(DeepspeedStrategy):
    """OpenRLHF's strategy; keeps the gradient norm of each update and adapts processes without a GPU.

    dara: the run's settings, which are sent to every process in this way.
    """

    dara: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.grad_norms: list[float] = []

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
    strategy = DaraStrategy(
        seed=arguments.train.seed,
        full_determinism=arguments.train.full_determinism_enable,
        max_norm=arguments.actor.max_norm,
        micro_train_batch_size=arguments.train.micro_batch_size,
        train_batch_size=arguments.train.batch_size,
        zero_stage=arguments.ds.zero_stage,
        args=arguments,
    )
    strategy.dara = settings
    return strategy


def k3_in_place_of_k1(loss: torch.nn.Module, args: tuple, kwargs: dict[str, Any], output: tuple) -> tuple:
    """Set the loss's third value, only logged, to the k3 estimate (Schulman, 2020); a hook of the policy loss.

    It estimates KL(policy that sampled || policy that is updated) as the TRL engine does, and cannot be negative.
    """
    log_probs, old_log_probs = args[:2]
    mask = kwargs["action_mask"].bool()
    log_ratio = (log_probs - old_log_probs).detach()[mask]
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
