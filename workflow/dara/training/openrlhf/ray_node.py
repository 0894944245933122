"""Ray for one run on a node that others use too: its own ports and temporary directory, and nothing left running.

The process that runs OpenRLHF carries a mark in its environment (`child_environment`), and so does everything that it
starts. The mark is the run's working directory, so the next start of a killed run finds what that one left behind. By
option the run uses an existing Ray cluster instead; its own processes are never touched.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from dara.orphan_guard import is_alive

log = logging.getLogger(__name__)

MARK = "DARA_RAY_RUN"
OF_ANOTHER_RAY = ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_NAMESPACE", "RAY_REDIS_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR")
OWN_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "SPT_NOENV": "1",  # Ray's processes rename themselves, and would overwrite the environment that holds the mark
}
LONGEST_DIRECTORY = 40  # characters: a Unix socket's path has at most 107, and Ray adds 65
TERM_SECONDS = 10.0
KILL_SECONDS = 5.0
POLL_SECONDS = 0.1
CONNECT_SECONDS = 10.0


def child_environment(directory: Path) -> dict[str, str]:
    """Environment of the process that runs OpenRLHF: this one's without settings of another Ray, and with the mark."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_RAY}
    return {**kept, **OWN_SETTINGS, MARK: _mark(directory)}


@contextmanager
def session(
    directory: Path,
    *,
    cpus: int,
    gpus: int,
    object_store_bytes: int,
    environment: Mapping[str, str],
    setup_hook: str | None = None,
    address: str | None = None,
) -> Iterator[None]:
    """Ray in the body of the `with`, to be used in a process that has `child_environment(directory)`.

    directory: the run's working directory. cpus, gpus: what Ray may hand out (logical numbers). environment: variables
    of Ray's workers. setup_hook: "package.module.function" that each worker calls first. address: "host:port" of an
    existing cluster that this node belongs to; its cpus, gpus and object store are what they are.

    Raises ValueError if there is no cluster at `address`.
    """
    import ray

    runtime: dict[str, Any] = {"env_vars": {**environment, **OWN_SETTINGS, MARK: _mark(directory)}}
    if setup_hook:
        runtime["worker_process_setup_hook"] = setup_hook
    if address is None:
        where: dict[str, Any] = {
            "address": "local",  # a new one, on free ports, whatever runs here already
            "num_cpus": cpus,
            "num_gpus": gpus,
            "object_store_memory": object_store_bytes,
            "include_dashboard": False,
            "_temp_dir": str(temporary_directory(directory)),
        }
    else:
        check_address(address)
        where = {"address": address}
    ray.init(**where, runtime_env=runtime, logging_level=logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """ValueError unless `address` is host:port and something listens there: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise ValueError(f"ray_address is {address!r}; it must be host:port of the cluster's head, as `ray start` says")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ValueError(f"ray_address {address}: nothing answers there from this node ({error})") from error


def temporary_directory(directory: Path) -> Path:
    """Ray's temporary directory of a run, the same at each start; ValueError where no short enough one is possible."""
    name = f"dara-{hashlib.sha256(_mark(directory).encode()).hexdigest()[:10]}"
    for parent in (tempfile.gettempdir(), "/tmp"):
        path = Path(parent) / name
        if len(str(path)) <= LONGEST_DIRECTORY and os.access(parent, os.W_OK):
            return path
    raise ValueError(
        f"Ray needs a temporary directory with a path of at most {LONGEST_DIRECTORY - len(name) - 1} characters: "
        f"{tempfile.gettempdir()} is longer, and /tmp cannot be written; set TMPDIR to a shorter one"
    )


def leftovers(directory: Path) -> list[psutil.Process]:
    """Living processes that a start of this run left: those with its mark, and those that they started.

    Never this process or one that it descends from.
    """
    mark, own = _mark(directory), {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if process.pid not in own and _environment(process).get(MARK) == mark:
            found |= {one.pid: one for one in [process, *_descendants(process)]}
    return [process for pid, process in found.items() if pid not in own and is_alive(process)]


def stop(directory: Path) -> int:
    """End the run's processes (SIGTERM, then SIGKILL) and remove Ray's temporary directory; how many there were."""
    processes = leftovers(directory)
    ended = len(processes)
    if processes:
        _signal(processes, signal.SIGTERM)
        _wait(processes, TERM_SECONDS)
    rest = leftovers(directory)  # those that did not end, and any that were started meanwhile
    if rest:
        log.warning("%d process(es) of %s did not end by themselves: killed", len(rest), directory)
        _signal(rest, signal.SIGKILL)
        _wait(rest, KILL_SECONDS)
    shutil.rmtree(temporary_directory(directory), ignore_errors=True)
    return ended


@contextmanager
def guarded(directory: Path) -> Iterator[None]:
    """Nothing of the run's Ray is alive before the body, nor after it: at its end, an exception, or a signal.

    SIGTERM and SIGHUP raise SystemExit (128 + the signal's number) in the body, unless SIGHUP is ignored (nohup).
    Only the end of this very process by SIGKILL escapes; then the next start cleans up.
    """
    stop(directory)
    try:
        with _signals_raise():
            yield
    finally:
        stop(directory)


@contextmanager
def _signals_raise() -> Iterator[None]:
    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the cleaning up
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can have handlers, and it has its own
        return
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def root_cause(error: BaseException) -> BaseException:
    """The exception that a worker raised, where `error` is Ray's wrapping of it (of any depth); else `error`."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause
    return error


def _mark(directory: Path) -> str:
    return str(directory.resolve())


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, a zombie, or another user's
        return {}


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    """Until none of them lives, or for `seconds`. It takes no child's exit code away from who started it."""
    end = time.monotonic() + seconds
    while any(is_alive(process) for process in processes) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
