"""OpenRLHF 0.11.2's command line for a run, the settings for which it has no flag, and the states to resume from.

Every flag that depends on a method, an experiment or the hardware is set here only. `Settings` passes the rest to the
processes of a run: the method and its filter, the seed of the sampler, float32, vLLM's number of sequences.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from dara.config import Resources
from dara.files import remove, write_atomically
from dara.runs import run_id
from dara.specs import Model, RunSpec
from dara.training.run import checkpoints

PROGRAM = ("python", "-m", "openrlhf.cli.train_ppo_ray")
PROMPTS = "prompts.jsonl"
REWARD_FILE = "reward.py"
SETTINGS = "settings.json"
OUTCOME = "outcome.json"
PROGRESS = "progress.log"
STATES = "_actor"
"""Directory of DeepSpeed's states in OpenRLHF, below `output_of` a run."""
MARKER = "trainer_state.json"
"""File in a step_<N> that has a complete state; one of run.RESUME_ONLY, so only the newest step_<N> has it."""
LAPTOP_PROMPT_TOKENS = 128
"""Maximal prompt length of the generated tasks (at most about 60 tokens are used); public data has its own limit."""

Flags = dict[str, object]
"""Flag -> its value; a tuple gives several values, None is a flag without a value."""


class Settings(Model):
    """The settings of one start of a run, as one JSON file for its processes; no environment variables are used."""

    spec: RunSpec
    resources: Resources
    directory: Path  # directory of the run: checkpoints, metrics
    model_dir: Path
    methods_dir: Path | None
    done: int  # completed steps
    started: float  # time.time() at the start of the process's work
    trackers: tuple[str, ...] = ()
    ray_address: str | None = None
    minutes: float | None = None  # time limit of the job; None if none is enforced
    keep_advantages: bool = False  # write the inputs of the loss, for a test

    @property
    def output(self) -> Path:
        """Return the directory of OpenRLHF's own files, and of those that its processes exchange."""
        return output_of(self.directory)

    @property
    def on_gpu(self) -> bool:
        """Return whether the run has GPUs; without one, OpenRLHF is adapted to the CPU."""
        return self.resources.gpus > 0

    @property
    def devices(self) -> int:
        """Return the number of the policy's ranks: GPUs, or one process on the CPU."""
        return max(self.resources.gpus, 1)


def output_of(directory: Path) -> Path:
    """Return the directory of OpenRLHF's own files of a run."""
    return directory / "openrlhf"


def state_tag(step: int) -> str:
    """Return OpenRLHF's name of a step."""
    return f"global_step{step}"


def last_resumable(directory: Path) -> int:
    """Return the newest step to resume from, with complete checkpoint and state; 0 if there is none."""
    states, complete = output_of(directory) / STATES, checkpoints(directory).items()
    return max(
        (step for step, path in complete if (path / MARKER).is_file() and (states / state_tag(step)).is_dir()),
        default=0,
    )


def remove_other_states(output: Path, step: int) -> None:
    """Delete DeepSpeed's states of all steps but `step`."""
    for path in (output / STATES).glob("global_step*"):
        if path.name != state_tag(step):
            remove(path)


def prepare_output(output: Path, step: int) -> None:
    """Reduce an interrupted start's output to the state of `step`, and make that state the latest.

    A start may have been killed between writing a state and completing its checkpoint; DeepSpeed would load that state.
    """
    if step == 0:
        remove(output)
    output.mkdir(parents=True, exist_ok=True)
    if step:
        for path in output.iterdir():
            if path.name != STATES and not path.name.startswith("advantages_"):
                remove(path)
        remove_other_states(output, step)
        write_atomically(output / STATES / "latest", state_tag(step))


def command_line(spec: RunSpec, resources: Resources, *, model: Path, output: Path, resume: bool = False) -> list[str]:
    """Return the arguments of OpenRLHF's `train_ppo_ray`: flags and values, without the program.

    resources: the run's hardware; `gpus` 0 gives the flags of a machine without a GPU. model: directory of the base
    model in Hugging Face form. output: directory of OpenRLHF's own checkpoints. The prompts are there (prompts.jsonl,
    with the keys `input`, the rendered prompt, and `label`), and reward.py, with the class `AgentExecutor` that
    generates a response and scores it. resume: continue from the last complete checkpoint.

    Raises ValueError if the run is for another engine, or its batches cannot be divided among the GPUs.
    """
    check_resources(spec, resources)
    prompt_tokens = getattr(spec.data, "max_prompt_tokens", LAPTOP_PROMPT_TOKENS)
    flags: Flags = {
        "--actor.model_name_or_path": model,
        "--data.prompt_dataset": output / PROMPTS,
        "--data.input_key": "input",  # already rendered: no chat template, no input template
        "--data.label_key": "label",
        # Prompt and response together; also vLLM's context.
        "--data.max_len": prompt_tokens + spec.sampling.max_response_tokens,
        # Groups that are trained on; a filter draws its candidates around this number.
        "--rollout.batch_size": spec.prompts_per_step,
        "--rollout.n_samples_per_prompt": spec.group_size,
        "--rollout.max_new_tokens": spec.sampling.max_response_tokens,
        "--rollout.temperature": spec.sampling.temperature,
        "--rollout.top_p": spec.sampling.top_p,
        "--train.agent_func_path": output / REWARD_FILE,
        **_update(spec),
        **_kl(spec),
        **_hardware(spec, resources),
        "--ckpt.path": output,
        "--ckpt.output_dir": output / "final",
        "--ckpt.save_steps": spec.checkpoint_every,
        "--ckpt.save_hf": None,
        # OpenRLHF deletes before it writes: with 1 there would briefly be no complete optimiser state.
        "--ckpt.max_num": 2,
        "--ckpt.best_metric_key": "none",  # no checkpoint is chosen by its scores
        **({"--ckpt.load_enable": None} if resume else {}),
        "--logger.logging_steps": 1,
    }
    arguments: list[str] = []
    for flag, value in flags.items():
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        arguments += [flag, *(str(one) for one in values)]
    return arguments


def command_text(spec: RunSpec, resources: Resources, *, model: Path, output: Path) -> str:
    """Return the command line for people: the program, then one flag with its values per line, quoted for a shell."""
    arguments = command_line(spec, resources, model=model, output=output)
    words = [f" \\\n  {one}" if one.startswith("--") else f" {shlex.quote(one)}" for one in arguments]
    return shlex.join(PROGRAM) + "".join(words) + "\n"


def responses_per_update(spec: RunSpec) -> int:
    """Return the number of responses in an optimiser update; it consists of whole groups."""
    return spec.prompts_per_step // spec.optimizer.updates_per_step * spec.group_size


def check_resources(spec: RunSpec, resources: Resources) -> None:
    """Raise ValueError if the run is for another engine, or these GPUs cannot train it."""
    if spec.engine != "openrlhf":
        raise ValueError(f"run {run_id(spec)} is for engine {spec.engine}; OpenRLHF trains runs with engine: openrlhf")
    gpus, shared = resources.gpus, resources.tensor_parallel
    if not gpus:
        return
    if spec.precision == "float32":
        raise ValueError(
            f"run {run_id(spec)}: precision float32 is for machines without a GPU; set precision: bfloat16"
        )
    if gpus % shared:
        where = f"config/models.yaml: {spec.model.name}.resources"
        raise ValueError(f"{where}: gpus {gpus} must be a multiple of tensor_parallel {shared}")
    if responses_per_update(spec) % gpus:
        raise ValueError(
            f"config/models.yaml: {spec.model.name}.resources.gpus: the {responses_per_update(spec)} responses of an "
            f"update cannot be divided among {gpus} GPUs"
        )


def _update(spec: RunSpec) -> Flags:
    """Return the flags of the updates: optimiser, loss and advantages."""
    optimizer = spec.optimizer
    return {
        "--train.seed": spec.seed,
        # OpenRLHF has no number of steps: the trainer ends the one episode after spec.steps rollout batches.
        "--train.num_episodes": 1,
        "--train.max_epochs": 1,  # each response is used in one update
        "--train.batch_size": responses_per_update(spec),
        "--actor.optim": "adam",
        "--actor.adam.lr": optimizer.learning_rate,
        "--actor.adam.betas": optimizer.betas,
        "--actor.adam.eps": 1e-8,  # PyTorch's default, which both of the authors' stacks keep
        "--actor.adam.weight_decay": optimizer.weight_decay,
        "--actor.max_norm": optimizer.max_grad_norm,
        # OpenRLHF's default is a cosine with 3 % warm-up.
        "--actor.lr_scheduler": "constant",
        "--actor.lr_warmup_ratio": 0.0,
        "--actor.policy_loss_type": "ppo",
        "--actor.loss_agg_mode": "token-mean",  # over all tokens of an update, on all GPUs
        "--actor.eps_clip_low_high": (optimizer.clip_low, optimizer.clip_high),
        **({} if optimizer.dual_clip is None else {"--actor.dual_clip": optimizer.dual_clip}),
        # Set even if it is 0, because it enables the entropy metric.
        "--actor.entropy_coef": spec.entropy_coefficient,
        # OpenRLHF uses it for the batch's form (groups, no critic); the run's method makes the advantages.
        "--algo.advantage.estimator": "group_norm",
        # The old log-probabilities are the trainer's own, not vLLM's, as in the authors' code.
        "--algo.advantage.is_correction_level": "off",
    }


def _kl(spec: RunSpec) -> Flags:
    """Return the flags of the KL. `k2` in the loss is half the squared log-ratio, called `mse` in the authors' code."""
    kl = spec.kl
    # A KL that only GRPO uses needs no reference model in the runs of the other methods.
    felt = kl.placement in ("loss", "reward") or (kl.placement == "reward_grpo" and spec.method.name == "grpo")
    if not felt:
        return {"--algo.kl.init_coef": 0.0}  # 0: no reference model (OpenRLHF's default has one)
    flags: Flags = {"--algo.kl.init_coef": kl.coefficient, "--algo.kl.estimator": kl.estimator}
    return flags | ({"--algo.kl.use_loss": None} if kl.placement == "loss" else {})


def _hardware(spec: RunSpec, resources: Resources) -> Flags:
    """Return the flags by which policy, reference model and vLLM take turns on the same GPUs (CPU: one Ray token)."""
    gpus, devices = resources.gpus, max(resources.gpus, 1)
    placement: Flags = {
        "--train.colocate_all": None,
        "--actor.num_nodes": 1,
        "--actor.num_gpus_per_node": devices,
        "--ref.num_nodes": 1,
        "--ref.num_gpus_per_node": devices,
        "--vllm.num_engines": gpus // resources.tensor_parallel if gpus else 1,
        "--vllm.tensor_parallel_size": resources.tensor_parallel if gpus else 1,
    }
    if not gpus:  # no sharding, no packing (flash-attn is CUDA only) and no sleep mode
        return {
            **placement,
            **({"--ds.param_dtype": "bf16"} if spec.precision == "bfloat16" else {}),  # there is no name for float32
            "--ds.zero_stage": 2,
            "--ds.attn_implementation": "sdpa",
            "--train.micro_batch_size": responses_per_update(spec),
            "--rollout.micro_batch_size": responses_per_update(spec),
            "--vllm.gpu_memory_utilization": 0.2,  # share of main memory, which vLLM checks before it starts
            "--vllm.enforce_eager": None,
            "--vllm.sync_backend": "gloo",
        }
    return {
        **placement,
        "--ds.param_dtype": "bf16",  # of the weights that compute; the optimiser's are float32
        # Weights, gradients and optimiser state in shards, as the authors' FSDP; a lower stage keeps the reference
        # model on the GPU in spite of --ref.offload.
        "--ds.zero_stage": 3,
        # An update adds up many micro-batches.
        "--ds.grad_accum_dtype": "fp32",
        "--ds.attn_implementation": "flash_attention_2",
        "--ds.packing_samples": None,  # no padding is computed
        "--actor.gradient_checkpointing_enable": None,
        # Micro-batches by tokens. The two sizes in responses are not used then, but OpenRLHF checks them.
        "--train.dynamic_batch_enable": None,
        "--train.max_tokens_per_gpu": resources.tokens_per_gpu,
        "--rollout.max_tokens_per_gpu": resources.tokens_per_gpu,
        "--train.micro_batch_size": 1,
        "--rollout.micro_batch_size": 1,
        "--vllm.gpu_memory_utilization": resources.vllm_memory,
        # A model that is not in use leaves the GPU.
        "--vllm.enable_sleep": None,
        "--ds.enable_sleep": None,
        "--ref.offload": None,
        "--vllm.sync_backend": "nccl",
    }
