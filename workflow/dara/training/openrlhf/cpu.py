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

ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",  # the laptop's models are too small to share among threads; one run a core instead
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
VLLM_ARGUMENTS = {
    "worker_extension_cls": "dara.training.openrlhf.cpu.CpuWorker",
    # A prompt in two chunks would draw a token for the first and discard it, but a CPU generator cannot be rewound.
    "enable_chunked_prefill": False,
}
HOOK = "dara.training.openrlhf.cpu.install"


def install() -> None:
    """Make OpenRLHF importable and runnable in this process; Ray calls it first in each of its workers."""
    if importlib.util.find_spec("flash_attn") is None:
        _stub_flash_attn()
    device = torch.device("cpu")
    torch.cuda.current_device = lambda: device
    torch.cuda.set_device = lambda *args: None
    torch.cuda.synchronize = lambda *args: None
    torch.cuda.empty_cache = lambda: None
    torch.cuda.current_stream = lambda *args: None


def install_training() -> None:
    """Adapt a DeepSpeed process, after `install`; a second call does nothing."""
    import openrlhf.trainer.ppo_utils.replay_buffer as replay_buffer
    import openrlhf.trainer.ray.ppo_actor as ppo_actor
    import openrlhf.utils.deepspeed.deepspeed as deepspeed

    if ppo_actor.stateless_init_process_group is process_group:
        return
    mesh = deepspeed.init_device_mesh
    deepspeed.init_device_mesh = lambda device_type, *args, **kwargs: mesh("cpu", *args, **kwargs)
    ppo_actor.stateless_init_process_group = process_group
    initialise = replay_buffer.NaiveReplayBuffer.__init__

    def on_the_cpu(self: Any, *args: Any, **kwargs: Any) -> None:
        with mock.patch.object(
            torch.cuda, "current_device", return_value=0
        ):  # the buffer names its device cuda:<number>
            initialise(self, *args, **kwargs)
        self.target_device = torch.device("cpu")

    replay_buffer.NaiveReplayBuffer.__init__ = on_the_cpu


class GlooGroup:
    """Broadcasts weights from the policy to vLLM with gloo, in place of PyNcclCommunicator and with its methods."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, minutes: float = 10) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

        timeout = timedelta(minutes=minutes)
        # Kept, because the group does not keep its store alive.
        self._store = TCPStore(host, port, world_size, rank == 0, timeout=timeout, wait_for_workers=False)
        self._group = ProcessGroupGloo(PrefixStore("weights", self._store), rank, world_size, timeout)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        """Overwrite `tensor` by that of rank `src`."""
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        buffer = tensor.detach().contiguous()
        self._group.broadcast([buffer.view(-1).view(torch.uint8)], options).wait()
        if buffer.data_ptr() != tensor.data_ptr():
            tensor.copy_(buffer)


def process_group(host: str, port: int, rank: int, world_size: int, device: object) -> GlooGroup:
    """Return the group for the weights, in place of OpenRLHF's `stateless_init_process_group`."""
    return GlooGroup(host, port, rank, world_size)


def __getattr__(name: str) -> type:
    """Return CpuWorker to vLLM, which requests it by name before it builds the model, and adapt vLLM then.

    No other process has vLLM's operators or should import them.
    """
    if name != "CpuWorker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dara.training.openrlhf.node import check_names

    check_names({"torch.cpu": ("_is_amx_tile_supported",), "vllm._custom_ops": ("_supports_onednn",)})
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
        self._model_update_group = process_group(master_address, master_port, rank, world_size, self.device)

    def update_weight(self, name: str, dtype: torch.dtype, shape: Any, empty_cache: bool = False) -> None:
        """Receive one parameter."""
        if dtype != self.model_config.dtype:
            raise ValueError(f"{name} is {dtype} in the policy and {self.model_config.dtype} in vLLM")
        weight = torch.empty(shape, dtype=dtype, device=self.device)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])


def _stub_flash_attn() -> None:
    """Make modules with the names that OpenRLHF and transformers import; calling one is an error."""
    import einops

    def unavailable(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("flash_attn is not installed: packed samples and ring attention need a GPU")

    package = _module("flash_attn")
    package.__path__ = []
    names = dict.fromkeys(("index_first_axis", "pad_input", "unpad_input"), unavailable)
    _module("flash_attn.bert_padding", **names, rearrange=einops.rearrange)
    _module("flash_attn.utils").__path__ = []
    _module("flash_attn.utils.distributed", all_gather=unavailable)


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(attributes)
    sys.modules[name] = module
    return module
