"""Rewards of both tasks: each is a function of one response, and each declares its range.

>>> score("math", ["correctness", "length"], response=r"\\boxed{42}", reference="42", n_tokens=7, params={})
[1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dara.rewards.checks import check_limit, check_reference
from dara.rewards.length import response_length, think_length, think_words
from dara.rewards.math import math_correctness, numeric_equal
from dara.rewards.tool_calling import assistant_turn, evaluation_format, tool_correctness, tool_format

__all__ = [
    "REWARDS",
    "Reward",
    "assistant_turn",
    "check_params",
    "evaluation_format",
    "math_correctness",
    "numeric_equal",
    "response_length",
    "reward_ranges",
    "score",
    "think_length",
    "think_words",
    "tool_correctness",
    "tool_format",
]


@dataclass(frozen=True)
class Reward:
    """A reward: its function, the range of its values, and what the function is called with."""

    function: Callable[..., float]
    minimum: float
    maximum: float
    needs: Literal["text", "tokens"]  # the response's text, or its number of tokens
    uses_reference: bool = False  # function(text, reference) instead of function(text)
    parameters: tuple[str, ...] = ()  # keyword arguments that a configuration may set


REWARDS: dict[str, dict[str, Reward]] = {
    "tool_calling": {
        "correctness": Reward(tool_correctness, -3.0, 3.0, "text", uses_reference=True),
        "format": Reward(tool_format, 0.0, 1.0, "text", uses_reference=True),
        "length": Reward(think_length, 0.0, 1.0, "text", parameters=("limit",)),
    },
    "math": {
        "correctness": Reward(math_correctness, 0.0, 1.0, "text", uses_reference=True),
        "length": Reward(response_length, 0.0, 1.0, "tokens", parameters=("limit",)),
    },
}


def score(
    task: str,
    names: Sequence[str],
    *,
    response: str,
    reference: str,
    n_tokens: int,
    params: Mapping[str, Mapping[str, float]],
) -> list[float]:
    """The K rewards of one response, in the order of `names`.

    response: the decoded response, or prompt and response: for tool calling the assistant turn is taken here.
    n_tokens: response tokens including the end token; only rewards that count tokens look at it.
    params: reward -> parameter -> value, such as {"length": {"limit": 23}}.
    No text of a model raises; ValueError for an unknown task, reward or parameter, and for a malformed
    reference.
    """
    rewards = _select(task, names)
    check_params(task, params)
    check_reference(reference)
    text = assistant_turn(response) if task == "tool_calling" else response
    values = []
    for name, reward in zip(names, rewards, strict=True):
        if reward.needs == "tokens":
            arguments: tuple = (n_tokens,)
        else:
            arguments = (text, reference) if reward.uses_reference else (text,)
        values.append(reward.function(*arguments, **params.get(name, {})))
    return values


def reward_ranges(task: str, names: Sequence[str]) -> list[tuple[float, float]]:
    """(minimum, maximum) of each of `names`, in their order; ValueError for an unknown task or reward."""
    return [(reward.minimum, reward.maximum) for reward in _select(task, names)]


def _select(task: str, names: Sequence[str]) -> list[Reward]:
    if task not in REWARDS:
        raise ValueError(f"unknown task {task!r}: the tasks are {', '.join(REWARDS)}")
    known = REWARDS[task]
    for name in names:
        if name not in known:
            raise ValueError(f"unknown reward {name!r} of task {task}: its rewards are {', '.join(known)}")
    return [known[name] for name in names]


def check_params(task: str, params: Mapping[str, Mapping[str, float]]) -> None:
    """ValueError unless each parameter belongs to one of the task's rewards (which need not be selected)."""
    for name, reward in zip(params, _select(task, list(params)), strict=True):
        for parameter in params[name]:
            if parameter not in reward.parameters:
                known = ", ".join(reward.parameters) or "none"
                raise ValueError(
                    f"unknown parameter {parameter!r} of reward {name} of task {task}: its parameters are {known}"
                )
            check_limit(params[name][parameter])
