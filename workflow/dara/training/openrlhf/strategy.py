"""OpenRLHF's DeepSpeed strategy, which travels to every process of a run and carries the run's settings along."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import openrlhf.utils.utils
import torch
from openrlhf.models import Actor
from openrlhf.utils.deepspeed import DeepspeedStrategy

from dara.training.openrlhf.settings import Settings

FLOAT32 = "fp32"
"""OpenRLHF's command line has no word for it, and its DeepSpeed configuration then enables neither half precision."""

_dtype_of = openrlhf.utils.utils.convert_to_torch_dtype


def dtype_of(name: str) -> torch.dtype:
    """OpenRLHF's `convert_to_torch_dtype`, with float32."""
    return torch.float32 if name == FLOAT32 else _dtype_of(name)


openrlhf.utils.utils.convert_to_torch_dtype = dtype_of


class DaraStrategy(DeepspeedStrategy):
    """Keeps the gradient norm of each optimiser update; adapts a process without a GPU when it arrives there."""

    dara: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.grad_norms: list[float] = []

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called where Ray unpickles it, before OpenRLHF uses it."""
        self.__dict__.update(state)
        if self.dara.resources.gpus == 0:
            from dara.training.openrlhf import cpu

            cpu.install_training()

    def optimizer_step(self, optimizer: Any, model: Any, scheduler: Any, name: str = "model", **kwargs: Any) -> None:
        """OpenRLHF's; the norm before clipping of an update that is complete is kept."""
        engine = model.model if isinstance(model, Actor) else model
        complete = engine.is_gradient_accumulation_boundary()
        super().optimizer_step(optimizer, model, scheduler, name=name, **kwargs)
        if complete:
            self.grad_norms.append(self.get_grad_norm(model))


def strategy_of(arguments: Namespace, settings: Settings) -> DaraStrategy:
    """In place of OpenRLHF's `get_strategy`, with the same arguments and the run's settings."""
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
