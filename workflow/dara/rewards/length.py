"""Length rewards {0, 1}: words of the think block (tool calling) and tokens of the response (math)."""

from __future__ import annotations

import operator

from dara.rewards.reward import check_limit


def think_words(response: str) -> int | None:
    """Number of words after the last `<think>` up to the next `</think>`; None where a tag is missing.

    Words are separated by whitespace. As in the original, `</think>` may stand anywhere: where none follows, the
    words go on to the end of the text.
    """
    if "<think>" not in response or "</think>" not in response:
        return None
    return len(response.rpartition("<think>")[2].partition("</think>")[0].split())


def think_length(response: str, limit: float = 16) -> float:
    """1 if the think block has at most `limit` words, else 0; an empty block has 0 words.

    response: the assistant turn (`assistant_turn`). A `limit` that is no number >= 0 is a ValueError.
    """
    check_limit(limit)
    words = think_words(response)
    return float(words is not None and words <= limit)


def response_length(n_tokens: int, limit: float = 4000) -> float:
    """1 if the response has at most `limit` tokens, else 0.

    n_tokens: the trainer's count of valid response tokens, the end token included. A count that is no integer
    >= 0 and a `limit` that is no number >= 0 are a ValueError.
    """
    check_limit(limit)
    try:
        count = operator.index(n_tokens)  # also NumPy's and torch's integers
    except TypeError as error:
        raise ValueError(f"n_tokens must be an integer >= 0, got {n_tokens!r}") from error
    if count < 0:
        raise ValueError(f"n_tokens must be an integer >= 0, got {n_tokens!r}")
    return float(count <= limit)
