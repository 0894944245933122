"""Held-out validation during training: the training rewards on rows outside of the training set.

The preparation of the training data wrote the rows. As in training, the text decides, truncated or not. Tool calling
(ToolRL's 80 validation rows): `correctness` is the raw reward in [-3, 3], `format` and `length` are 0 or 1; the length
limit is in words of the think block. Math (held-out problems of the training set): `correctness` and `length` are 0 or
1; the length limit is in tokens with the end token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.evaluation.math import case_files
from dara.evaluation.records import Case, Metric, Response, plain_metric, read_jsonl
from dara.registries import BenchmarkDefinition
from dara.rewards.math import math_correctness, response_length
from dara.rewards.tool_calling import assistant_turn, think_length, tool_correctness, tool_format

if TYPE_CHECKING:
    import pandas as pd


def load_cases(cases_dir: Path) -> list[Case]:
    """Return all rows, in the order of the file. Raise ValueError, with file and row, if one is wrong."""
    rows = read_jsonl(*case_files(cases_dir), ("id", "category", "messages", "reference"))
    return [Case(row["id"], row["category"], row, {"reference": row["reference"]}) for row in rows]


def prompt(case: Case) -> list[dict[str, str]]:
    """Return the messages of the training prompt."""
    return case.question["messages"]


def make_tool_scorer() -> Any:
    """Return the scorer of tool calling for a worker: item {"response", "reference"} -> parts of its rewards.

    Raise RuntimeError if known answers do not get their known rewards.
    """

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, float]]:
        text = assistant_turn(item["response"])
        yield {"format": int(tool_format(text, item["reference"]))}
        yield {"correctness": tool_correctness(text, item["reference"])}

    call = '<think>t</think>\n<tool_call>\n{"name": "f", "parameters": {"x": 1}}\n</tool_call>'
    known = {call: {"format": 1, "correctness": 3.0}, "f(1)": {"format": 0, "correctness": -3.0}}
    _preflight(score, known, call)
    return score


def make_math_scorer() -> Any:
    """Return the scorer of math for a worker: item {"response", "reference"} -> its correctness.

    Raise RuntimeError if known answers do not get their known rewards.
    """

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, int]]:
        yield {"correctness": int(math_correctness(item["response"], item["reference"]))}

    _preflight(score, {r"\boxed{\frac12}": {"correctness": 1}, "0.5": {"correctness": 0}}, "0.5")
    return score


def _preflight(score: Any, known: Mapping[str, Mapping[str, float]], reference: str) -> None:
    """Raise RuntimeError unless known responses get their known rewards: a broken scorer would give no error."""
    for response, expected in known.items():
        parts = score({"response": response, "reference": reference})
        rewards = {name: value for part in parts for name, value in part.items()}
        if rewards != expected:
            raise RuntimeError(f"the validation scorer gives {rewards} to {response!r}; expected {expected}")


def tool_row(response: Response, scores: Mapping[str, float], length_limit: int | None) -> dict[str, float]:
    """Return the columns of a response to tool calling; without a length limit the paper's is used."""
    limit = {} if length_limit is None else {"limit": length_limit}
    length = int(think_length(assistant_turn(response.text), **limit))
    unscored = {"correctness": -3.0, "format": 0}  # where the scorer did not end in time
    return {**unscored, **scores, "length": length, "truncated": int(not response.finished)}


def math_row(response: Response, scores: Mapping[str, int], length_limit: int) -> dict[str, int]:
    """Return the columns of a response to math."""
    length = int(response_length(response.n_tokens, length_limit))
    return {"correctness": scores.get("correctness", 0), "length": length, "truncated": int(not response.finished)}


def summarise(frame: pd.DataFrame) -> dict[str, Metric]:
    """Return the mean rewards, and truncated_rate."""
    metrics = {name: plain_metric(frame, name) for name in ("correctness", "format", "length") if name in frame}
    return {**metrics, "truncated_rate": plain_metric(frame, "truncated")}


TOOLRL_VALIDATION = BenchmarkDefinition(
    name="toolrl_validation",
    task="tool_calling",
    kind="validation",
    case_files=case_files,
    load_cases=load_cases,
    prompt=prompt,
    versions=lambda: {"validation": 1},
    scorer="dara.evaluation.validation:make_tool_scorer",
    scorer_version=1,
    columns=("case", "category", "sample", "correctness", "format", "length", "truncated", "n_tokens", "outcome"),
    score_row=tool_row,
    summarise=summarise,
    plain_numbers=("correctness",),
)
DEEPSCALER_VALIDATION = replace(
    TOOLRL_VALIDATION,
    name="deepscaler_validation",
    task="math",
    scorer="dara.evaluation.validation:make_math_scorer",
    columns=("case", "category", "sample", "correctness", "length", "truncated", "n_tokens", "outcome"),
    score_row=math_row,
    length_limit_needed="length_limit is missing; deepscaler_validation needs it, in tokens",
)
