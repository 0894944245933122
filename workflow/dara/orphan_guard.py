"""Stops a job when its parent is gone, so that a killed Snakemake leaves no orphan that blocks the rerun."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from dara.system import name_user

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
WORKFLOW = "DARA_WORKFLOW"
"""Environment variable by which a workflow identifies itself to its jobs. Needed in addition to the ancestors: if
Snakemake is killed in the second in which a job starts, the job's shell lives on, waiting for the job."""
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: the run itself has no error, it resumes at the next start


def is_snakemake(command: Sequence[str]) -> bool:
    """Return whether a command line runs Snakemake: as a program, or as a module of Python."""
    for i, word in enumerate(command[:4]):  # python, its options, the script
        if os.path.basename(word) == "snakemake" and (i == 0 or command[i - 1] == "-m" or "/" in word):
            return True
    return False


def workflow_mark() -> str:
    """Return the value of `WORKFLOW` for this process: host, pid and start."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start_of(os.getpid())}"


def workflow_is_gone() -> bool:
    """Return whether the workflow that started this job has ended; a batch system handles those on other hosts."""
    host, _, rest = os.environ.get(WORKFLOW, "").partition("/")
    if host != socket.gethostname():
        return False
    pid, _, start = rest.partition("/")
    try:
        return _start_of(int(pid)) != start
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return True


def _start_of(pid: int) -> str:
    """Return the start of a process: on Linux in clock ticks since boot, which setting the clock does not change."""
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").is_file():
        return repr(psutil.Process(pid).create_time())
    return stat.read_text(errors="replace").rpartition(")")[2].split()[19]


def watched_processes() -> list[psutil.Process]:
    """Return the ancestors whose end must end this process.

    These are all ancestors up to and including the topmost that runs Snakemake (a job's shell, a job's own Snakemake,
    the main one), so a shell or an init above Snakemake does not matter. Without Snakemake, only the direct parent;
    empty if that is process 1 (this process is already an orphan) or if SIGHUP is ignored, as `nohup` does.
    """
    ancestors = psutil.Process().parents()
    snakemakes = [i for i, process in enumerate(ancestors) if is_snakemake(_command(process))]
    if snakemakes:
        return [process for process in ancestors[: snakemakes[-1] + 1] if process.pid != 1]
    if not ancestors or ancestors[0].pid == 1 or signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return []
    return ancestors[:1]


def is_alive(process: psutil.Process) -> bool:
    """Return whether exactly this process (pid and creation time) still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def exit_when_gone(processes: Sequence[psutil.Process]) -> None:
    """Block until one of `processes` or the workflow is gone, then end this process at once, without cleanup.

    All files can be cut back after a crash, so an abrupt end is safe, and nothing can delay it.
    """
    while all(is_alive(process) for process in processes) and not workflow_is_gone():
        time.sleep(POLL_SECONDS)
    gone = [str(process.pid) for process in processes if not is_alive(process)]
    what = f"process {gone[0]}" if gone else "the workflow"
    log.error("%s, which started this job, is gone: stopping; the next start resumes", what)
    os._exit(EXIT_CODE)


def stop_with_parent(watch: Callable[[Sequence[psutil.Process]], None] = exit_when_gone) -> threading.Thread | None:
    """Watch the processes that started this one, in a daemon thread; return None if there are none to watch.

    Call it before anything that takes time.
    """
    processes = watched_processes()
    if not processes and not workflow_is_gone():
        return None
    thread = threading.Thread(target=watch, args=(processes,), name="parent-watch", daemon=True)
    thread.start()
    return thread


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def job_environment(root: Path, *, main: bool, remote: bool) -> None:
    """Make jobs run the package of this clone with the Python that runs Snakemake, activated or not.

    Jobs get the mark of their workflow, to end with it; the batch system ends a remote job.
    """
    name_user()
    if main:
        os.environ[WORKFLOW] = workflow_mark()
    elif remote:
        os.environ.pop(WORKFLOW, None)
    for variable, first in {"PATH": Path(sys.executable).parent, "PYTHONPATH": root / "workflow"}.items():
        rest = [part for part in os.environ.get(variable, "").split(os.pathsep) if part and part != str(first)]
        os.environ[variable] = os.pathsep.join([str(first), *rest])
