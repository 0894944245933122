"""Tool calling: cases in the format of the Berkeley Function Calling Leaderboard (BFCL), scored by its own checker.

The checker is `ast_checker` of bfcl-eval (`bfcl_checkers`). Accuracy and format are 0 or 1 for each response;
categories are averaged in groups as GROUPS says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.evaluation.bfcl_calls import decode_calls
from dara.evaluation.bfcl_checkers import CHECKER_VERSION, SingleTurnChecker
from dara.evaluation.bfcl_groups import CATEGORIES, GROUPS, grouped
from dara.evaluation.records import Case, Metric, Response, plain_metric, read_jsonl

if TYPE_CHECKING:
    import pandas as pd

SCORER = {"bfcl-eval": CHECKER_VERSION}
FACTORY = "dara.evaluation.bfcl:make_scorer"
COLUMNS = ("case", "category", "sample", "accuracy", "format", "decode_error", "truncated", "n_tokens", "outcome")
# What a response scores where its scorer did not end in time.
UNSCORED = {"accuracy": 0, "format": 0, "decode_error": 1}


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
    from dara.data.laptop_tools import bfcl_prompt

    return bfcl_prompt(case.question)


def make_scorer() -> Any:
    """The scorer that runs in the worker process: item {"response", **gold} -> parts of its scores.

    Raises:
        RuntimeError: another version of bfcl-eval is installed, or known answers do not get their known scores.
    """
    from dara.rewards import assistant_turn, evaluation_format

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


def summarise(frame: pd.DataFrame, benchmark: str) -> dict[str, Metric]:
    """Metrics of a score file: average_accuracy, average_format, accuracy/<category>, format/<category>,
    decode_error_rate and truncated_rate. `frame` has COLUMNS, a row a response."""
    metrics = {}
    for column in ("accuracy", "format"):
        metrics[f"average_{column}"] = grouped(plain_metric(frame, column), GROUPS[benchmark])
        for category, rows in frame.groupby("category", sort=True):
            metrics[f"{column}/{category}"] = plain_metric(rows, column)
    metrics["decode_error_rate"] = plain_metric(frame, "decode_error")
    metrics["truncated_rate"] = plain_metric(frame, "truncated")
    return metrics
