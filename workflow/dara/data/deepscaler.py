"""DeepScaleR-Preview as the authors prepared it: their training rows, and the 200 rows that they validate on."""

from __future__ import annotations

from dara.data.contamination import words
from dara.data.hub import Fetch
from dara.data.problems import Exclusion, Problem
from dara.data.rows import chat_row
from dara.evaluation.math_sets import SETS, question

VERSION = 1
"""Changes whenever the same files would give other rows; it is part of the identity of the data."""
TRAIN, VALIDATION = "deepscaler_train", "deepscaler_validation"
FILES = (TRAIN, VALIDATION)
BENCHMARKS = tuple(SETS)  # what its problems are compared with


def read(fetch: Fetch) -> tuple[list[Problem], list[Problem], list[Exclusion]]:
    """Training problems, validation problems, and what training loses: rows without an answer, copies of validation.

    Prompts and answers are those of the files.

    Raises:
        ValueError: another number of rows than a file has, or a row is wrong; names the row (from 1).
    """
    validation = _problems(fetch, VALIDATION, "validation")
    held_out = {tuple(words(problem.text)): problem.id for problem in validation}
    train, excluded = [], []
    for problem in _problems(fetch, TRAIN, "train"):
        copied = held_out.get(tuple(words(problem.text)))
        if not problem.reference.strip():
            excluded.append(Exclusion(problem.id, "no_answer", ""))
        elif copied:
            excluded.append(Exclusion(problem.id, "copy_of_validation", copied))
        else:
            train.append(problem)
    return train, validation, excluded


def _problems(fetch: Fetch, source: str, prefix: str) -> list[Problem]:
    problems = []
    for number, row in enumerate(fetch.rows(source)):
        messages, reference = chat_row(row, ["user"], f"{source}, row {number + 1}")
        text = messages[0]["content"].removesuffix(question(""))
        problems.append(Problem(f"{prefix}_{number}", "deepscaler", messages, reference, text))
    return problems
