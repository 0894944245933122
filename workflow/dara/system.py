"""Messages for errors of the operating system: of files, and of standard output."""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

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
    written = list(dict.fromkeys(_disk_of(place) for place in places))
    free = {place: shutil.disk_usage(place).free for place in written}
    number = _number(error, min(free.values(), default=LEAST_BYTES) < LEAST_BYTES)
    if number is None:
        return str(error) if isinstance(error, OSError) else None
    what, remedy = SENTENCES.get(number, (os.strerror(number).lower(), ""))
    if isinstance(error, OSError) and error.strerror != os.strerror(number):  # a sentence already
        what, remedy = str(error.strerror), ""
    where = getattr(error, "filename", None)
    if where is None and number in OF_DISKS and free:
        where = min(free, key=free.__getitem__)
    return "; ".join(filter(None, [what if where is None else f"{where}: {what}", remedy]))


def _number(error: Exception, disk_is_full: bool) -> int | None:
    """Return the number of a system error; None for other errors."""
    if isinstance(error, OSError):
        return error.errno
    found = _RUST.search(str(error))
    if found:
        return int(found.group(1))
    return errno.ENOSPC if disk_is_full and isinstance(error, RuntimeError) else None


def _disk_of(place: Path) -> Path:
    """Return the nearest existing directory of a path that is to be written."""
    return next(path for path in (place, *place.parents, Path()) if os.path.isdir(path))


def name_user() -> None:
    """Set a name for this user if the system has none, as in a container: Snakemake and PyTorch need one."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"


# --- standard output, written completely ------------------------------------------------------------------------------

PIPE_EXIT_CODE = 141
"""Exit code that a shell reports for a command whose output has no reader: 128 + SIGPIPE."""


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
            raise SystemExit(PIPE_EXIT_CODE) from None
        sys.stderr.write(f"dara: standard output: {error.__cause__.strerror}\n")
        raise SystemExit(1) from None
