"""Length rewards {0, 1}: words of the think block (tool calling) and tokens of the response (math)."""

from __future__ import annotations

import operator

from dara.rewards.reward import check_limit


def think_words(response: str) -> int | None:
    """Return the number of words after the last `<think>` up to the next `</think>`; None if a tag is missing.

    Words are separated by whitespace. As in the original, `</think>` may be anywhere: if none follows `<think>`, the
    words up to the end of the text count.
    """
    if "<think>" not in response or "</think>" not in response:
        return None
    return len(response.rpartition("<think>")[2].partition("</think>")[0].split())


def think_length(response: str, limit: float = 16) -> float:
    """Return 1 if the think block has at most `limit` words, else 0; an empty block has 0 words.

    response: the assistant turn (`assistant_turn`). Raises ValueError unless `limit` is a number >= 0.
    """
    check_limit(limit)
    words = think_words(response)
    return float(words is not None and words <= limit)


def response_length(n_tokens: int, limit: float = 4000) -> float:
    """Return 1 if the response has at most `limit` tokens, else 0.

    n_tokens: the trainer's count of valid response tokens, the end token included. Raises ValueError unless the count
    is an integer >= 0 and `limit` a number >= 0.
    """
    check_limit(limit)
    try:
        count = operator.index(n_tokens)  # also NumPy's and torch's integers
    except TypeError as error:
        raise ValueError(f"n_tokens must be an integer >= 0, got {n_tokens!r}") from error
    if count < 0:
        raise ValueError(f"n_tokens must be an integer >= 0, got {n_tokens!r}")
    return float(count <= limit)
