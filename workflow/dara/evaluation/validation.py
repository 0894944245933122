"""Held-out validation during training: the training rewards on rows that are never trained on.

`validation_tools` and `validation_math` are the benchmarks; what they share is here. The rows are those that the
preparation of the training data wrote. As in training, the text decides as it is, truncated or not.
"""

from __future__ import annotations

from pathlib import Path

from dara.evaluation.records import Case, read_jsonl

FOLDER = "validation"
"""Where a prepared data set keeps these rows."""
VERSIONS = {"validation": 1}


def case_files(benchmark: str, cases_dir: Path) -> list[Path]:
    """The files that the cases are made of."""
    return [cases_dir / "problems.jsonl"]


def load_cases(benchmark: str, cases_dir: Path) -> list[Case]:
    """All rows, in the order of the file. Raises ValueError with file and row where one is wrong."""
    (path,) = case_files(benchmark, cases_dir)
    rows = read_jsonl(path, ("id", "category", "messages", "reference"))
    return [Case(row["id"], row["category"], row, {"reference": row["reference"]}) for row in rows]


def prompt(case: Case) -> list[dict[str, str]]:
    """What the model is asked: the messages of the training prompt."""
    return case.question["messages"]


def check_known(score: object, known: dict[str, dict[str, float]], reference: str) -> None:
    """A scorer that finds nothing would not show: RuntimeError unless known responses get their known rewards."""
    for response, expected in known.items():
        rewards: dict[str, float] = {}
        for part in score({"response": response, "reference": reference}):
            rewards |= part
        if rewards != expected:
            raise RuntimeError(f"the validation scorer gives {rewards} to {response!r}; expected {expected}")
