"""The tools of dialogues, executed for a driver in a process of their own.

bfcl-eval's tool classes are real Python objects, and its way to call them is eval(). Here only calls that `bfcl_calls`
has written from checked parts are evaluated, in a worker without network and with limits (`sandbox`), and each case has
its own forked copy of it (`isolation`), so no state goes from one case to another or from one model to the next.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dara.evaluation.bfcl_checkers import CHECKER_VERSION
from dara.evaluation.isolation import MEMORY_BYTES, Fork, ForkLost, Network
from dara.evaluation.records import Case
from dara.evaluation.sandbox import SandboxError, ScorerSpec, Worker

logger = logging.getLogger(__name__)

Call = dict[str, Any]

FACTORY = "dara.evaluation.executor:make_server"
MOST_LOST = 3  # calls of a case that did not end; after so many its tools answer no more
NO_ANSWER = "Error during execution: the tool did not answer within {:g} seconds."


@dataclass
class _Live:
    """A case whose tools have a state."""

    entry: Mapping[str, Any]
    long_context: bool
    history: list[Call] = field(default_factory=list)  # what makes the state again
    lost: int = 0


class ToolExecutor:
    """Executes the calls of several-turn cases; a context manager that threads may share. Starts when first needed.

    A call that hangs or uses up the memory is answered by an error, as a call that a tool refuses is; the state of its
    case is made again from the calls before it.
    """

    def __init__(self, cases: Sequence[Case], seconds: float = 5.0) -> None:
        self._cases = {case.id: case for case in cases}
        self._spec = ScorerSpec(FACTORY, {"seconds": seconds}, seconds)
        self._seconds = seconds
        self._live: dict[str, _Live] = {}
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="dara-tools-")

    def __enter__(self) -> ToolExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None
        self._directory.cleanup()

    @property
    def network(self) -> Network:
        """Whether the tools could reach a network."""
        with self._lock:
            return self._started().network

    @property
    def identity(self) -> dict[str, Any]:
        """What executes the calls, in values of JSON."""
        limits = {"seconds": self._seconds, "memory_bytes": MEMORY_BYTES}
        return {"bfcl-eval": CHECKER_VERSION, "network": self.network, **limits}

    def execute(self, case_id: str, calls: Sequence[Call]) -> list[str]:
        """What the tools of a case say to `calls` (as `decode_calls` gives them), one text a call, in order.

        Whatever a call is, it costs its own answer only: `Error during execution: ...`.

        Raises:
            ValueError: `case_id` is none of the cases.
            SandboxError: the executor itself failed.
        """
        if case_id not in self._cases:
            raise ValueError(f"case {case_id!r} is none of the {len(self._cases)} cases that the executor was made for")
        with self._lock:
            live = self._live.get(case_id) or self._begin(case_id)
            answers = []
            for call in calls:
                answers.append(self._one(case_id, live, call))
            return answers

    def forget(self, case_id: str) -> None:
        """End a case: its tools start anew when it is executed again."""
        with self._lock:
            if self._live.pop(case_id, None) is not None and self._worker is not None:
                self._ask({"case": case_id, "forget": True}, self._seconds)

    def _begin(self, case_id: str) -> _Live:
        case = self._cases[case_id]
        live = self._live[case_id] = _Live(case.gold["entry"], "long_context" in case.category)
        return live

    def _one(self, case_id: str, live: _Live, call: Call) -> str:
        if live.lost < MOST_LOST:
            item = {"case": case_id, "entry": live.entry, "long_context": live.long_context}
            # Three times the limit: the calls before this one may have to be repeated.
            said = self._ask({**item, "history": live.history, "call": call}, 3 * self._seconds)
            if said is not None and "text" in said:
                live.history.append(call)
                # What a tool repeats may hold half of a surrogate pair, which no tokenizer takes.
                return said["text"].encode("utf-8", "backslashreplace").decode("utf-8")
            live.lost += 1
            logger.warning("case %s: a call did not end within %g s, or ran out of memory", case_id, self._seconds)
        return NO_ANSWER.format(self._seconds)

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self._spec, Path(self._directory.name))
        return self._worker

    def _ask(self, item: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """The worker's answer; None where it ended or gave none in time, and then a new one takes its place."""
        worker = self._started()
        worker.send([item])
        said: dict[str, Any] = {}
        deadline = time.monotonic() + seconds
        while (message := worker.receive(deadline)) is not None:
            if "done" in message:
                return said
            said |= message["scores"]
        mistake = worker.end()
        self._worker = None
        if mistake:
            raise SandboxError(f"the tools failed on a call of case {item['case']}:\n{mistake}")
        return None


def make_server(seconds: float) -> Any:
    """What runs in the worker: item {"case", "entry", "long_context", "history", "call"} -> {"text"} or {"lost"}."""
    from dara.evaluation.bfcl_checkers import Tools

    tools = Tools()
    copies: dict[str, Fork] = {}

    def copy_of(item: Mapping[str, Any]) -> Fork:
        """The copy that holds the state of the case; a new one gets there by the calls before."""
        if item["case"] not in copies:
            entry, long_context = item["entry"], item["long_context"]
            copies[item["case"]] = Fork(lambda calls: tools.execute(calls, entry, long_context))
            if item["history"]:
                copies[item["case"]].ask(item["history"], 2 * seconds)
        return copies[item["case"]]

    def drop(case: str) -> None:
        if case in copies:
            copies.pop(case).end()

    def serve(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if "forget" in item:
            drop(item["case"])
            return
        try:
            (text,) = copy_of(item).ask([item["call"]], seconds)
            yield {"text": text}
        except ForkLost:
            drop(item["case"])
            yield {"lost": 1}

    return serve
