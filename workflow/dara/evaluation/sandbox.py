"""A worker process that scores model text, with a time limit for each response.

Model text is untrusted: it can make a grader loop, recurse or fill the memory. So scoring runs in a process that may be
killed. A kill costs that response only (outcome `timeout`); the worker is restarted and continues with the next one. An
exception in a scorer is an error of this program and is raised here: it never counts as a wrong answer. The worker has
no network where the kernel allows that, an empty working directory, only those environment variables of this process
that locate its libraries, and limits on memory and processor time. Limits are in processor time, so that a busy machine
changes no score; the clock only ends a worker that waits.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from dara.evaluation.isolation import (
    WALL_FACTOR,
    ForkLost,
    Network,
    leave_network,
    limit_memory,
    limit_processor_time,
)

logger = logging.getLogger(__name__)

Item = dict[str, Any]
Outcomes = Literal["ok", "timeout"]

START_SECONDS = 120.0
# Environment variables that a worker keeps: paths of programs and libraries, and the encoding of text.
INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
# Exit statuses of the worker. Python ends with EXCEPTION when an exception is not caught: an error of this program.
# The response is the cause of every other end (out of memory, a signal).
EXCEPTION = 1
OUT_OF_MEMORY = 86


class SandboxError(RuntimeError):
    """The worker cannot start, or a scorer raised: an error of this program, not a wrong answer of the model."""


@dataclass(frozen=True)
class ScorerSpec:
    """The scorer of a worker, with its settings and limits.

    `factory`, `package.module:function`, is called with `settings` (JSON values) once in a worker. It returns the
    scorer, a generator function that takes an item and yields parts of its scores (so that a part is kept when a later
    one hangs), and raises if a known answer does not get its known score. `seconds`: limit for each item, of processor
    time; by the clock WALL_FACTOR times as long. `python_path`: further directories to import from.
    """

    factory: str
    settings: dict[str, Any]
    seconds: float
    python_path: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Scores of an item; after a `timeout` (also: out of memory, killed) only the parts scored by then."""

    scores: dict[str, int | float]
    outcome: Outcomes


class Sandbox(contextlib.AbstractContextManager):
    """One worker process that scores items; use as a context manager."""

    def __init__(self, spec: ScorerSpec) -> None:
        self._spec = spec
        self._directory = tempfile.TemporaryDirectory(prefix="dara-scoring-")
        self._worker: Worker | None = None
        self._lock = threading.Lock()  # one thread may close what another one is about to start
        self._closed = False

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            if self._worker is not None:
                self._worker.end()
            self._directory.cleanup()

    def start(self) -> Network:
        """Start the worker if it does not run, and return whether it can reach a network."""
        with self._lock:
            if self._closed:
                raise SandboxError("the scoring worker is closed")
            worker = self._worker = self._worker or Worker(self._spec, Path(self._directory.name))
        return worker.wait_until_ready()

    def score(self, items: Sequence[Item]) -> list[Outcome]:
        """Return the outcomes of `items`, in their order; see `score_item`."""
        return [self.score_item(item, number) for number, item in enumerate(items)]

    def score_item(self, item: Item, name: int) -> Outcome:
        """Return the outcome of an item, response `name` in messages. SandboxError for a mistake of the scorer."""
        scores, complete = self._attempt(item, name)
        if not complete:  # a second time, in a fresh worker: a kill may have another cause than the response
            scores, complete = self._attempt(item, name)
        return Outcome(scores, "ok" if complete else "timeout")

    def _attempt(self, item: Item, name: int) -> tuple[dict[str, Any], bool]:
        """Return the parts of an item's scores, and whether that is all of them; if not, the worker has ended."""
        self.start()
        worker = self._worker
        worker.send([item])
        scores: dict[str, Any] = {}
        deadline = time.monotonic() + WALL_FACTOR * self._spec.seconds
        while (message := worker.receive(deadline)) is not None:
            if "done" in message:
                return scores, True
            scores |= message["scores"]
        mistake = worker.end()
        self._worker = None
        if mistake:
            raise SandboxError(f"the scorer {self._spec.factory} failed on response {name} of this call:\n{mistake}")
        return scores, False


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ScoringPool(contextlib.AbstractContextManager):
    """Pool of `workers` scoring processes; use as a context manager. Workers start when they are first needed."""

    def __init__(self, spec: ScorerSpec, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self._sandboxes, self._seconds = [Sandbox(spec) for _ in range(workers)], spec.seconds

    def __exit__(self, *_: object) -> None:
        for sandbox in self._sandboxes:
            sandbox.__exit__()

    def network(self) -> Network:
        """Return whether the workers can reach a network; start one of them to see that."""
        return self._sandboxes[0].start()

    def score(self, items: Mapping[int, Item], keep: Callable[[int, Outcome], None]) -> None:
        """Score `items`, and call `keep(key, outcome)` in this thread for each as soon as it is scored, in any order.

        SandboxError, and the pool is closed, if a worker does not start, or the scorer raised on an item (named).
        """
        free: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        for sandbox in self._sandboxes:
            free.put(sandbox)

        def work(key: int) -> Outcome:
            sandbox = free.get()
            try:
                outcome = sandbox.score_item(items[key], key)
            finally:
                free.put(sandbox)
            if outcome.outcome == "timeout":
                lost = "response %d did not score within %g s of processor time, twice: counted as wrong"
                logger.warning(lost, key, self._seconds)
            return outcome

        with ThreadPoolExecutor(len(self._sandboxes)) as threads:
            keys = {threads.submit(work, key): key for key in items}
            try:
                for scored in as_completed(keys):
                    keep(keys[scored], scored.result())
            except BaseException:  # also an interrupt: the results of the other workers are not needed
                threads.shutdown(wait=False, cancel_futures=True)
                self.__exit__()
                raise


class Worker:
    """A worker process: lists of items are sent as JSON lines, messages are received as JSON lines."""

    def __init__(self, spec: ScorerSpec, directory: Path) -> None:
        self._spec, self._log = spec, directory / "worker.log"
        self._network: Network | None = None
        working = directory / "working"
        working.mkdir(exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from dara.evaluation.sandbox import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=working,
                env=_environment(spec, directory),
                start_new_session=True,  # so that its forked copies end with it
            )
        self._messages: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=_pump, args=(self._process.stdout, self._messages), daemon=True).start()
        self.send({"factory": spec.factory, "settings": spec.settings, "seconds": spec.seconds})

    def wait_until_ready(self) -> Network:
        """Return whether the started worker can reach a network. Raise SandboxError if it does not start."""
        if self._network is None:
            ready = self.receive(time.monotonic() + START_SECONDS)
            if ready is None:
                reason = self.end() or f"it is not ready within {START_SECONDS:g} s, or was killed"
                raise SandboxError(f"the scoring worker with {self._spec.factory} does not start:\n{reason}")
            self._network = ready["network"]
        return self._network

    def send(self, content: Any) -> None:
        # The worker reads the whole line before it starts to score, so this cannot wait for a hanging scorer.
        # If the worker has ended by now, `receive` sees the end of its messages.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(content).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """Return the next message, or None if there is none by the deadline or the worker has ended."""
        try:
            line = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if line is None:
            self._messages.put(None)  # later calls see the end, too
            self._process.wait()  # the exit status gives the reason
            return None
        return json.loads(line)

    def end(self) -> str:
        """End the worker, and return the end of its log if an exception had ended it, else an empty text."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return self._log.read_text("utf-8", "replace")[-3000:] if status == EXCEPTION else ""


def _environment(spec: ScorerSpec, directory: Path) -> dict[str, str]:
    package = Path(__file__).resolve().parents[2]
    path = [str(package), *map(str, spec.python_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",  # sympy's order of terms follows the hashes of strings
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TZ": "UTC",  # the trading tools print local times
        "HOME": str(directory / "working"),
        "BFCL_PROJECT_ROOT": str(directory / "bfcl"),  # bfcl-eval makes folders when it is imported
    }


def _pump(stream: IO[bytes], messages: queue.Queue[bytes | None]) -> None:
    with stream:
        for line in stream:
            messages.put(line if line.endswith(b"\n") else None)
    messages.put(None)


def serve() -> None:
    """Run the worker: read the scorer from standard input, then score items until the input ends."""
    network = leave_network()
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a grader's output must not mix with the messages

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message).encode() + b"\n")

    start = json.loads(sys.stdin.buffer.readline())
    module, _, function = start["factory"].partition(":")
    scorer = getattr(importlib.import_module(module), function)(**start["settings"])
    limit_memory()
    send({"ready": True, "network": network})
    try:
        for line in sys.stdin.buffer:
            for item in json.loads(line):
                limit_processor_time(start["seconds"])
                for part in scorer(item):
                    send({"scores": part})
                send({"done": True})
    except (MemoryError, ForkLost):
        os._exit(OUT_OF_MEMORY)  # after running out of memory, its state is unreliable
