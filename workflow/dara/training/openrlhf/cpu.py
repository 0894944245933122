"""OpenRLHF on a machine without a GPU. Imported only there; what a GPU would do is not changed by anything here.

OpenRLHF imports flash_attn and calls a few functions of torch.cuda whatever the machine; it never needs them on a CPU.
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
    "worker_extension_cls": "dara.training.openrlhf.cpu_worker.CpuWorker",
    # A prompt in two chunks would draw a token for the first and discard it, but a generator on the CPU cannot go back.
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
    """What a DeepSpeed process needs besides, after `install`; a second call does nothing."""
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
        with mock.patch.object(torch.cuda, "current_device", return_value=0):  # it names its device cuda:<number>
            initialise(self, *args, **kwargs)
        self.target_device = torch.device("cpu")

    replay_buffer.NaiveReplayBuffer.__init__ = on_the_cpu


class GlooGroup:
    """Broadcasts weights from the policy to vLLM with gloo, in place of PyNcclCommunicator and with its methods."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, minutes: float = 10) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

        timeout = timedelta(minutes=minutes)
        # Kept: the group does not keep its store alive.
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
    """In place of OpenRLHF's `stateless_init_process_group`."""
    return GlooGroup(host, port, rank, world_size)


def _stub_flash_attn() -> None:
    """Modules with the names that OpenRLHF and transformers import; calling one is an error."""
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
