"""What a case asks of a model, as a program: a generator that yields prompts and is sent responses.

Many programs run at once, each waiting for its own response, so that an engine always has a full batch. The dialogue
follows bfcl-eval's driver: within a turn the model is asked again as long as it makes calls, with their results in the
history; a turn ends with an output that has no readable call; a turn of more than `max_steps` outputs with calls ends
the case.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from dara.evaluation.bfcl_calls import decode_output
from dara.evaluation.records import Response, Stopped

Prompt = str | list[dict[str, str]]
"""A complete text, or chat messages that the model's own template renders."""
Program = Generator[Prompt, Response, Response]
"""Yields prompts, is sent the response to each, and returns what is kept of the case."""
Messages = list[dict[str, str]]


class Executor(Protocol):
    """Executes the tool calls of cases, each case with a state of its own."""

    def execute(self, case_id: str, calls: list[dict[str, Any]]) -> list[str]:
        """What each call returned, in order; a failed call returns a text that says so."""

    def lost(self, case_id: str) -> int:
        """How many calls of a case got no answer."""

    def forget(self, case_id: str) -> None:
        """Drop the state of a case."""


def one_request(prompt: Prompt) -> Program:
    """One prompt, one response."""
    return (yield prompt)


def dialogue(
    case_id: str,
    turns: Sequence[Messages],
    render: Callable[[Messages], Messages],
    executor: Executor,
    max_steps: int,
) -> Program:
    """A dialogue of several turns with tools.

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
    executor.forget(case_id)  # a case begins with its own state, whoever ran it before
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
    """A call as the history shows it: `name(parameter=value, ...)`."""
    ((name, parameters),) = call.items()
    given = ["..."] if parameters is None else [f"{key}={value!r}" for key, value in parameters.items()]
    return encodable(f"{name}({', '.join(given)})")


def encodable(text: str) -> str:
    """The text with halves of surrogate pairs, which no tokenizer takes, as escapes: JSON of a model can name one."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
