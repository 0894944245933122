"""OpenRLHF's policy actor (a DeepSpeed rank) with what our metrics and checkpoints need."""

from __future__ import annotations

from typing import Any

import numpy as np
import openrlhf.trainer.ray.ppo_actor as ppo_actor
import torch
from torch.utils.data import DataLoader

from dara.training.openrlhf.strategy import DaraStrategy


def in_order(*args: Any, **kwargs: Any) -> DataLoader:
    """A loader that does not shuffle: an update gets the groups it was dealt, not responses at random."""
    return DataLoader(*args, **{**kwargs, "shuffle": False})


ppo_actor.DataLoader = in_order


def k3_in_place_of_k1(loss: torch.nn.Module, args: tuple, kwargs: dict[str, Any], output: tuple) -> tuple:
    """Forward hook of the policy loss: its third value, only logged, becomes the k3 estimate (Schulman, 2020).

    It estimates KL(policy that sampled || policy that is updated) as the TRL engine does, and cannot be negative.
    """
    log_probs, old_log_probs = args[:2]
    mask = kwargs["action_mask"].bool()
    log_ratio = (log_probs - old_log_probs).detach()[mask]
    return (*output[:2], (log_ratio.exp() - 1 - log_ratio).mean(), *output[3:])


class DaraPolicyActor(ppo_actor.PolicyModelActor.__ray_metadata__.modified_class):
    """A rank of the policy."""

    def init_model_from_pretrained(self, strategy: DaraStrategy, *args: Any, **kwargs: Any) -> None:
        """OpenRLHF's, after which the loss also gives what our metrics need."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        self.trainer.actor_loss_fn.register_forward_hook(k3_in_place_of_k1, with_kwargs=True)
        self._step = strategy.dara.done

    def fit(self, kl_ctl: float = 0) -> dict[str, Any]:
        """The updates of a step; the gradient norm is the mean over them, `weights_finite` is theirs together."""
        self._step += 1
        self.strategy.grad_norms.clear()
        if self.strategy.dara.keep_advantages:
            self._keep_advantages()
        status = super().fit(kl_ctl)
        status["actor_grad_norm"] = float(np.mean(self.strategy.grad_norms))
        status["weights_finite"] = all(torch.isfinite(p).all().item() for p in self.actor.model.parameters())
        return status

    def save_model(self) -> None:
        """Nothing: the last step is a checkpoint already."""

    def _keep_advantages(self) -> None:
        """Write what the updates of this step are about to read, sample by sample, in their order."""
        items = self.trainer.replay_buffer.items
        np.savez(
            self.strategy.dara.output / f"advantages_{self._step}_{self.strategy.get_rank()}.npz",
            index=np.array([int(item.info["index"]) for item in items]),
            lengths=np.array([int(item.action_mask.sum()) for item in items]),
            advantages=np.concatenate([item.advantages[item.action_mask.bool()].numpy() for item in items]),
        )
