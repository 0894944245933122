"""Dialogues with tools: each case as a program, and the process that executes its tool calls.

A program is a generator that yields prompts and is sent responses. Many programs run at once, each waiting for its own
response, so that an engine always has a full batch. The dialogue follows bfcl-eval's driver: within a turn the model is
prompted again as long as it makes calls, with their results in the history; a turn ends with an output that has no
readable call; a turn of more than `max_steps` outputs with calls ends the case.

bfcl-eval's tool classes are Python objects, which it calls with eval(). Here only calls that `bfcl_calls` has written
from checked parts are evaluated, in a worker without network and with limits (`sandbox`). Each case has its own forked
copy of the worker (`isolation`), so no state passes from one case to another or from one model to the next.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dara.evaluation.bfcl_calls import CHECKER_VERSION, decode_output
from dara.evaluation.isolation import MEMORY_BYTES, WALL_FACTOR, Fork, ForkLost
from dara.evaluation.records import Case, Response, Stopped
from dara.evaluation.sandbox import SandboxError, ScorerSpec, Worker

logger = logging.getLogger(__name__)

Prompt = str | list[dict[str, str]]
"""A complete text, or chat messages for the model's own template."""
Program = Generator[Prompt, Response, Response]
"""Generator of prompts that is sent the response to each, and returns the case's final response."""
Messages = list[dict[str, str]]


class Executor(Protocol):
    """Executor of the tool calls of cases; each case has its own state."""

    def execute(self, case_id: str, calls: list[dict[str, Any]]) -> list[str]:
        """Return the result of each call, in order; the result of a failed call is an error text."""

    def lost(self, case_id: str) -> int:
        """Return the number of a case's calls without an answer."""

    def forget(self, case_id: str) -> None:
        """Drop the state of a case."""


def one_request(prompt: Prompt) -> Program:
    """Run a program of one prompt, and return its response."""
    return (yield prompt)


def dialogue(
    case_id: str,
    turns: Sequence[Messages],
    render: Callable[[Messages], Messages],
    executor: Executor,
    max_steps: int,
) -> Program:
    """Run a dialogue of several turns with tools, and return its outputs.

    Args:
        turns: the messages that begin each turn.
        render: the dialogue so far -> the chat messages of a prompt.
        executor: executes the calls.
        max_steps: outputs with calls in a turn after which one more ends the case.
    """
    history: Messages = []
    done: list[tuple[str, ...]] = []
    outputs: list[Response] = []
    stopped: Stopped | None = None
    executor.forget(case_id)  # a case begins with its initial state, also after an earlier run
    for turn in turns:
        history += turn
        steps: list[str] = []
        while stopped is None:
            response = yield render(history)
            if response.stopped is not None:
                stopped = response.stopped
                break
            outputs.append(response)
            steps.append(response.text)
            history.append({"role": "assistant", "content": response.text})
            # As in bfcl-eval's driver, an output without a readable call ends the turn.
            calls = decode_output(response.text)
            if not calls:
                break
            results = executor.execute(case_id, calls)
            names = map(_call_text, calls)
            history += [
                {"role": "tool", "name": name, "content": result} for name, result in zip(names, results, strict=True)
            ]
            if len(steps) > max_steps:
                stopped = "step_limit"
        done.append(tuple(steps))
        if stopped is not None:
            break
    lost = executor.lost(case_id)
    executor.forget(case_id)
    n_tokens = sum(response.n_tokens for response in outputs)
    finished = stopped != "context_overflow" and all(response.finished for response in outputs)
    return Response("", n_tokens, finished, tuple(done), stopped, lost)


def _call_text(call: dict[str, Any]) -> str:
    """Return a call in the form of the history: `name(parameter=value, ...)`."""
    ((name, parameters),) = call.items()
    given = ["..."] if parameters is None else [f"{key}={value!r}" for key, value in parameters.items()]
    return encodable(f"{name}({', '.join(given)})")


def encodable(text: str) -> str:
    """Return the text with lone surrogates, which JSON can contain but no tokenizer accepts, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


Call = dict[str, Any]

FACTORY = "dara.evaluation.tools:make_server"
MOST_ENDED = 3  # calls of a case that end its copy; after so many, its tools give no more answers
NO_ANSWER = "Error during execution: the tool did not answer within {:g} seconds."
NO_TIME = "Error during execution: the tool was not called, because the time for tool calls is used up."
CUT = " [cut after {:d} characters]"


@dataclass(frozen=True)
class Limits:
    """Limits of tool calls: processor time in seconds, and answers in characters.

    A case has no more time than its scorer has by default to execute the same calls again. The longest answer of a gold
    call has 31,706 characters, and the answers to the gold calls of a turn have 70,423 together.
    """

    call_seconds: float = 5.0
    output_seconds: float = 7.5  # all calls of one output
    case_seconds: float = 10.0
    answer_characters: int = 100_000
    output_characters: int = 300_000  # all answers to one output


@dataclass
class _Live:
    """State of a case whose tools are in use."""

    case: Case
    history: list[Call] = field(default_factory=list)  # calls that restore the state
    worker: Worker | None = None  # the one that has a copy for the case
    seconds: float = 0.0  # processor time that its calls have taken
    ended: int = 0  # calls that ended their copy
    lost: int = 0  # calls without an answer


class ToolExecutor:
    """Executor of the calls of multi-turn cases; a context manager that threads may share. Starts at first use.

    A call that hangs or uses up the memory is answered by an error, as is a call that a tool refuses; the state of its
    case is restored by repeating the calls before it.
    """

    def __init__(self, cases: Sequence[Case], limits: Limits | None = None) -> None:
        self._cases = {case.id: case for case in cases}
        self._limits = limits or Limits()
        self._spec = ScorerSpec(FACTORY, {"limits": dataclasses.asdict(self._limits)}, self._limits.case_seconds)
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
    def identity(self) -> dict[str, Any]:
        """Return versions, limits and `network` (whether the tools could reach one), as JSON values."""
        with self._lock:
            network = self._started().wait_until_ready()
        limits = {**dataclasses.asdict(self._limits), "memory_bytes": MEMORY_BYTES}
        return {"bfcl-eval": CHECKER_VERSION, "network": network, **limits}

    def execute(self, case_id: str, calls: Sequence[Call]) -> list[str]:
        """Return the tools' answers to the calls of an output (`decode_calls`), one text a call, in order.

        A failing call costs its own answer only: `Error during execution: ...`. Once the time of the output or of the
        case is used up, calls are not made. Answers are cut at the limits.

        Raises:
            ValueError: `case_id` is not one of the cases.
            SandboxError: the executor itself failed.
        """
        if case_id not in self._cases:
            raise ValueError(f"case {case_id!r} is none of the {len(self._cases)} cases that the executor was made for")
        with self._lock:
            live = self._live.setdefault(case_id, _Live(self._cases[case_id]))
            enough = min(live.seconds + self._limits.output_seconds, self._limits.case_seconds)
            answers, room = [], self._limits.output_characters
            for call in calls:
                in_time = live.ended < MOST_ENDED and live.seconds < enough
                said = self._one(live, call) if in_time else None
                if said is None:
                    live.lost += 1
                    answers.append(NO_ANSWER.format(self._limits.call_seconds) if in_time else NO_TIME)
                else:
                    answers.append(_cut(said, min(room, self._limits.answer_characters)))
                    room = max(0, room - len(answers[-1]))
            return answers

    def lost(self, case_id: str) -> int:
        """Return the number of a case's calls without an answer: they ended their copy, or no time was left."""
        with self._lock:
            return self._live[case_id].lost if case_id in self._live else 0

    def forget(self, case_id: str) -> None:
        """End a case: its tools start from the initial state when it is executed again."""
        with self._lock:
            live = self._live.pop(case_id, None)
            if live is not None and live.worker is not None and live.worker is self._worker:
                self._ask({"case": case_id, "forget": True})

    def _one(self, live: _Live, call: Call) -> str | None:
        """Return the tools' answer to one call; None if the call ended the copy that executed it."""
        worker, said = self._asked(live, call)
        if said is None:  # the whole worker ended: perhaps not the call's fault, so it has a second try
            logger.warning("case %s: the tools' process ended, and the call is made again in a new one", live.case.id)
            worker, said = self._asked(live, call)
        if said is not None and "text" in said:
            live.worker = worker
            live.history.append(call)
            live.seconds += said["seconds"]
            return encodable(said["text"])
        live.worker = None
        live.seconds += self._limits.call_seconds
        live.ended += 1
        logger.warning(
            "case %s: a call took more than %g s of processor time, or ran out of memory",
            *(live.case.id, self._limits.call_seconds),
        )
        return None

    def _asked(self, live: _Live, call: Call) -> tuple[Worker, dict[str, Any] | None]:
        """Send a call to the worker, and return the worker and its answer (None: the worker ended)."""
        item = {"case": live.case.id, "call": call}
        worker = self._started()
        if live.worker is not worker:  # it has no copy of this case, or the copy ended
            item |= {"entry": live.case.gold["entry"], "long_context": "long_context" in live.case.category}
            item["history"] = live.history
        return worker, self._ask(item)

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self._spec, Path(self._directory.name))
            self._worker.wait_until_ready()
        return self._worker

    def _ask(self, item: dict[str, Any]) -> dict[str, Any] | None:
        """Return the worker's answer; None if it ended or gave none in time, and then a new worker replaces it."""
        worker = self._started()
        worker.send([item])
        said: dict[str, Any] = {}
        # The calls before this one may have to be repeated. The worker itself enforces the limits of both.
        patience = WALL_FACTOR * (2 * self._limits.case_seconds + self._limits.call_seconds)
        deadline = time.monotonic() + patience
        while (message := worker.receive(deadline)) is not None:
            if "done" in message:
                return said
            said |= message["scores"]
        mistake = worker.end()
        self._worker = None
        if mistake:
            raise SandboxError(f"the tools failed on a call of case {item['case']}:\n{mistake}")
        return None


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[:characters] + CUT.format(characters)


def make_server(limits: Mapping[str, Any]) -> Any:
    """Return the worker's function under `Limits`: item {"case", "call"} -> {"text", "seconds"} or {"ended"}.

    The item has "entry", "long_context" and "history" (the calls before) where the case has no copy yet.
    """
    from dara.evaluation.bfcl_calls import Tools

    tools, limit = Tools(), Limits(**limits)
    copies: dict[str, Fork] = {}

    def begin(item: Mapping[str, Any]) -> Fork:
        entry, long_context = item["entry"], item["long_context"]

        def answer(calls: list[Call]) -> list[str]:
            return [_cut(text, limit.answer_characters) for text in tools.execute(calls, entry, long_context)]

        return Fork(answer)

    def drop(case: str) -> None:
        if case in copies:
            copies.pop(case).end()

    def serve(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        case = item["case"]
        if "forget" in item:
            drop(case)
            return
        try:
            if "entry" in item:
                drop(case)
                copies[case] = begin(item)
                copies[case].ask(item["history"], 2 * limit.case_seconds)  # more than it took the first time
            before = copies[case].seconds
            (text,) = copies[case].ask([item["call"]], limit.call_seconds)
            yield {"text": text, "seconds": copies[case].seconds - before}
        except ForkLost:
            drop(case)
            yield {"ended": 1}

    return serve
