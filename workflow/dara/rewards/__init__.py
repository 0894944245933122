"""Rewards of both tasks: each is a function of one response with a declared range.

A new reward is a function and a line in `REWARDS`; a user's own is loaded from a file (`load_rewards`).

>>> score("math", ["correctness", "length"], response=r"\\boxed{42}", reference="42", n_tokens=7, params={})
[1.0, 1.0]
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from math import inf, isnan
from numbers import Real
from pathlib import Path

from dara.places import REWARD, load_function
from dara.rewards.math import math_correctness, numeric_equal, response_length
from dara.rewards.reward import INPUTS, Reward, check_limit, check_reference
from dara.rewards.tool_calling import (
    assistant_turn,
    evaluation_format,
    think_length,
    think_words,
    tool_correctness,
    tool_format,
)

__all__ = [
    "REWARDS",
    "Reward",
    "assistant_turn",
    "check_params",
    "evaluation_format",
    "load_rewards",
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

REWARDS: dict[str, dict[str, Reward]] = {
    "tool_calling": {
        "correctness": Reward(tool_correctness, -3.0, 3.0),
        "format": Reward(tool_format, 0.0, 1.0),
        "length": Reward(think_length, 0.0, 1.0),
    },
    "math": {
        "correctness": Reward(math_correctness, 0.0, 1.0),
        "length": Reward(response_length, 0.0, 1.0),
    },
}


def load_rewards(task: str, functions: Mapping[str, str], base_dir: str | Path | None = None) -> None:
    """Add a user's own rewards to a task in this process: name -> 'my_rewards.py:brevity' or a module's function.

    A file is relative to base_dir. Its `RANGES`, function name -> (lowest, highest), declares ranges other than 0 to 1.

    Raises ValueError, with the function, for a name of a built-in reward, a missing function, parameters that a reward
    cannot have, and an invalid range.
    """
    for name, where in functions.items():
        there = REWARDS[task].get(name)
        if there is not None and not there.own:
            raise ValueError(f"{name!r} is the name of a built-in reward: give {where!r} a name of its own.")
        function, module = load_function(where, base_dir, example=REWARD)
        low, high = _range(where, getattr(module, "RANGES", {}))
        reward = Reward(function, low, high, own=where)
        _check_signature(reward)
        REWARDS[task][name] = reward


def _range(where: str, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    declared = ranges.get(where.rpartition(":")[2], (0.0, 1.0)) if isinstance(ranges, Mapping) else None
    whole = isinstance(declared, tuple | list) and len(declared) == 2 and all(isinstance(x, Real) for x in declared)
    if not whole or not -inf < declared[0] < declared[1] < inf:
        raise ValueError(f'{where!r}: RANGES must be like {{"brevity": (0.0, 1.0)}}: (lowest, highest) of a function')
    return float(declared[0]), float(declared[1])


def _check_signature(reward: Reward) -> None:
    form = "write it as brevity(response, reference, n_tokens, *, limit=10), of the first three those that it needs"
    signature = inspect.signature(reward.function).parameters.values()
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY) for one in signature):
        raise ValueError(f"{reward.own!r} has *args, ** or /; {form}")
    unknown = [name for name in reward.inputs if name not in INPUTS]
    if unknown or not reward.inputs:
        what = f"parameter {unknown[0]!r} has no default and is none of {', '.join(INPUTS)}" if unknown else "no input"
        raise ValueError(f"{reward.own!r}: {what}; {form}")


def score(
    task: str,
    names: Sequence[str],
    *,
    response: str,
    reference: str,
    n_tokens: int,
    params: Mapping[str, Mapping[str, float]],
) -> list[float]:
    """Return the K rewards of one response, in the order of `names`.

    response: the decoded response, or prompt and response: for tool calling the assistant turn is extracted here.
    n_tokens: response tokens including the end token; used only by rewards that count tokens.
    params: reward -> parameter -> value, such as {"length": {"limit": 23}}.
    No model text makes a built-in reward raise. ValueError for an unknown task, reward or parameter, a malformed
    reference, and an own reward outside its range.
    """
    check_names(task, names)
    check_params(task, params)
    check_reference(reference)
    text = assistant_turn(response) if task == "tool_calling" else response
    given = {"response": text, "reference": reference, "n_tokens": n_tokens}
    values = []
    for name in names:
        reward = REWARDS[task][name]
        value = reward.function(*(given[key] for key in reward.inputs), **params.get(name, {}))
        if reward.own and isinstance(value, Real) and not isnan(value):
            if not reward.minimum <= value <= reward.maximum:
                raise ValueError(
                    f"reward {name} is {value}, outside of its range {reward.minimum:g} to {reward.maximum:g}; "
                    f"declare the range in the file of {reward.own!r}: RANGES"
                )
            value = float(value)
        values.append(value)
    return values


def reward_ranges(task: str, names: Sequence[str]) -> list[tuple[float, float]]:
    """Return (minimum, maximum) of each of `names`, in their order; raise ValueError for an unknown task or reward."""
    check_names(task, names)
    return [(REWARDS[task][name].minimum, REWARDS[task][name].maximum) for name in names]


def check_names(task: str, names: Sequence[str], own: Collection[str] = ()) -> None:
    """Raise ValueError for an unknown task, or a name that is not a reward of it. own: names of the user's rewards."""
    if task not in REWARDS:
        raise ValueError(f"unknown task {task!r}: the tasks are {', '.join(REWARDS)}")
    for name in names:
        if name not in REWARDS[task] and name not in own:
            raise ValueError(
                f"unknown reward {name!r} of task {task}: its rewards are {', '.join([*REWARDS[task], *own])}"
            )


def check_params(task: str, params: Mapping[str, Mapping[str, float]], own: Collection[str] = ()) -> None:
    """Raise ValueError unless each parameter belongs to one of the task's rewards (which need not be selected).

    own: names of a user's own rewards, whose parameters are known only once they are loaded.
    """
    check_names(task, list(params), own)
    for name in params:
        reward = REWARDS[task].get(name)
        for parameter, value in params[name].items() if reward else ():
            if parameter not in reward.parameters:
                known = ", ".join(reward.parameters) or "none"
                raise ValueError(
                    f"unknown parameter {parameter!r} of reward {name} of task {task}: its parameters are {known}"
                )
            if not reward.own:
                check_limit(value)
