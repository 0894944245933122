"""Tool calling: cases in the format of the Berkeley Function Calling Leaderboard (BFCL), and averages over categories.

The laptop's cases have one turn each. The checker is `ast_checker` of bfcl-eval (`bfcl_calls`); accuracy and format are
0 or 1 for each response.

BFCL-v4 in the paper has 14 categories and three groups. Non-Live is the mean of Simple (itself a mean over three
languages), multiple, parallel and parallel_multiple; Live counts each of its cases alike; Multi-Turn is the mean of
its four. The average is the mean of the three groups: not the leaderboard's "Overall", which has other weights and
more categories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.evaluation.bfcl_calls import CHECKER_VERSION, SingleTurnChecker, decode_calls
from dara.evaluation.records import Case, Metric, Response, plain_metric, read_jsonl
from dara.registries import BenchmarkDefinition

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Pooled:
    """Average in which every case has the same weight, whatever its category."""

    categories: tuple[str, ...]


@dataclass(frozen=True)
class Mean:
    """Average in which every part has the same weight, whatever its number of cases."""

    parts: tuple[Pooled | Mean, ...]


def _each(*categories: str) -> Mean:
    """Return the mean over categories."""
    return Mean(tuple(Pooled((category,)) for category in categories))


SIMPLE = _each("simple_python", "simple_java", "simple_javascript")
NON_LIVE = Mean((SIMPLE, *_each("multiple", "parallel", "parallel_multiple").parts))
LIVE = Pooled(("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"))
MULTI_TURN = _each("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")

# Benchmark -> how the categories make the average. The laptop's: the mean of Few (one parameter) and Many (two, three).
GROUPS: dict[str, Mean] = {
    "laptop_tools": Mean(
        (
            Pooled(("multiple_one_parameter",)),
            Pooled(("multiple_two_parameters", "multiple_three_parameters")),
        )
    ),
    "bfcl_v4": Mean((NON_LIVE, LIVE, MULTI_TURN)),
}
# Benchmark -> the groups that have a metric of their own.
NAMED_GROUPS: dict[str, dict[str, Mean | Pooled]] = {
    "laptop_tools": {},
    "bfcl_v4": {"simple": SIMPLE, "non_live": NON_LIVE, "live": LIVE, "multi_turn": MULTI_TURN},
}
# Benchmark -> its categories, each with the language its calls are written in.
CATEGORIES: dict[str, dict[str, str]] = {
    "laptop_tools": {
        "multiple_one_parameter": "PYTHON",
        "multiple_two_parameters": "PYTHON",
        "multiple_three_parameters": "PYTHON",
    },
    "bfcl_v4": {
        "simple_python": "PYTHON",
        "simple_java": "JAVA",
        "simple_javascript": "JAVASCRIPT",
        "multiple": "PYTHON",
        "parallel": "PYTHON",
        "parallel_multiple": "PYTHON",
        "live_simple": "PYTHON",
        "live_multiple": "PYTHON",
        "live_parallel": "PYTHON",
        "live_parallel_multiple": "PYTHON",
        "multi_turn_base": "PYTHON",
        "multi_turn_miss_func": "PYTHON",
        "multi_turn_miss_param": "PYTHON",
        "multi_turn_long_context": "PYTHON",
    },
}
# The number of cases of each category of BFCL-v4: 3,301 in all.
BFCL_V4_COUNTS: dict[str, int] = {
    "simple_python": 400,
    "simple_java": 100,
    "simple_javascript": 50,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "multi_turn_base": 200,
    "multi_turn_miss_func": 200,
    "multi_turn_miss_param": 200,
    "multi_turn_long_context": 200,
}


def is_multi_turn(category: str) -> bool:
    """Return whether cases of the category are dialogues of several turns, with tools that are executed."""
    return category.startswith("multi_turn_")


def categories_of(group: Mean | Pooled) -> tuple[str, ...]:
    """Return the categories of a group, in its order."""
    if isinstance(group, Pooled):
        return group.categories
    return tuple(category for part in group.parts for category in categories_of(part))


def category_weights(group: Mean | Pooled, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the weight of each category's mean in the average of `group`; they sum to 1.

    `counts`: cases of each category.

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


def grouped(metric: Metric, group: Mean | Pooled) -> Metric:
    """Return `metric` with the weights of `group` instead of equal weights of all questions; its strata are categories.

    Raises:
        ValueError: a group has no case, or a category belongs to no group.
    """
    counts = {category: int((metric.strata == category).sum()) for category in set(metric.strata)}
    weights = category_weights(group, counts)
    unknown = sorted(set(counts) - set(weights))
    if unknown:
        raise ValueError(f"category {unknown[0]!r} belongs to no group; the groups hold {', '.join(weights)}")
    each = {category: weights[category] / count for category, count in counts.items()}
    import numpy as np

    return Metric(metric.values, metric.strata, np.array([each[category] for category in metric.strata]))


NAME = "laptop_tools"
HEADLINE = {"average_accuracy": "Average Accuracy", "average_format": "Average Format"}
# Scores of a response whose scorer did not end in time.
UNSCORED = {"accuracy": 0, "format": 0, "decode_error": 1}


def case_files(cases_dir: Path, benchmark: str = NAME) -> list[Path]:
    """Return the files with the cases of a benchmark in BFCL's format."""
    names = [f"BFCL_v4_{category}.json" for category in CATEGORIES[benchmark]]
    return [folder / name for folder in (cases_dir, cases_dir / "possible_answer") for name in names]


def load_cases(cases_dir: Path) -> list[Case]:
    """Return all cases, category by category. Raise ValueError, with file and row, if one is wrong or has no answer."""
    cases = []
    for category, language in CATEGORIES[NAME].items():
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
    """Return the complete text that a model continues."""
    from dara.data.laptop_tools import bfcl_prompt  # not at the top: scoring needs no transformers

    return bfcl_prompt(case.question)


def make_scorer() -> Any:
    """Return the scorer that runs in the worker process: item {"response", **gold} -> parts of its scores.

    Raises:
        RuntimeError: another version of bfcl-eval is installed, or known answers do not get their known scores.
    """
    from dara.rewards.tool_calling import assistant_turn, evaluation_format

    check = SingleTurnChecker()

    def score(item: Mapping[str, Any]) -> Iterator[dict[str, int]]:
        text = assistant_turn(item["response"])
        yield {"format": int(evaluation_format([text]) == 1)}
        calls = decode_calls(text)
        yield {"decode_error": int(calls is None)}
        yield {"accuracy": int(calls is not None and check(calls, item))}

    _preflight(score)
    return score


def _preflight(score: Any) -> None:
    """Raise RuntimeError unless known turns get their known scores: a broken decoder would score 0 silently."""
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
    """Return the columns of a response from its scores; the text alone decides, truncated or not."""
    return {**UNSCORED, **scores, "truncated": int(not response.finished)}


def summarise(frame: pd.DataFrame) -> dict[str, Metric]:
    """Return the metrics of a checkpoint's scores.

    They are average_accuracy, average_format, accuracy/<category>, format/<category>, decode_error_rate and
    truncated_rate.
    """
    metrics = {}
    for column in ("accuracy", "format"):
        metrics[f"average_{column}"] = grouped(plain_metric(frame, column), GROUPS[NAME])
        for category, rows in frame.groupby("category", sort=True):
            metrics[f"{column}/{category}"] = plain_metric(rows, column)
    metrics["decode_error_rate"] = plain_metric(frame, "decode_error")
    metrics["truncated_rate"] = plain_metric(frame, "truncated")
    return metrics


LAPTOP_TOOLS = BenchmarkDefinition(
    name=NAME,
    task="tool_calling",
    kind="laptop",
    case_files=case_files,
    load_cases=load_cases,
    prompt=prompt,
    one_stream=True,
    scorer="dara.evaluation.bfcl:make_scorer",
    scorer_version=2,  # 2: a call with NaN is a call
    graders={"bfcl-eval": CHECKER_VERSION},
    columns=("case", "category", "sample", "accuracy", "format", "decode_error", "truncated", "n_tokens", "outcome"),
    score_row=score_row,
    summarise=summarise,
    headline=HEADLINE,
)
