"""OpenRLHF's DeepSpeed side: the strategy that travels to every process of a run, and the policy's ranks.

Here are the settings that OpenRLHF has no flag for, and what our metrics and checkpoints need of an update. This module
changes OpenRLHF when it is imported, in the processes of Ray that unpickle the strategy.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
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

FLOAT32 = "fp32"
"""OpenRLHF's command line has no word for it, and its DeepSpeed configuration then enables neither half precision."""

_dtype_of = openrlhf.utils.utils.convert_to_torch_dtype


def dtype_of(name: str) -> torch.dtype:
    """Return what OpenRLHF's `convert_to_torch_dtype` does, and float32."""
    return torch.float32 if name == FLOAT32 else _dtype_of(name)


openrlhf.utils.utils.convert_to_torch_dtype = dtype_of


class DaraStrategy(DeepspeedStrategy):
    """Keeps the gradient norm of each optimiser update; adapts a process without a GPU when it arrives there.

    dara: the run's settings, which so reach every process.
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
        """Do OpenRLHF's step; keep the norm before clipping where it completes an update."""
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


def in_order(*args: Any, **kwargs: Any) -> DataLoader:
    """Return a loader that does not shuffle: an update gets its own groups, not responses at random."""
    return DataLoader(*args, **{**kwargs, "shuffle": False})


ppo_actor.DataLoader = in_order


def k3_in_place_of_k1(loss: torch.nn.Module, args: tuple, kwargs: dict[str, Any], output: tuple) -> tuple:
    """Make the loss's third value, only logged, the k3 estimate (Schulman, 2020); a forward hook of the policy loss.

    It estimates KL(policy that sampled || policy that is updated) as the TRL engine does, and cannot be negative.
    """
    log_probs, old_log_probs = args[:2]
    mask = kwargs["action_mask"].bool()
    log_ratio = (log_probs - old_log_probs).detach()[mask]
    return (*output[:2], (log_ratio.exp() - 1 - log_ratio).mean(), *output[3:])


def weights_are_finite(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Return whether no weight of this rank is NaN or infinite; ZeRO stage 3 has a rank's shard in `ds_tensor`."""
    return all(torch.isfinite(getattr(parameter, "ds_tensor", parameter)).all().item() for parameter in parameters)


class DaraActorTrainer(ppo_actor.ActorPPOTrainer):
    """Makes the updates of a rank; the loss also gives what our metrics need."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actor_loss_fn.register_forward_hook(k3_in_place_of_k1, with_kwargs=True)

    def training_step(
        self, experience: Experience, kl_ctl: float, step: int, loss_batch_info: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Do OpenRLHF's step; make entropy and loss KL means over the micro-batch's tokens, as the other metrics are.

        OpenRLHF's are the micro-batch's parts of the update's means, whose average over m micro-batches is m times too
        small.
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
        """Do what OpenRLHF does; count the run's steps from those that are there already."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        self._step = strategy.dara.done

    def fit(self, kl_ctl: float = 0) -> dict[str, Any]:
        """Make the updates of a step; the gradient norm is the mean over them, `weights_finite` is of all ranks."""
        self._step += 1
        self.strategy.grad_norms.clear()
        if self.strategy.dara.keep_advantages:
            self._keep_advantages()
        status = super().fit(kl_ctl)
        status["actor_grad_norm"] = float(np.mean(self.strategy.grad_norms))
        broken = not weights_are_finite(self.actor.model.parameters())
        status["weights_finite"] = self.strategy.all_reduce(float(broken), "max") == 0  # each rank has a shard
        return status

    def save_model(self) -> None:
        """Do nothing: the last step is a checkpoint already."""

    def _keep_advantages(self) -> None:
        """Write what the updates of this step are about to read, sample by sample, in their order."""
        items = self.trainer.replay_buffer.items
        np.savez(
            self.strategy.dara.output / f"advantages_{self._step}_{self.strategy.get_rank()}.npz",
            index=np.array([int(item.info["index"]) for item in items]),
            lengths=np.array([int(item.action_mask.sum()) for item in items]),
            advantages=np.concatenate([item.advantages[item.action_mask.bool()].numpy() for item in items]),
        )
