"""Stop a training when what started it is gone, so that a killed Snakemake leaves no orphan that blocks the rerun."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

import psutil

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong with the run itself, it resumes at the next start


def is_snakemake(command: Sequence[str]) -> bool:
    """Whether a command line runs Snakemake: as a program, or as a module of Python."""
    for i, word in enumerate(command[:4]):  # python, its options, the script
        if os.path.basename(word) == "snakemake" and (i == 0 or command[i - 1] == "-m" or "/" in word):
            return True
    return False


def watched_processes() -> list[psutil.Process]:
    """The ancestors whose end must end this process.

    All up to and including the topmost that runs Snakemake (a job's shell, a job's own Snakemake, the main one), so a
    shell or an init above Snakemake does not matter. Without Snakemake the direct parent only; and nothing where that
    is process 1 (this process is already on its own) or SIGHUP is ignored, which is how `nohup` asks to survive.
    """
    ancestors = psutil.Process().parents()
    snakemakes = [i for i, process in enumerate(ancestors) if is_snakemake(_command(process))]
    if snakemakes:
        return [process for process in ancestors[: snakemakes[-1] + 1] if process.pid != 1]
    if not ancestors or ancestors[0].pid == 1 or signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return []
    return ancestors[:1]


def is_alive(process: psutil.Process) -> bool:
    """Whether this very process (pid and creation time) still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def exit_when_gone(processes: Sequence[psutil.Process]) -> None:
    """Block until one of `processes` is gone, then end this process at once, without cleaning up.

    Everything on disk is written to be cut back after a crash, so an abrupt end is safe, and nothing can delay it.
    """
    while all(is_alive(process) for process in processes):
        time.sleep(POLL_SECONDS)
    gone = next(process.pid for process in processes if not is_alive(process))
    log.error("process %d, which started this training, is gone: stopping; the next start resumes", gone)
    os._exit(EXIT_CODE)


def stop_with_parent(watch: Callable[[Sequence[psutil.Process]], None] = exit_when_gone) -> threading.Thread | None:
    """Watch, in a daemon thread, the processes that started this one; None where there are none to watch."""
    processes = watched_processes()
    if not processes:
        return None
    thread = threading.Thread(target=watch, args=(processes,), name="parent-watch", daemon=True)
    thread.start()
    return thread


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
