"""Adaptation of OpenRLHF to a machine without a GPU; imported only there, so runs on a GPU are not affected.

OpenRLHF imports flash_attn and calls a few functions of torch.cuda on every machine; on a CPU it never needs them.
Processes are adapted when they begin: all of them (`install`), DeepSpeed's (`install_training`), and vLLM's worker,
which asks for the class `CpuWorker` (`__getattr__`).
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from datetime import timedelta
from typing import Any
from unittest import mock

import torch

WEIGHTS_TIMEOUT = timedelta(minutes=10)


def install() -> None:
    """Make OpenRLHF importable and runnable in this process; Ray calls it first in each of its workers."""
    if importlib.util.find_spec("flash_attn") is None:
        _stub_flash_attn()
    device = torch.device("cpu")
    torch.cuda.current_device = lambda: device
    for name in ("set_device", "synchronize", "current_stream", "empty_cache"):
        setattr(torch.cuda, name, lambda *args: None)  # not one object, which torch would refuse under several names


def _stub_flash_attn() -> None:
    """Make modules with the names that OpenRLHF and transformers import; calling one is an error."""
    import einops

    def unavailable(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("flash_attn is not installed: packed samples and ring attention need a GPU")

    padding = dict.fromkeys(("index_first_axis", "pad_input", "unpad_input"), unavailable)
    modules = {
        "flash_attn": {"__path__": []},
        "flash_attn.bert_padding": {**padding, "rearrange": einops.rearrange},
        "flash_attn.utils": {"__path__": []},
        "flash_attn.utils.distributed": {"all_gather": unavailable},
    }
    for name, attributes in modules.items():
        sys.modules[name] = module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(attributes)


def install_training() -> None:
    """Adapt a DeepSpeed process, after `install`; a second call does nothing."""
    import openrlhf.trainer.ppo_utils.replay_buffer as replay_buffer
    import openrlhf.trainer.ray.ppo_actor as ppo_actor
    import openrlhf.utils.deepspeed.deepspeed as deepspeed

    if ppo_actor.stateless_init_process_group is GlooGroup:
        return
    mesh = deepspeed.init_device_mesh
    deepspeed.init_device_mesh = lambda device_type, *args, **kwargs: mesh("cpu", *args, **kwargs)
    ppo_actor.stateless_init_process_group = GlooGroup
    initialise = replay_buffer.NaiveReplayBuffer.__init__

    def on_the_cpu(self: Any, *args: Any, **kwargs: Any) -> None:
        with mock.patch.object(torch.cuda, "current_device", return_value=0):  # its device is named cuda:<number>
            initialise(self, *args, **kwargs)
        self.target_device = torch.device("cpu")

    replay_buffer.NaiveReplayBuffer.__init__ = on_the_cpu


class GlooGroup:
    """Broadcasts weights from the policy to vLLM with gloo, as the PyNcclCommunicator does that OpenRLHF would make."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, device: object) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

        # Kept, because the group does not keep its store alive.
        self._store = TCPStore(host, port, world_size, rank == 0, timeout=WEIGHTS_TIMEOUT, wait_for_workers=False)
        self._group = ProcessGroupGloo(PrefixStore("weights", self._store), rank, world_size, WEIGHTS_TIMEOUT)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        """Overwrite `tensor` by that of rank `src`."""
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        buffer = tensor.detach().contiguous()
        self._group.broadcast([buffer.view(-1).view(torch.uint8)], options).wait()
        if buffer.data_ptr() != tensor.data_ptr():
            tensor.copy_(buffer)


def __getattr__(name: str) -> type:
    """Return CpuWorker to vLLM, which requests it by name before it builds the model, and adapt vLLM then.

    No other process has vLLM's operators or should import them.
    """
    if name != "CpuWorker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dara.training.openrlhf.node import check_names

    check_names({"torch.cpu": "_is_amx_tile_supported", "vllm._custom_ops": "_supports_onednn"})
    import vllm._custom_ops

    # vLLM chooses its AMX attention without requesting AMX from the kernel, and is killed by SIGILL.
    torch.cpu._is_amx_tile_supported = lambda: False
    # Weights packed into oneDNN's format cannot be replaced; without packing, vLLM uses torch's linear layers.
    vllm._custom_ops._supports_onednn = False
    return _CpuWorker


class _CpuWorker:
    """Receives the policy's weights on a CPU; vLLM's worker inherits it, in place of OpenRLHF's WorkerWrap."""

    def init_process_group(
        self, master_address: str, master_port: int, rank_offset: int, world_size: int, *group: Any, **options: Any
    ) -> None:
        """Join the group in which the policy is rank 0."""
        rank = torch.distributed.get_rank() + rank_offset
        self._model_update_group = GlooGroup(master_address, master_port, rank, world_size, self.device)

    def update_weight(self, name: str, dtype: torch.dtype, shape: Any, empty_cache: bool = False) -> None:
        """Receive one parameter."""
        if dtype != self.model_config.dtype:
            raise ValueError(f"{name} is {dtype} in the policy and {self.model_config.dtype} in vLLM")
        weight = torch.empty(shape, dtype=dtype, device=self.device)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])
