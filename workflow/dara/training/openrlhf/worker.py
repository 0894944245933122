"""`python -m dara.training.openrlhf.worker SETTINGS.json`: the process that runs OpenRLHF for one start of a run.

It replaces OpenRLHF's classes by ours, starts Ray and then OpenRLHF's own program with the run's command line.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from dara.files import write_atomically
from dara.orphan_guard import EXIT_CODE, POLL_SECONDS, is_alive
from dara.training.openrlhf import ray_node, versions
from dara.training.openrlhf.command import PROGRAM, command_line
from dara.training.openrlhf.extensions import build_directory, remove_stale_locks
from dara.training.openrlhf.settings import ERROR, Settings

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = {"cpu": 256 * 1024**2, "gpu": 16 * 1024**3}


class EngineArguments:
    """In place of OpenRLHF's rollout actor class: `options(...).remote(...)` with further arguments for vLLM.

    OpenRLHF has no flags for them.
    """

    def __init__(self, actor_class: Any, arguments: dict[str, Any]) -> None:
        self._actor_class, self._arguments = actor_class, arguments

    def options(self, **options: Any) -> EngineArguments:
        """As of a Ray actor class."""
        return EngineArguments(self._actor_class.options(**options), self._arguments)

    def remote(self, **arguments: Any) -> Any:
        """As of a Ray actor class."""
        return self._actor_class.remote(**{**arguments, **self._arguments})


def main(path: Path) -> None:
    """Run OpenRLHF. What a ValueError says, here or in a process of Ray, is written where the engine finds it."""
    settings = Settings.read(path)
    threading.Thread(target=end_with, args=(psutil.Process().parent(), settings.directory), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        run(settings)
    except Exception as error:
        cause = ray_node.root_cause(error)
        if isinstance(cause, ValueError):
            write_atomically(settings.output / ERROR, json.dumps({"message": str(cause)}) + "\n")
        raise


def run(settings: Settings) -> None:
    """Start Ray, replace OpenRLHF's classes, run OpenRLHF's program."""
    on_gpu, hook = settings.resources.gpus > 0, None
    check_hardware(settings)
    remove_stale_locks(build_directory())
    if not on_gpu:
        from dara.training.openrlhf import cpu

        hook = cpu.HOOK
        cpu.install()
    devices = max(settings.resources.gpus, 1)
    node = {"cpus": devices + 2, "gpus": devices, "address": settings.ray_address}
    store = OBJECT_STORE_BYTES["gpu" if on_gpu else "cpu"]
    with ray_node.session(
        settings.directory, **node, object_store_bytes=store, environment=environment_of(on_gpu), setup_hook=hook
    ):
        versions.check_names()
        install(settings, on_gpu)
        sys.argv = [PROGRAM[-1], *arguments_of(settings)]
        runpy.run_module(PROGRAM[-1], run_name="__main__", alter_sys=True)


def check_hardware(settings: Settings) -> None:
    """ValueError unless this machine has GPUs where the run asks for some, and none where it does not."""
    import torch

    here, asked = torch.cuda.device_count(), settings.resources.gpus
    if settings.ray_address is None and (here < asked or (asked == 0 and here)):
        raise ValueError(
            f"resources.gpus of {settings.spec.model.name} is {asked}, and this machine shows {here} GPU(s): correct "
            "config/models.yaml, or set CUDA_VISIBLE_DEVICES to what the run may use (empty for none)"
        )


def arguments_of(settings: Settings) -> list[str]:
    """The command line of a start."""
    return command_line(
        settings.spec,
        settings.resources,
        model=settings.model_dir,
        prompts=settings.prompts,
        reward_file=settings.reward_file,
        output=settings.output,
        resume=settings.done > 0,
    )


def environment_of(on_gpu: bool) -> dict[str, str]:
    """Environment variables of OpenRLHF's processes: no hub, no telemetry, and on a CPU what it takes there."""
    search = [str(Path(__file__).parents[3]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    common = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(search)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # ninja, for DeepSpeed
        "TORCH_EXTENSIONS_DIR": str(build_directory()),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "RAY_prestart_worker_first_driver": "0",  # each idle worker would import torch
        "RAY_memory_monitor_refresh_ms": "0",  # Ray would end this run for memory that others on the node use
        "RAY_worker_niceness": "0",  # Ray would let everything else on the node go first
    }
    if on_gpu:
        return common | {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN"}
    from dara.training.openrlhf import cpu

    return common | cpu.ENVIRONMENT


def install(settings: Settings, on_gpu: bool) -> None:
    """Put our classes where OpenRLHF's program takes its own from."""
    import openrlhf.trainer.ppo_trainer
    import openrlhf.trainer.ray.ppo_actor
    import openrlhf.trainer.ray.vllm_engine
    import openrlhf.utils
    import ray

    from dara.training.openrlhf.policy_actor import DaraPolicyActor
    from dara.training.openrlhf.rollouts import DaraRolloutActor
    from dara.training.openrlhf.strategy import strategy_of
    from dara.training.openrlhf.trainer import DaraTrainer

    openrlhf.utils.get_strategy = lambda arguments: strategy_of(arguments, settings)
    openrlhf.trainer.ppo_trainer.PPOTrainer = ray.remote(DaraTrainer)
    openrlhf.trainer.ray.ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(DaraPolicyActor)
    openrlhf.trainer.ray.vllm_engine.RolloutRayActor = EngineArguments(
        ray.remote(DaraRolloutActor), vllm_arguments(settings, on_gpu)
    )


def vllm_arguments(settings: Settings, on_gpu: bool) -> dict[str, Any]:
    """What vLLM gets besides OpenRLHF's arguments."""
    arguments = {"dtype": settings.spec.precision, "max_num_seqs": settings.resources.vllm_max_sequences}
    if on_gpu:
        return arguments
    from dara.training.openrlhf import cpu

    return arguments | cpu.VLLM_ARGUMENTS


def end_with(parent: psutil.Process, directory: Path) -> None:
    """Block while the engine's process lives; when it was killed, end everything of the run and this process."""
    while is_alive(parent):
        time.sleep(POLL_SECONDS)
    log.error("process %d, which started this one, is gone: stopping; the next start resumes", parent.pid)
    ray_node.stop(directory)
    os._exit(EXIT_CODE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    logging.shutdown()
    sys.stdout.flush()
    # Everything is closed, and Python's own end takes ten seconds with vLLM and torch loaded.
    os._exit(0)
