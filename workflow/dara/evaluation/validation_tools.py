"""Validation of tool calling: the rewards of training on ToolRL's 80 validation rows.

`correctness` is the raw reward in [-3, 3], `format` and `length` are 0 or 1; the length limit is in words of the think
block.
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

FACTORY = "dara.evaluation.validation_tools:make_scorer"
COLUMNS = ("case", "category", "sample", "correctness", "format", "length", "truncated", "n_tokens", "outcome")
# What a response scores where its scorer did not end in time.
UNSCORED = {"correctness": -3.0, "format": 0}


def make_scorer() -> Any:
    """The scorer that runs in the worker process: item {"response", "reference"} -> parts of its rewards.

    Raises:
        RuntimeError: known answers do not get their known rewards.
    """
    from dara.rewards import assistant_turn, tool_correctness, tool_format

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, float]]:
        text = assistant_turn(item["response"])
        yield {"format": int(tool_format(text, item["reference"]))}
        yield {"correctness": tool_correctness(text, item["reference"])}

    call = '<think>t</think>\n<tool_call>\n{"name": "f", "parameters": {"x": 1}}\n</tool_call>'
    known = {call: {"format": 1, "correctness": 3.0}, "f(1)": {"format": 0, "correctness": -3.0}}
    check_known(score, known, call)
    return score


def score_row(response: Response, scores: Mapping[str, float], length_limit: int | None) -> dict[str, float]:
    """The columns of a response; without a length limit it is the paper's."""
    from dara.rewards import assistant_turn, think_length

    limit = {} if length_limit is None else {"limit": length_limit}
    length = int(think_length(assistant_turn(response.text), **limit))
    return {**UNSCORED, **scores, "length": length, "truncated": int(not response.finished)}


def summarise(frame: pd.DataFrame, benchmark: str) -> dict[str, Metric]:
    """Mean rewards: correctness, format, length; and truncated_rate."""
    metrics = {name: plain_metric(frame, name) for name in ("correctness", "format", "length")}
    return {**metrics, "truncated_rate": plain_metric(frame, "truncated")}
