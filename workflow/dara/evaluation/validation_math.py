"""Validation of math: the rewards of training on problems of the training set that were held out.

`correctness` and `length` are 0 or 1; the length limit is in tokens with the end token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dara.evaluation.records import Metric, Response, plain_metric
from dara.evaluation.validation import VERSIONS, case_files, check_known, load_cases, prompt

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COLUMNS",
    "FACTORY",
    "VERSIONS",
    "case_files",
    "load_cases",
    "make_scorer",
    "prompt",
    "score_row",
    "summarise",
]

FACTORY = "dara.evaluation.validation_math:make_scorer"
COLUMNS = ("case", "category", "sample", "correctness", "length", "truncated", "n_tokens", "outcome")


def make_scorer() -> Any:
    """The scorer that runs in the worker process: item {"response", "reference"} -> its correctness.

    Raises:
        RuntimeError: known answers do not get their known rewards.
    """
    from dara.rewards import math_correctness

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, int]]:
        yield {"correctness": int(math_correctness(item["response"], item["reference"]))}

    check_known(score, {r"\boxed{\frac12}": {"correctness": 1}, "0.5": {"correctness": 0}}, "0.5")
    return score


def score_row(response: Response, scores: Mapping[str, int], length_limit: int | None) -> dict[str, int]:
    """The columns of a response.

    Raises:
        ValueError: no length limit.
    """
    from dara.rewards import response_length

    if length_limit is None:
        raise ValueError("validation.length_limit is missing; deepscaler_validation needs it, in tokens")
    length = int(response_length(response.n_tokens, length_limit))
    return {"correctness": scores.get("correctness", 0), "length": length, "truncated": int(not response.finished)}


def summarise(frame: pd.DataFrame, benchmark: str) -> dict[str, Metric]:
    """Mean rewards: correctness, length; and truncated_rate."""
    metrics = {name: plain_metric(frame, name) for name in ("correctness", "length")}
    return {**metrics, "truncated_rate": plain_metric(frame, "truncated")}
