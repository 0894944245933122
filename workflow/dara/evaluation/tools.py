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

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dara.evaluation.bfcl_calls import CHECKER_VERSION, Calls, Tools, decode_output
from dara.evaluation.isolation import MEMORY_BYTES, Fork, ForkLost
from dara.evaluation.records import Case, Response, Stopped
from dara.evaluation.sandbox import Sandbox, SandboxError, ScorerSpec

logger = logging.getLogger(__name__)

Prompt = str | list[dict[str, str]]
"""A complete text, or chat messages for the model's own template."""
Program = Generator[Prompt, Response, Response]
"""Generator of prompts that is sent the response to each, and returns the case's final response."""
Messages = list[dict[str, str]]


def one_request(prompt: Prompt) -> Program:
    """Run a program of one prompt, and return its response."""
    return (yield prompt)


def dialogue(
    case_id: str,
    turns: Sequence[Messages],
    render: Callable[[Messages], Messages],
    executor: ToolExecutor,
    max_steps: int,
) -> Program:
    """Run a dialogue of several turns with tools, and return its outputs.

    Args:
        turns: the messages that begin each turn.
        render: the dialogue so far -> the chat messages of a prompt.
        max_steps: outputs with calls in a turn after which one more ends the case.
    """
    history: Messages = []
    done: list[list[str]] = []
    outputs: list[Response] = []
    stopped: Stopped | None = None
    executor.forget(case_id)  # a case begins with its initial state, also after an earlier run
    for turn in turns:
        history += turn
        done.append([])
        while stopped is None:
            response = yield render(history)
            if stopped := response.stopped:
                break
            outputs.append(response)
            done[-1].append(response.text)
            history.append({"role": "assistant", "content": response.text})
            # As in bfcl-eval's driver, an output without a readable call ends the turn.
            calls = decode_output(response.text)
            if not calls:
                break
            results = executor.execute(case_id, calls)
            history += [
                {"role": "tool", "name": _call_text(call), "content": result}
                for call, result in zip(calls, results, strict=True)
            ]
            if len(done[-1]) > max_steps:
                stopped = "step_limit"
        if stopped is not None:
            break
    n_tokens = sum(response.n_tokens for response in outputs)
    finished = stopped != "context_overflow" and all(response.finished for response in outputs)
    return Response("", n_tokens, finished, tuple(map(tuple, done)), stopped, executor.forget(case_id))


def _call_text(call: dict[str, Any]) -> str:
    """Return a call in the form of the history: `name(parameter=value, ...)`."""
    ((name, parameters),) = call.items()
    given = ["..."] if parameters is None else [f"{key}={value!r}" for key, value in parameters.items()]
    return encodable(f"{name}({', '.join(given)})")


def encodable(text: str) -> str:
    """Return the text with lone surrogates, which JSON can contain but no tokenizer accepts, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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

    history: Calls = field(default_factory=list)  # calls that restore the state
    seconds: float = 0.0  # processor time that its calls have taken
    ended: int = 0  # calls that ended their copy
    lost: int = 0  # calls without an answer


class ToolExecutor(Sandbox):
    """Executor of the calls of multi-turn cases; a context manager. Its process starts at first use.

    A call that hangs or uses up the memory is answered by an error, as is a call that a tool refuses; the state of its
    case is restored by repeating the calls before it.
    """

    def __init__(self, cases: Sequence[Case], limits: Limits | None = None) -> None:
        self._cases = {case.id: case for case in cases}
        self._limits = limits or Limits()
        self._live: dict[str, _Live] = {}
        # The calls before a call may have to be repeated. The worker itself enforces the limits of both.
        seconds = 2 * self._limits.case_seconds + self._limits.call_seconds
        super().__init__(ScorerSpec("dara.evaluation.tools:make_server", {"limits": asdict(self._limits)}, seconds))

    def execute(self, case_id: str, calls: Calls) -> list[str]:
        """Return the tools' answers to the calls of an output (`decode_calls`), one text a call, in order.

        A failing call costs its own answer only: `Error during execution: ...`. Once the time of the output or of the
        case is used up, calls are not made. Answers are cut at the limits. ValueError: `case_id` is not one of the
        cases. SandboxError: the executor itself failed.
        """
        if case_id not in self._cases:
            raise ValueError(f"case {case_id!r} is none of the {len(self._cases)} cases that the executor was made for")
        live = self._live.setdefault(case_id, _Live())
        enough = min(live.seconds + self._limits.output_seconds, self._limits.case_seconds)
        answers, room = [], self._limits.output_characters
        for call in calls:
            in_time = live.ended < MOST_ENDED and live.seconds < enough
            said = self._answer(case_id, live, call) if in_time else None
            if said is None:
                live.lost += 1
                answers.append(NO_ANSWER.format(self._limits.call_seconds) if in_time else NO_TIME)
            else:
                answers.append(_cut(said, min(room, self._limits.answer_characters)))
                room = max(0, room - len(answers[-1]))
        return answers

    def forget(self, case_id: str) -> int:
        """End a case, whose tools then start from the initial state, and return how many calls had no answer.

        These calls ended their copy, or no time was left.
        """
        if case_id not in self._live:
            return 0
        self.score_item({"case": case_id}, 0)
        return self._live.pop(case_id).lost

    def _attempt(self, item: Mapping[str, Any], name: int) -> tuple[dict[str, Any], bool]:
        scores, complete = super()._attempt(item, name)
        if not complete:
            logger.warning("case %s: the tools' process ended; the next call is made in a new one", item["case"])
        return scores, complete

    def _answer(self, case_id: str, live: _Live, call: dict[str, Any]) -> str | None:
        """Return the tools' answer to one call; None if the call ended the copy that executed it."""
        case, limit = self._cases[case_id], self._limits.call_seconds
        state = {"entry": case.gold["entry"], "long_context": "long_context" in case.category, "history": live.history}
        try:
            outcome = self.score_item({"case": case_id, "call": call}, len(live.history))
            if "absent" in outcome.scores:
                outcome = self.score_item({"case": case_id, "call": call, **state}, len(live.history))
        except SandboxError as error:
            raise SandboxError(f"the tools failed on a call of case {case_id}:\n{error}") from None
        if "text" in outcome.scores:
            live.history.append(call)
            live.seconds += outcome.scores["seconds"]
            return encodable(outcome.scores["text"])
        live.seconds += limit
        live.ended += 1
        logger.warning("case %s: a call took more than %g s of processor time, or ran out of memory", case_id, limit)
        return None


def tools_identity() -> dict[str, Any]:
    """Return versions and limits of the execution of tool calls, and its `network`, as JSON values.

    `network` is isolated or reachable. A worker is started to determine it, which takes a second.
    """
    with ToolExecutor(()) as executor:
        network = executor.start()
    return {"bfcl-eval": CHECKER_VERSION, "network": network, **asdict(Limits()), "memory_bytes": MEMORY_BYTES}


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[:characters] + CUT.format(characters)


def make_server(limits: Mapping[str, Any]) -> Any:
    """Return the worker's function under `Limits`: item -> {"text", "seconds"}, or {} if the call ended its copy.

    An item has "case" and "call"; without a call it ends the case. If the case has no copy, the answer is {"absent"},
    unless the item also has what makes one: "entry", "long_context" and "history" (the calls before).
    """
    tools, limit = Tools(), Limits(**limits)
    copies: dict[str, Fork] = {}

    def serve(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        case = item["case"]

        def answer(calls: Calls) -> list[str]:
            said = tools.execute(calls, item["entry"], item["long_context"])
            return [_cut(text, limit.answer_characters) for text in said]

        if "call" in item:
            if case not in copies and "entry" not in item:
                yield {"absent": 1}
                return
            try:
                if case not in copies:
                    copies[case] = Fork(answer)
                    copies[case].ask(item["history"], 2 * limit.case_seconds)  # more than it took the first time
                before = copies[case].seconds
                (text,) = copies[case].ask([item["call"]], limit.call_seconds)
                yield {"text": text, "seconds": copies[case].seconds - before}
                return
            except ForkLost:
                pass
        if case in copies:
            copies.pop(case).end()

    return serve
