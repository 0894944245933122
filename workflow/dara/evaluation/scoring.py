"""Scores while they are made: several scoring workers at once, and a file that keeps what is done.

The file grows by a line a response and has another name than a finished one, so it is never taken for it. Its first
line says which responses are scored and by what; work of anything else is thrown away.
"""

from __future__ import annotations

import json
import logging
import os
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import TracebackType
from typing import Any

from dara.evaluation.isolation import Network
from dara.evaluation.sandbox import BATCH_ITEMS, Outcome, Sandbox, ScorerSpec

logger = logging.getLogger(__name__)

Item = dict[str, Any]


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ScoringPool:
    """Scores items in `workers` processes; use as a context manager. Workers start when they are first needed."""

    def __init__(self, spec: ScorerSpec, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self._sandboxes = [Sandbox(spec) for _ in range(workers)]

    def __enter__(self) -> ScoringPool:
        return self

    def __exit__(self, *_: object) -> None:
        for sandbox in self._sandboxes:
            sandbox.__exit__()

    def network(self) -> Network:
        """Whether the workers can reach a network; starts one of them."""
        return self._sandboxes[0].start()

    def score(self, items: Mapping[int, Item], keep: Callable[[int, Outcome], None]) -> None:
        """Score `items`, and call `keep(key, outcome)` in this thread for each as soon as it is there, in any order.

        Raises:
            SandboxError: a worker does not start, or the scorer raised on an item (its key is named); then the pool
                is closed.
        """
        keys = list(items)
        free: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        for sandbox in self._sandboxes:
            free.put(sandbox)

        def work(chunk: list[int]) -> tuple[list[int], list[Outcome]]:
            sandbox = free.get()
            try:
                return chunk, sandbox.score([items[key] for key in chunk], chunk)
            finally:
                free.put(sandbox)

        with ThreadPoolExecutor(len(self._sandboxes)) as threads:
            starts = range(0, len(keys), BATCH_ITEMS)
            chunks = [threads.submit(work, keys[start : start + BATCH_ITEMS]) for start in starts]
            finished = False
            try:
                for chunk in as_completed(chunks):
                    for key, outcome in zip(*chunk.result(), strict=True):
                        keep(key, outcome)
                finished = True
            finally:
                if not finished:  # an error or an interrupt: nobody waits for what the others are at
                    threads.shutdown(wait=False, cancel_futures=True)
                    self.__exit__()


class Journal:
    """The scores made so far, on disk; a context manager that keeps the file open for more.

    A line is written at once, so a kill loses only what is being scored. The end of a line that a kill interrupted is
    cut off when the file is opened again.

    Args:
        path: the file.
        head: which responses are scored, and what scores them; what another head stands over is deleted.

    Attributes:
        done: outcomes by the number of the response (from 0).
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        first = json.dumps(head, sort_keys=True)
        self.done = _read(path, first)
        if self.done is None:
            path.unlink(missing_ok=True)
            self.done = {}
        new = not path.is_file()
        self._stream = path.open("a", encoding="utf-8", newline="\n")
        if new:
            self._write(first)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    def add(self, number: int, outcome: Outcome) -> None:
        """Keep one more. Raises ValueError for one that is already there."""
        if number in self.done:
            raise ValueError(f"response {number} is scored a second time")
        self._write(json.dumps({"response": number, "scores": outcome.scores, "outcome": outcome.outcome}))
        self.done[number] = outcome

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def _read(path: Path, first: str) -> dict[int, Outcome] | None:
    """The outcomes in the whole lines of `path`, whose unfinished last line is cut off; None if it is another's.

    Raises:
        ValueError: a whole line is wrong, which no kill can cause; names file and row (from 1).
    """
    if not path.is_file():
        return None
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
    lines = whole.split(b"\n")[:-1]
    if not lines or lines[0] != first.encode():
        logger.info("%s: scores of other responses, or by another scorer; made again", path.parent)
        return None
    return dict(_parse(path, number, line) for number, line in enumerate(lines[1:], 2))


def _parse(path: Path, number: int, line: bytes) -> tuple[int, Outcome]:
    """A response's number and what it scored, from a line of the journal."""
    try:
        row = json.loads(line)
        if type(row["response"]) is int and isinstance(row["scores"], dict) and row["outcome"] in ("ok", "timeout"):
            return row["response"], Outcome(row["scores"], row["outcome"])
    except (ValueError, TypeError, LookupError):
        pass
    raise ValueError(
        f"{path}, row {number}: must be an object with response, scores and outcome; it is {line[:100]!r}; delete the "
        "file, and all responses of this checkpoint are scored again"
    )
