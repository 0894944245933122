"""The OpenRLHF engine: trains a run with OpenRLHF in a child process with its own Ray.

`train` runs in the job's process. The child is `python -m dara.training.openrlhf.launch SETTINGS.json`: it replaces
classes of OpenRLHF, starts Ray and then OpenRLHF's own program with the run's command line.

A checkpoint has two parts: step_<N>, the model, and DeepSpeed's state, without which a run cannot resume. OpenRLHF
writes the state of step N to `<output>/_actor/global_step<N>`; `latest` there names the state that DeepSpeed loads.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from dara.config import Resources
from dara.files import write_atomically
from dara.orphan_guard import EXIT_CODE, POLL_SECONDS, is_alive
from dara.specs import RunSpec
from dara.training import run_files
from dara.training.openrlhf import node
from dara.training.openrlhf.command import PROGRAM, PROMPTS, REWARD_FILE, Settings, command_line
from dara.training.openrlhf.states import OUTCOME, PROGRESS, last_resumable, prepare_output
from dara.training.run import ResumePoint, RunInputs, train_run
from dara.training.run_files import RunRecord
from dara.training.stopping import Divergence, OutOfTime

log = logging.getLogger(__name__)

LIBRARIES = ("torch", "transformers", "openrlhf", "ray", "deepspeed", "numpy")
LOG = "openrlhf.log"
LOG_BYTES = 10_000_000  # of the output of earlier starts, kept when a run is resumed
RELAY_SECONDS = 0.2
LAST_LINES = 15  # of the log, shown when OpenRLHF fails
OBJECT_STORE_BYTES = {"cpu": 256 * 1024**2, "gpu": 16 * 1024**3}
ERROR = "error.json"
"""File below `output_of` a run with the message of a ValueError that ended OpenRLHF; see `main` and `failure`."""
REWARD_CODE = '''"""The rewards of this run. OpenRLHF loads the class from here (--train.agent_func_path)."""

from dara.training.openrlhf.executor import RewardExecutor


class AgentExecutor(RewardExecutor):
    task = {task!r}
    rewards = {rewards!r}
    reward_params = {reward_params!r}
    reward_functions = {reward_functions!r}
    own_files = {own_files!r}
'''


# --- in the job's process ---------------------------------------------------------------------------------------------


def train(
    spec: RunSpec,
    inputs: RunInputs,
    *,
    resources: Resources,
    ray_address: str | None = None,
    keep_advantages: bool = False,
) -> None:
    """Train the run of `spec` with OpenRLHF and publish it; see `run.train_run`.

    resources: the GPUs; none means the CPU adaptation. ray_address: "host:port" of a Ray cluster to use instead of a
    separate one. keep_advantages: also write the inputs of the updates to
    `<scratch>/<run_id>/openrlhf/advantages_<step>_<rank>.npz`.

    OpenRLHF's output is in `<scratch>/<run_id>/openrlhf.log`. Raises ValueError as `run.train_run` does, for a version
    of OpenRLHF that is not the tested one and for too little disk; ChildProcessError if OpenRLHF fails.
    """
    node.check_version()
    run_files.check_trackers(inputs.trackers)
    options = {"resources": resources, "ray_address": ray_address, "keep_advantages": keep_advantages}
    train_run(
        spec,
        partial(train_steps, options=options),
        inputs,
        libraries=(*LIBRARIES, node.vllm_package()),
        last_resumable=last_resumable,
        guard=node.guarded,
    )


def train_steps(point: ResumePoint, options: dict[str, Any]) -> tuple[RunRecord, Divergence | None]:
    """Train to the last step; see `run.TrainSteps`. options: fields of Settings."""
    settings = prepare(point, options)
    run_openrlhf(settings)
    outcome = json.loads((settings.output / OUTCOME).read_bytes())
    if outcome["out_of_time"]:
        raise OutOfTime(outcome["out_of_time"])
    diverged = Divergence(**outcome["divergence"]) if outcome["divergence"] else None
    return run_files.load(point.directory, diverged.step - 1 if diverged else point.spec.steps), diverged


def prepare(point: ResumePoint, options: dict[str, Any]) -> Settings:
    """Check the disk and write the input files of OpenRLHF's processes."""
    spec, inputs, done = point.spec, point.inputs, point.record.steps
    settings = Settings(
        spec=spec,
        directory=point.directory.resolve(),
        model_dir=inputs.model_dir.resolve(),
        methods_dir=inputs.methods_dir.resolve() if inputs.methods_dir else None,
        done=done,
        started=time.time() - (time.monotonic() - point.started),
        trackers=inputs.trackers,
        minutes=inputs.deadline.minutes if inputs.deadline else None,
        **options,
    )
    prepare_output(settings.output, done)
    node.check_disk(spec, inputs.model_dir, settings.directory, done)
    prompt_file(point.rows, settings.output / PROMPTS)
    write_reward_file(settings.output, spec, settings.methods_dir)
    settings.write()
    return settings


def prompt_file(rows: Iterable[Mapping[str, str]], path: Path) -> None:
    """Write OpenRLHF's prompt data set: one JSON line per row, in the order of `rows`, with `input` and `label`.

    rows: {"id", "prompt", "reference"}, each once. The file has neither the order of the prompts in a run nor the
    number of steps: the run's loader determines them.
    """
    lines = [
        {"input": row["prompt"], "label": json.dumps({"id": row["id"], "reference": row["reference"]})} for row in rows
    ]
    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def write_reward_file(output: Path, spec: RunSpec, own_files: Path | None = None) -> None:
    """Write the file from which OpenRLHF loads a run's rewards. own_files: base directory of a user's files."""
    code = REWARD_CODE.format(
        task=spec.task,
        rewards=spec.rewards,
        reward_params=spec.reward_params,
        reward_functions={name: one.function for name, one in spec.reward_functions.items()},
        own_files=str(own_files.resolve()) if own_files else None,
    )
    write_atomically(output / REWARD_FILE, code)


def run_openrlhf(settings: Settings) -> None:
    """Run OpenRLHF once, to its end. Its progress lines are logged here, all other output goes into its log.

    Raises ValueError for an error of a reward, a filter or a check in one of its processes, ChildProcessError for any
    other failure.
    """
    environment = node.child_environment(settings.directory) | environment_of(settings.on_gpu)
    command = [sys.executable, "-m", "dara.training.openrlhf.launch", str(settings.output / "settings.json")]
    progress = 0
    keep_end(settings.directory / LOG, LOG_BYTES)
    with (settings.directory / LOG).open("ab") as file:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt from the terminal reaches this process only
        )
        try:
            while process.poll() is None:
                time.sleep(RELAY_SECONDS)
                progress = relay(settings.output / PROGRESS, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                node.stop(settings.directory)
            process.wait()
    relay(settings.output / PROGRESS, progress)
    if process.returncode:
        raise failure(settings, process.returncode)


def keep_end(path: Path, size: int) -> None:
    """Truncate a log to the whole lines in its last `size` bytes; leave an absent or shorter one unchanged."""
    if not path.is_file() or path.stat().st_size <= size:
        return
    with path.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        end = file.read()
    write_atomically(path, end[end.find(b"\n") + 1 :])


def relay(path: Path, offset: int) -> int:
    """Log the complete lines of `path` after `offset` bytes; return the offset after them."""
    if not path.is_file():
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        text, _, _ = file.read().rpartition(b"\n")
    for line in text.decode("utf-8").splitlines():
        log.info("%s", line)
    return offset + len(text) + 1 if text else offset


def failure(settings: Settings, code: int) -> Exception:
    """Return why OpenRLHF ended with this exit code, as an exception to raise."""
    path = settings.output / ERROR
    if path.is_file():
        return ValueError(json.loads(path.read_bytes())["message"])
    log_file = settings.directory / LOG
    last = "\n".join(log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:])
    return ChildProcessError(f"OpenRLHF ended with exit code {code}; the end of {log_file}:\n{last}")


# --- checkpoints ------------------------------------------------------------------------------------------------------


# --- in the child process ---------------------------------------------------------------------------------------------


class EngineArguments:
    """Replacement for OpenRLHF's rollout actor class: `options(...).remote(...)` with further vLLM arguments.

    OpenRLHF has no flags for them.
    """

    def __init__(self, actor_class: Any, arguments: dict[str, Any]) -> None:
        self._actor_class, self._arguments = actor_class, arguments

    def options(self, **options: Any) -> EngineArguments:
        """Return the class with these options, as a Ray actor class does."""
        return EngineArguments(self._actor_class.options(**options), self._arguments)

    def remote(self, **arguments: Any) -> Any:
        """Start the actor, as a Ray actor class does."""
        return self._actor_class.remote(**{**arguments, **self._arguments})


def main(path: Path) -> None:
    """Run OpenRLHF. The message of a ValueError, here or in a process of Ray, is written where the engine finds it."""
    settings = Settings.read(path)
    threading.Thread(target=end_with, args=(psutil.Process().parent(), settings.directory), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        run(settings)
    except Exception as error:
        cause = node.root_cause(error)
        if isinstance(cause, ValueError):
            write_atomically(settings.output / ERROR, json.dumps({"message": str(cause)}) + "\n")
        raise


def run(settings: Settings) -> None:
    """Start Ray, replace OpenRLHF's classes, run OpenRLHF's program."""
    on_gpu, hook = settings.on_gpu, None
    check_hardware(settings)
    node.remove_stale_locks(node.build_directory())
    if not on_gpu:
        from dara.training.openrlhf import cpu

        hook = cpu.HOOK
        cpu.install()
    devices = max(settings.resources.gpus, 1)
    with node.session(
        settings.directory,
        cpus=devices + 2,
        gpus=devices,
        object_store_bytes=OBJECT_STORE_BYTES["gpu" if on_gpu else "cpu"],
        environment=environment_of(on_gpu),
        setup_hook=hook,
        address=settings.ray_address,
    ):
        node.check_names()
        install(settings)
        where = {"model": settings.model_dir, "output": settings.output, "resume": settings.done > 0}
        sys.argv = [PROGRAM[-1], *command_line(settings.spec, settings.resources, **where)]
        runpy.run_module(PROGRAM[-1], run_name="__main__", alter_sys=True)


def check_hardware(settings: Settings) -> None:
    """Raise ValueError unless this machine has GPUs if the run needs some, and has none if it does not."""
    import torch

    here, asked = torch.cuda.device_count(), settings.resources.gpus
    if settings.ray_address is None and (here < asked or (asked == 0 and here)):
        raise ValueError(
            f"resources.gpus of {settings.spec.model.name} is {asked}, and this machine shows {here} GPU(s): correct "
            "config/models.yaml, or set CUDA_VISIBLE_DEVICES to what the run may use (empty for none)"
        )


def environment_of(on_gpu: bool) -> dict[str, str]:
    """Return environment variables of OpenRLHF's processes: no hub, no telemetry, and the CPU's settings."""
    search = [str(Path(__file__).parents[3]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    common = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(search)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # ninja, for DeepSpeed
        "TORCH_EXTENSIONS_DIR": str(node.build_directory()),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "RAY_prestart_worker_first_driver": "0",  # each idle worker would import torch
        "RAY_memory_monitor_refresh_ms": "0",  # Ray would end this run because of other jobs' memory on the node
        "RAY_worker_niceness": "0",  # Ray would give everything else on the node priority
    }
    if on_gpu:
        return common | {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN"}
    from dara.training.openrlhf import cpu

    return common | cpu.ENVIRONMENT


def install(settings: Settings) -> None:
    """Replace OpenRLHF's classes, where its program looks them up, by those of this package."""
    import openrlhf.trainer.ppo_trainer
    import openrlhf.trainer.ray.ppo_actor
    import openrlhf.trainer.ray.vllm_engine
    import openrlhf.utils
    import ray

    from dara.training.openrlhf.actor import DaraPolicyActor, strategy_of
    from dara.training.openrlhf.executor import DaraRolloutActor
    from dara.training.openrlhf.trainer import DaraTrainer

    openrlhf.utils.get_strategy = lambda arguments: strategy_of(arguments, settings)
    openrlhf.trainer.ppo_trainer.PPOTrainer = ray.remote(DaraTrainer)
    openrlhf.trainer.ray.ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(DaraPolicyActor)
    openrlhf.trainer.ray.vllm_engine.RolloutRayActor = EngineArguments(
        ray.remote(DaraRolloutActor), vllm_arguments(settings)
    )


def vllm_arguments(settings: Settings) -> dict[str, Any]:
    """Return vLLM's arguments besides OpenRLHF's."""
    arguments = {"dtype": settings.spec.precision, "max_num_seqs": settings.resources.vllm_max_sequences}
    if settings.on_gpu:
        return arguments
    from dara.training.openrlhf import cpu

    return arguments | cpu.VLLM_ARGUMENTS


def end_with(parent: psutil.Process, directory: Path) -> None:
    """Block while the engine's process lives; if it was killed, end all processes of the run and this one."""
    while is_alive(parent):
        time.sleep(POLL_SECONDS)
    log.error("process %d, which started this one, is gone: stopping; the next start resumes", parent.pid)
    node.stop(directory)
    os._exit(EXIT_CODE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    logging.shutdown()
    sys.stdout.flush()
    # Everything is closed, and Python's regular exit takes ten seconds with vLLM and torch loaded.
    os._exit(0)
