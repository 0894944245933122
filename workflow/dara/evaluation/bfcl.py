"""Tool calling: cases in the format of the Berkeley Function Calling Leaderboard (BFCL), scored by its own checker.

The checker is `ast_checker` of bfcl-eval 2026.3.23. Its full installation needs 1.9 GB of packages that only serve
other models; a stand-in for its table of models makes it work without them. Accuracy and format are 0 or 1 for each
response; categories are averaged in groups as GROUPS says.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dara.evaluation.records import Case, Metric, Response, plain_metric, read_jsonl

if TYPE_CHECKING:
    import pandas as pd

CHECKER_VERSION = "2026.3.23"
MODEL_NAME = "dara"  # the checker's key for its table of models; an underscore would be taken for a slash
FACTORY = "dara.evaluation.bfcl:make_scorer"
COLUMNS = ("case", "category", "sample", "accuracy", "format", "decode_error", "truncated", "n_tokens", "outcome")
# What a response scores where its scorer did not end in time.
UNSCORED = {"accuracy": 0, "format": 0, "decode_error": 1}


@dataclass(frozen=True)
class Pooled:
    """Every case counts alike, whatever its category."""

    categories: tuple[str, ...]


@dataclass(frozen=True)
class Mean:
    """Every part counts alike, however many cases it has."""

    parts: tuple[Pooled | Mean, ...]


# Benchmark -> its categories, each with the language its calls are written in.
CATEGORIES: dict[str, dict[str, str]] = {
    "laptop_tools": {
        "multiple_one_parameter": "PYTHON",
        "multiple_two_parameters": "PYTHON",
        "multiple_three_parameters": "PYTHON",
    },
}
# Benchmark -> how the categories make the average. The laptop's: the mean of Few (one parameter) and Many (two, three).
GROUPS: dict[str, Mean] = {
    "laptop_tools": Mean(
        (
            Pooled(("multiple_one_parameter",)),
            Pooled(("multiple_two_parameters", "multiple_three_parameters")),
        )
    ),
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def case_files(benchmark: str, cases_dir: Path) -> list[Path]:
    """The files that the cases are made of."""
    names = [f"BFCL_v4_{category}.json" for category in CATEGORIES[benchmark]]
    return [folder / name for folder in (cases_dir, cases_dir / "possible_answer") for name in names]


def load_cases(benchmark: str, cases_dir: Path) -> list[Case]:
    """All cases, category by category. Raises ValueError with file and row where one is wrong or has no answer."""
    cases = []
    for category, language in CATEGORIES[benchmark].items():
        path = cases_dir / f"BFCL_v4_{category}.json"
        answer_path = cases_dir / "possible_answer" / path.name
        answers = {row["id"]: row["ground_truth"] for row in read_jsonl(answer_path, ("id", "ground_truth"))}
        for number, row in enumerate(read_jsonl(path, ("id", "question", "function")), 1):
            if row["id"] not in answers:
                raise ValueError(f"{path}, row {number}: case {row['id']!r} has no answer in {answer_path}")
            gold = {
                "functions": row["function"],
                "answer": answers[row["id"]],
                "category": category,
                "language": language,
            }
            cases.append(Case(row["id"], category, row, gold))
    return cases


def prompt(case: Case) -> str:
    """The complete text that a model continues."""
    from dara.data import bfcl_prompt  # not at the top: it brings transformers, and scoring runs without

    return bfcl_prompt(case.question)


def decode_calls(text: str) -> list[dict[str, Any]] | None:
    """The calls in an assistant turn, as `[{name: parameters}, ...]`; None when it has no readable call.

    Read is what follows the last `<tool_call>`, up to the next `</tool_call>` or the end; each line is one call in
    JSON. Lines that are no such object are skipped, and so are calls of "none", by which a model declines. A call
    whose name is not a dotted identifier or whose parameters are no object makes the whole turn unreadable.
    """
    _, tag, block = text.rpartition("<tool_call>")
    lines = block.partition("</tool_call>")[0].split("\n") if tag else []
    found = [call for call in map(_parse_call, lines) if call is not None]
    if not found:
        return None
    calls = [(name, parameters) for name, parameters in found if name.strip().lower() != "none"]
    if not all(_NAME.fullmatch(name) and isinstance(parameters, dict) for name, parameters in calls):
        return None
    return [{name: parameters} for name, parameters in calls]


def _parse_call(line: str) -> tuple[str, Any] | None:
    try:
        call = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: thousands of nested braces
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "parameters" not in call:
        return None
    return call["name"], call["parameters"]


def make_scorer() -> Any:
    """The scorer that runs in the worker process: item {"response", **gold} -> parts of its scores.

    Raises:
        RuntimeError: another version of bfcl-eval is installed, or known answers do not get their known scores.
    """
    from dara.rewards import assistant_turn, evaluation_format

    check = _load_checker()

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, int]]:
        text = assistant_turn(item["response"])
        yield {"format": int(evaluation_format([text]) == 1)}
        calls = decode_calls(text)
        yield {"decode_error": int(calls is None)}
        yield {"accuracy": int(calls is not None and check(calls, item))}

    _preflight(score)
    return score


def _load_checker() -> Any:
    """`check(calls, item) -> bool` with the functions of bfcl-eval; only for the worker process."""
    installed = metadata.version("bfcl-eval")
    if installed != CHECKER_VERSION:
        raise RuntimeError(f"bfcl-eval {installed} is installed; the scores are defined by {CHECKER_VERSION}")
    stand_in = types.ModuleType("bfcl_eval.constants.model_config")
    stand_in.MODEL_CONFIG_MAPPING = {MODEL_NAME: types.SimpleNamespace(underscore_to_dot=False)}
    sys.modules[stand_in.__name__] = stand_in
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.utils import is_function_calling_format_output

    def check(calls: list[dict[str, Any]], item: Mapping[str, Any]) -> bool:
        if not is_function_calling_format_output(calls):
            return False
        language, category = Language[item["language"]], item["category"]
        try:
            return ast_checker(item["functions"], calls, item["answer"], language, category, MODEL_NAME)["valid"]
        except RecursionError:  # a value nested so deeply that it cannot be compared; no gold value is
            return False

    return check


def _preflight(score: Any) -> None:
    """A decoder that finds nothing would score 0 without a word: known turns must get their known scores."""
    city = {"type": "string", "description": "The city."}
    function = {"name": "weather", "parameters": {"type": "dict", "properties": {"city": city}, "required": ["city"]}}
    answer = [{"weather": {"city": ["paris"]}}]
    gold = {"functions": [function], "answer": answer, "category": "multiple", "language": "PYTHON"}
    turn = '<think>t</think>\n<tool_call>\n{"name":"weather","parameters":{"city":"%s"}}\n</tool_call>'
    known = {turn % "paris": (1, 1, 0), turn % "rome": (0, 1, 0), "paris": (0, 0, 1)}
    for response, expected in known.items():
        scores: dict[str, int] = {}
        for part in score({"response": response, **gold}):
            scores |= part
        if (scores["accuracy"], scores["format"], scores["decode_error"]) != expected:
            raise RuntimeError(
                f"the tool scorer gives {scores} to {response!r}; expected (accuracy, format, decode_error) {expected}"
            )


def score_row(response: Response, scores: Mapping[str, int], length_limit: int | None) -> dict[str, int]:
    """The columns of a response from the parts that its scorer gave; the text alone decides, truncated or not."""
    return {**UNSCORED, **scores, "truncated": int(not response.finished)}


def category_weights(group: Mean | Pooled, counts: Mapping[str, int]) -> dict[str, float]:
    """Weight of each category's mean in the average of `group`; they sum to 1. `counts`: cases of each category.

    Raises:
        ValueError: a group has no case.
    """
    if isinstance(group, Pooled):
        total = sum(counts.get(category, 0) for category in group.categories)
        if total == 0:
            raise ValueError(
                f"no case of {', '.join(group.categories)}: their average does not exist; hold out more cases"
            )
        return {category: counts.get(category, 0) / total for category in group.categories}
    weights: dict[str, float] = {}
    for part in group.parts:
        for category, weight in category_weights(part, counts).items():
            weights[category] = weights.get(category, 0.0) + weight / len(group.parts)
    return weights


def summarise(frame: pd.DataFrame, benchmark: str) -> dict[str, Metric]:
    """Metrics of a score file: average_accuracy, average_format, accuracy/<category>, format/<category>,
    decode_error_rate and truncated_rate. `frame` has COLUMNS, a row a response."""
    metrics = {}
    for column in ("accuracy", "format"):
        metrics[f"average_{column}"] = _grouped(plain_metric(frame, column), GROUPS[benchmark])
        for category, rows in frame.groupby("category", sort=True):
            metrics[f"{column}/{category}"] = plain_metric(rows, column)
    metrics["decode_error_rate"] = plain_metric(frame, "decode_error")
    metrics["truncated_rate"] = plain_metric(frame, "truncated")
    return metrics


def _grouped(metric: Metric, group: Mean) -> Metric:
    counts = {category: int((metric.strata == category).sum()) for category in set(metric.strata)}
    weights = category_weights(group, counts)
    unknown = sorted(set(counts) - set(weights))
    if unknown:
        raise ValueError(f"category {unknown[0]!r} belongs to no group; the groups hold {', '.join(weights)}")
    each = {category: weights[category] / count for category, count in counts.items()}
    return Metric(metric.values, metric.strata, np.array([each[category] for category in metric.strata]))
