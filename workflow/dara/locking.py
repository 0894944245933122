"""A lock of a directory that one process holds at a time, and that the kernel releases when the process dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.2
HANDOVER_SECONDS = 30
"""How long a job waits for a lock: one whose Snakemake was killed notices it within a second or two, and ends."""


class LockedError(ValueError):
    """Another live process holds the lock."""


@contextmanager
def directory_lock(directory: Path, *, seconds: float) -> Iterator[None]:
    """Hold the lock of `directory` (made if absent) for the body of the `with`; wait up to `seconds` for it.

    It is an advisory `flock` on `<directory>/lock`, so nothing is left to clear after a crash: the file stays, its lock
    dies with its process. The file says who holds it. On a network file system the lock is only as good as its `flock`.

    Raises LockedError, naming the holder's process and host, if the lock is still held after `seconds`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a+") as file:
        _acquire(file, directory, time.monotonic() + seconds)
        _write_holder(file)
        yield


def _acquire(file: IO[str], directory: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LockedError(
                    f"{directory} is in use by {_holder(file)}; wait until it ends, or stop it, and start again"
                ) from None
        except OSError as error:
            raise OSError(
                error.errno, f"the file system has no locks ({error.strerror}); put {directory} on one that has flock"
            ) from None
        time.sleep(POLL_SECONDS)


def _write_holder(file: IO[str]) -> None:
    file.truncate(0)
    file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    file.flush()


def _holder(file: IO[str]) -> str:
    file.seek(0)
    text = file.read()
    if not text:  # the holder has locked the file and not yet written into it
        return "another process"
    holder = json.loads(text)
    return f"process {holder['pid']} on {holder['host']}"
