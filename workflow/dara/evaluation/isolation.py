"""Isolation of untrusted text in its process: no network, resource limits, and a forked copy for each case.

Uses only unprivileged system calls on the current process: no helper binary, no root. Where the kernel refuses a
network namespace, the network stays reachable; `leave_network` returns which is the case.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Literal

Network = Literal["isolated", "reachable"]

MEMORY_BYTES = 2 * 1024**3  # above what a process needs once it has started
ANSWER_BYTES = 64 * 1024**2
# A process that computes is ended by its processor time, which a busy machine does not change. One that only waits is
# ended by the clock, after this many times as long.
WALL_FACTOR = 10
# From Linux's headers.
CLONE_NEWNET, CLONE_NEWUSER, PR_SET_PDEATHSIG = 0x40000000, 0x10000000, 1


class ForkLost(RuntimeError):
    """The copy gave no answer in time, was killed, or ran out of memory; the question it got is the cause."""


def leave_network() -> Network:
    """Move this process (before it has threads) into an empty network namespace, and return whether that worked."""
    if sys.platform != "linux":
        return "reachable"
    libc = ctypes.CDLL(None, use_errno=True)
    # A privileged process keeps its user; others need a user namespace.
    if libc.unshare(CLONE_NEWNET) != 0 and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return "reachable"
    # The namespace's own loopback is down; an interface besides it would be a way out.
    return "isolated" if {name for _, name in socket.if_nameindex()} <= {"lo"} else "reachable"


def limit_memory() -> None:
    """Limit further memory to MEMORY_BYTES, where the platform enforces it (Linux), and disable core files."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_processor_time(seconds: float) -> None:
    """End this process once it has used `seconds` more of processor time, or up to 1 s more (the kernel's unit).

    Call it again for the next item.
    """
    _lower(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))


def _lower(limit: int, value: int) -> None:
    """Lower the soft limit only, so that it can be set again, never above the hard limit."""
    _, hard = resource.getrlimit(limit)
    if hard == resource.RLIM_INFINITY or value < hard:
        resource.setrlimit(limit, (value, hard))


class Fork:
    """A forked copy of this process that answers questions; changes of its state end with it.

    The copy cannot open anything, and ends with this process. `answer` takes and returns JSON values. Use it in a
    process without threads that has imported everything the answers need.

    Attributes:
        seconds: processor time of its answers so far.
    """

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.seconds = 0.0
        self._here, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._here.close()
            _serve_fork(answer, there)  # never returns
        there.close()

    def ask(self, question: Any, seconds: float) -> Any:
        """Return the answer to `question`, which may take `seconds` of processor time.

        Raises:
            ForkLost: it took more (or WALL_FACTOR times as long by the clock), or the copy was killed.
            RuntimeError: `answer` raised, with its traceback: an error of this program.
        """
        try:
            self._here.send_bytes(json.dumps([seconds, question]).encode())
            if not self._here.poll(WALL_FACTOR * seconds):
                raise ForkLost(f"no answer within {WALL_FACTOR * seconds:g} s by the clock")
            reply = json.loads(self._here.recv_bytes(ANSWER_BYTES))
        except (OSError, EOFError) as error:
            raise ForkLost("ended before it answered") from error
        if "error" in reply:
            raise RuntimeError(f"the copy failed:\n{reply['error']}")
        self.seconds += reply["seconds"]
        return reply["answer"]

    def end(self) -> None:
        """Kill the copy."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._here.close()


def _serve_fork(answer: Callable[[Any], Any], channel: Connection) -> None:
    """Answer questions until the end; leave by os._exit, so that no code of the original runs twice."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        # Close the original's channel and those of other copies.
        os.closerange(3, channel.fileno())
        os.closerange(channel.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        limit_memory()
        # Nothing can be opened, written to a file, or started any more: without a free descriptor even a started
        # program cannot load its libraries. Open descriptors stay usable.
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
            resource.setrlimit(limit, (0, 0))
        while True:
            seconds, question = json.loads(channel.recv_bytes())
            limit_processor_time(seconds)
            started = time.process_time()
            try:
                given = answer(question)
                reply = json.dumps({"answer": given, "seconds": time.process_time() - started})
            except MemoryError:
                raise
            except Exception:  # an error of this program: the original raises it, and the copy ends
                channel.send_bytes(json.dumps({"error": traceback.format_exc()[-3000:]}).encode())
                raise
            channel.send_bytes(reply.encode())
    except (EOFError, OSError, MemoryError):
        os._exit(0)
    finally:
        os._exit(1)
