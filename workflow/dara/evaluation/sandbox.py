"""A worker process that scores model text, with a time limit for each response.

Model text is hostile: it can make a grader loop, recurse or fill the memory. So scoring happens in a process that may
be killed. What it costs is that response only (outcome `timeout`); the worker starts again and goes on with the next
one. An exception in a scorer is a mistake of ours and is raised here: it never counts as a wrong answer.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

logger = logging.getLogger(__name__)

Scores = dict[str, int]

BATCH_ITEMS = 64
BATCH_CHARACTERS = 4_000_000
MEMORY_BYTES = 2 * 1024**3  # above what the worker needs once it has started
START_SECONDS = 120.0
# Exit statuses of the worker. Python ends with EXCEPTION when an exception is not caught: a mistake of ours.
# Every other end (out of memory, a signal) is the response's doing.
EXCEPTION = 1
OUT_OF_MEMORY = 86


class SandboxError(RuntimeError):
    """The worker cannot start, or a scorer raised: a mistake of ours, not a wrong answer of the model."""


@dataclass(frozen=True)
class ScorerSpec:
    """What the worker runs.

    Attributes:
        factory: `package.module:function`; called with `settings` once in a worker, it returns the scorer, a generator
            function that takes an item and yields parts of its scores (so that a part is kept when a later one hangs).
            It raises if a known answer does not get its known score.
        settings: keyword arguments of the factory (JSON values).
        seconds: time limit for each item, in seconds of wall clock.
        python_path: further directories to import from.
    """

    factory: str
    settings: dict[str, Any]
    seconds: float
    python_path: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Scores of an item; after a `timeout` (also: out of memory, killed) only the parts that were there by then."""

    scores: Scores
    outcome: Literal["ok", "timeout"]


class Sandbox:
    """Scores items in a worker process; use as a context manager."""

    def __init__(self, spec: ScorerSpec) -> None:
        self._spec = spec
        self._directory = tempfile.TemporaryDirectory(prefix="dara-scoring-")
        self._worker: _Worker | None = None
        self._partial: Scores = {}  # parts of the item that is being scored

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.end()
        self._directory.cleanup()

    def score(self, items: Sequence[dict[str, Any]]) -> list[Outcome]:
        """Outcomes of `items`, in their order.

        Raises:
            SandboxError: the worker does not start, or the scorer raised on an item (its index is named).
        """
        outcomes: list[Outcome] = []
        while len(outcomes) < len(items):
            start = len(outcomes)
            batch = items[start : start + _batch_length(items, start)]
            finished = self._run(batch, start)
            outcomes += finished
            if len(finished) < len(batch):
                outcomes.append(self._again(batch[len(finished)], len(outcomes)))
        return outcomes

    def _again(self, item: dict[str, Any], index: int) -> Outcome:
        """A second chance, alone in a fresh worker: a busy machine or a foreign kill is not the response's fault."""
        finished = self._run([item], index)
        if finished:
            return finished[0]
        logger.warning("response %d did not score within %g s, twice: counted as wrong", index, self._spec.seconds)
        return Outcome(self._partial, "timeout")

    def _run(self, batch: Sequence[dict[str, Any]], first: int) -> list[Outcome]:
        """Outcomes of a batch, up to the first item that hangs or ends the worker (its parts: `_partial`)."""
        worker = self._worker = self._worker or _Worker(self._spec, Path(self._directory.name))
        worker.send(list(batch))
        outcomes: list[Outcome] = []
        deadline = time.monotonic() + self._spec.seconds
        self._partial = {}
        while len(outcomes) < len(batch):
            message = worker.receive(deadline)
            if message is None:
                mistake = worker.end()
                self._worker = None
                if mistake:
                    where = f"response {first + len(outcomes)} of this call"
                    raise SandboxError(f"the scorer {self._spec.factory} failed on {where}:\n{mistake}")
                return outcomes
            self._partial.update(message.get("scores", {}))
            if "done" in message:
                outcomes.append(Outcome(self._partial, "ok"))
                self._partial = {}
                deadline = time.monotonic() + self._spec.seconds
        return outcomes


class _Worker:
    """A started worker process: batches go in as JSON lines, messages come out as JSON lines."""

    def __init__(self, spec: ScorerSpec, directory: Path) -> None:
        self._log = directory / "worker.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from dara.evaluation.sandbox import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=directory,
                env=_environment(spec, directory),
            )
        self._messages: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=_pump, args=(self._process.stdout, self._messages), daemon=True).start()
        self.send({"factory": spec.factory, "settings": spec.settings, "seconds": spec.seconds})
        if self.receive(time.monotonic() + START_SECONDS) is None:
            reason = self.end() or f"it is not ready within {START_SECONDS:g} s, or was killed"
            raise SandboxError(f"the scoring worker with {spec.factory} does not start:\n{reason}")

    def send(self, content: Any) -> None:
        # The worker reads the whole line before it starts to score, so this cannot wait for a hanging scorer.
        # A worker that is gone by now shows as the end of its messages.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(content).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """The next message, or None when there is none by the deadline or the worker has ended."""
        try:
            line = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if line is None:
            self._process.wait()  # its exit status says why
            return None
        return json.loads(line)

    def end(self) -> str:
        """End the worker. Returns the end of its log if it had ended by an exception, else an empty text."""
        self._process.kill()
        status = self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return self._log.read_text("utf-8", "replace")[-3000:] if status == EXCEPTION else ""


def _environment(spec: ScorerSpec, directory: Path) -> dict[str, str]:
    package = Path(__file__).resolve().parents[2]
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    path = [str(package), *(str(entry) for entry in spec.python_path), *inherited]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",  # sympy's order of terms follows the hashes of strings
        "OMP_NUM_THREADS": "1",
        "BFCL_PROJECT_ROOT": str(directory),  # bfcl-eval makes folders when imported: here, not beside the packages
    }


def _batch_length(items: Sequence[dict[str, Any]], start: int) -> int:
    """How many items from `start` on go to the worker at once: at least one, of a bounded size together."""
    characters = 0
    for count, item in enumerate(items[start : start + BATCH_ITEMS]):
        characters += sum(len(value) for value in item.values() if isinstance(value, str))
        if count and characters > BATCH_CHARACTERS:
            return count
    return min(BATCH_ITEMS, len(items) - start)


def _pump(stream: IO[bytes], messages: queue.Queue[bytes | None]) -> None:
    with stream:
        for line in stream:
            messages.put(line if line.endswith(b"\n") else None)
    messages.put(None)


def serve() -> None:
    """The worker: read what to run from standard input, then score batches until the input ends."""
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a grader prints must not mix with the messages

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message).encode() + b"\n")

    start = json.loads(sys.stdin.buffer.readline())
    module, _, function = start["factory"].partition(":")
    scorer = getattr(importlib.import_module(module), function)(**start["settings"])
    _limit_memory()
    send({"ready": True})
    try:
        for line in sys.stdin.buffer:
            for item in json.loads(line):
                _limit_processor_time(start["seconds"])
                for part in scorer(item):
                    send({"scores": part})
                send({"done": True})
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # a process that ran out of memory is not to be trusted with the next response


def _limit_memory() -> None:
    """At most MEMORY_BYTES more than now, where the platform enforces it (Linux)."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_processor_time(seconds: float) -> None:
    """End this process when an item uses twice its time: a backstop for when nobody is left who would kill it."""
    if os.name != "posix":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(time.process_time() + 2 * seconds) + 1
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
