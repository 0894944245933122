"""This process: errors of its system as sentences, its output, its end with its parent, its libraries."""

from __future__ import annotations

import contextlib
import errno
import getpass
import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil

log = logging.getLogger(__name__)

# --- errors of the operating system -----------------------------------------------------------------------------------

_ROOM = "make room (`dara clean --dry-run` lists what nothing needs any more) and start again: what is finished is kept"
_ELSEWHERE = "or use another place (the keys `results` and `scratch`)"
SENTENCES = {
    errno.ENOSPC: ("the disk is full", _ROOM),
    errno.EDQUOT: ("your quota on this disk is used up", _ROOM),
    errno.EFBIG: ("the file is larger than this system allows", "raise the limit (`ulimit -f`)"),
    errno.EACCES: ("this user has no access to it", f"change its owner or its mode, {_ELSEWHERE}"),
    errno.EPERM: ("this user may not do that", f"change its owner or its mode, {_ELSEWHERE}"),
    errno.EROFS: ("the file system is read-only", f"make it writable, {_ELSEWHERE}"),
    errno.EIO: ("the disk reports an error", "look at it (`dmesg`) before you start again"),
    errno.ESTALE: ("the network file system has lost it", "start again"),
    errno.ENAMETOOLONG: ("the name is longer than the file system allows", f"shorten it, {_ELSEWHERE}"),
    errno.ELOOP: ("its links lead in a circle", "remove the link"),
    errno.ENOENT: ("there is no such file or directory", ""),
    errno.ENOTDIR: ("a part of this path is a file", "it must be a directory"),
    errno.EISDIR: ("it is a directory", "it must be a file"),
    errno.EEXIST: ("it is there already", "it must be a directory, or be absent"),
    errno.EMFILE: ("too many files are open", "raise the limit (`ulimit -n`)"),
    errno.ENOMEM: ("the memory is used up", "run fewer jobs at once"),
}
OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write, which do not name their file."""
_RUST = re.compile(r"\(os error (\d+)\)")
LEAST_BYTES = 65536  # free on a disk that is not full


def sentence(error: Exception, places: Iterable[Path] = ()) -> str | None:
    """Return the meaning of an error of the operating system; None for another kind of error.

    places: where the failing command writes, for an error that does not name its file. Libraries in Rust and C++ raise
    other exceptions for a full disk.
    """
    existing = [next(path for path in (place, *place.parents, Path()) if os.path.isdir(path)) for place in places]
    free = {directory: shutil.disk_usage(directory).free for directory in existing}
    number, in_rust = getattr(error, "errno", None), _RUST.search(str(error))
    if not isinstance(error, OSError):
        full = min(free.values(), default=LEAST_BYTES) < LEAST_BYTES and isinstance(error, RuntimeError)
        number = int(in_rust[1]) if in_rust else errno.ENOSPC if full else None
    if number is None:
        return str(error) if isinstance(error, OSError) else None
    what, remedy = SENTENCES.get(number, (os.strerror(number).lower(), ""))
    if isinstance(error, OSError) and error.strerror != os.strerror(number):  # a sentence already
        what, remedy = str(error.strerror), ""
    where = getattr(error, "filename", None)
    if where is None and number in OF_DISKS and free:
        where = min(free, key=free.__getitem__)
    return "; ".join(filter(None, [what if where is None else f"{where}: {what}", remedy]))


def name_user() -> None:
    """Set a name for this user if the system has none, as in a container: Snakemake and PyTorch need one."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"


# --- standard output, written completely ------------------------------------------------------------------------------


class OutputError(Exception):
    """Standard output cannot be written; its cause is the OSError. Files of a command raise other errors."""


class _Output:
    """A stream that raises OutputError for its own errors."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputError from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputError from error


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Write all output of the body before it ends, or end the process.

    The process ends silently if the reader has gone, and with a message if the output cannot be written. Closed streams
    are replaced by the null device; otherwise the next opened file would get their number and the printed text.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 (for as long as the process lives)
    try:
        with contextlib.redirect_stdout(_Output(sys.stdout)) as output:
            try:
                yield
            finally:
                output.flush()
    except OutputError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for text flushed at the end of the process
        if isinstance(error.__cause__, BrokenPipeError):
            raise SystemExit(128 + signal.SIGPIPE) from None  # as a shell reports it
        sys.stderr.write(f"dara: standard output: {error.__cause__.strerror}\n")
        raise SystemExit(1) from None


# --- the end of a job whose parent is gone, so that a killed Snakemake leaves no orphan that blocks the rerun ---------

POLL_SECONDS = 1.0
WORKFLOW = "DARA_WORKFLOW"
"""Environment variable by which a workflow identifies itself to its jobs. Needed in addition to the ancestors: if
Snakemake is killed in the second in which a job starts, the job's shell lives on, waiting for the job."""
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: the run itself has no error, it resumes at the next start


def is_snakemake(command: Sequence[str]) -> bool:
    """Return whether a command line runs Snakemake: as a program, or as a module of Python."""
    words = list(enumerate(command[:4]))  # python, its options, the script
    named = [i for i, word in words if os.path.basename(word) == "snakemake"]
    return any(i == 0 or command[i - 1] == "-m" or "/" in command[i] for i in named)


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
    if not os.path.isfile("/proc/self/stat"):
        return repr(psutil.Process(pid).create_time())
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]


def watched_processes() -> list[psutil.Process]:
    """Return the ancestors whose end must end this process.

    These are all ancestors up to and including the topmost that runs Snakemake (a job's shell, a job's own Snakemake,
    the main one), so a shell or an init above Snakemake does not matter. Without Snakemake, only the direct parent;
    empty if that is process 1 (this process is already an orphan) or if SIGHUP is ignored, as `nohup` does.
    """
    ancestors, snakemakes = psutil.Process().parents(), []
    for i, process in enumerate(ancestors):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            snakemakes += [i] if is_snakemake(process.cmdline()) else []
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


def stop_with_parent() -> None:
    """Watch the processes that started this one, if any, in a daemon thread. Call it before anything that takes time.

    Once one of them or the workflow is gone, this process ends at once, without cleanup: all files can be cut back
    after a crash, so an abrupt end is safe, and nothing can delay it.
    """
    processes = watched_processes()

    def watch() -> None:
        while all(is_alive(process) for process in processes) and not workflow_is_gone():
            time.sleep(POLL_SECONDS)
        gone = [f"process {process.pid}" for process in processes if not is_alive(process)]
        log.error("%s, which started this job, is gone: stopping; the next start resumes", [*gone, "the workflow"][0])
        os._exit(EXIT_CODE)

    if processes or workflow_is_gone():
        threading.Thread(target=watch, name="parent-watch", daemon=True).start()


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


# --- large libraries --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside the block.

    The order of summation, and so every weight and every sampled token, depends on the number of threads. Also, two
    runs share two cores.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def quiet() -> None:
    """Turn off the progress bars and log messages of transformers, datasets, TRL and accelerate."""
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in ("trl", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
