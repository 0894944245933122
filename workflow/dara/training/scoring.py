"""The rewards of one sample, and an error that says which sample it was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dara.rewards import score

SHOWN = 1000  # characters of a prompt or response in an error


class RewardError(ValueError):
    """A reward of a sample could not be computed, or is no number."""


def score_sample(
    task: str,
    names: Sequence[str],
    params: Mapping[str, Mapping[str, float]],
    *,
    prompt_id: str,
    prompt: str,
    reference: str,
    response: str,
    n_tokens: int,
) -> dict[str, float]:
    """The K rewards of one response by name, in the order of `names`.

    prompt_id: for errors. response: the decoded response tokens without special tokens. n_tokens: their number, the end
    token included.

    Raises RewardError, which says what went wrong and for which prompt and response, whatever a reward raises, and for
    a value that is no finite number: a missing reward never becomes 0.
    """
    try:
        values = score(task, names, response=response, reference=reference, n_tokens=n_tokens, params=params)
    except Exception as error:
        raise RewardError(
            f"the rewards {', '.join(names)} failed ({type(error).__name__}: {error}) "
            + _sample(prompt_id, prompt, response)
        ) from error
    for name, value in zip(names, values, strict=True):
        if value is None or not math.isfinite(value):
            raise RewardError(f"reward {name} is {value}, not a number, {_sample(prompt_id, prompt, response)}")
    return dict(zip(names, values, strict=True))


def _sample(prompt_id: str, prompt: str, response: str) -> str:
    return f"for prompt {prompt_id} ({_shown(prompt)}) and response {_shown(response)}"


def _shown(text: str) -> str:
    """The text in quotes; of a long one the beginning and the end."""
    if len(text) <= SHOWN:
        return repr(text)
    return f"{text[: SHOWN // 2]!r} ... {text[-SHOWN // 2 :]!r} ({len(text)} characters)"
