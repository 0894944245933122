"""OpenRLHF's extension of vLLM's worker, on a CPU. vLLM imports it before it builds the model."""

from __future__ import annotations

from typing import Any

import torch
import vllm._custom_ops
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

from dara.training.openrlhf.cpu import process_group
from dara.training.openrlhf.versions import check_names

check_names({"torch.cpu": ("_is_amx_tile_supported",), "vllm._custom_ops": ("_supports_onednn",)})

# vLLM chooses its AMX attention without asking the kernel for leave to use AMX, and dies of SIGILL.
torch.cpu._is_amx_tile_supported = lambda: False
# Packed into oneDNN's form, weights cannot be replaced any more; unpacked, vLLM uses torch's linear layers.
vllm._custom_ops._supports_onednn = False


class CpuWorker(WorkerWrap):
    """Receives the policy's weights on the CPU."""

    def init_process_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str,
        backend: str = "gloo",
        use_ray: bool = False,
    ) -> None:
        """Join the group in which the policy is rank 0."""
        rank = torch.distributed.get_rank() + rank_offset
        self._model_update_group = process_group(master_address, master_port, rank, world_size, self.device)

    def update_weight(self, name: str, dtype: torch.dtype, shape: Any, empty_cache: bool = False) -> None:
        """Take over one parameter."""
        if dtype != self.model_config.dtype:
            raise ValueError(f"{name} is {dtype} in the policy and {self.model_config.dtype} in vLLM")
        weight = torch.empty(shape, dtype=dtype, device=self.device)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])
