r"""The five math benchmarks: their rows in one form, with checked counts.

MATH-500, AIME 2024, AMC 2022/2023 (AMC 12), Minerva and OlympiadBench (text only, English, competition): 1,559
questions. A copy with another number of rows is rejected; the widely copied OlympiadBench file has one row more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dara.data.public import column, read_rows

VERSION = 2
"""Raised whenever the same rows would give other questions, answers or prompts (2: a prompt has the problem without
surrounding blanks)."""
LAYERS = 3
DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


@dataclass(frozen=True)
class MathSet:
    """A benchmark: its number of questions, and the possible columns of its files (the first one present is used)."""

    questions: int
    problem: tuple[str, ...]
    answer: tuple[str, ...]


SETS: dict[str, MathSet] = {
    "math500": MathSet(500, ("problem",), ("answer",)),
    "aime24": MathSet(30, ("problem",), ("answer",)),
    "amc": MathSet(83, ("problem",), ("answer",)),
    "minerva": MathSet(272, ("question", "problem"), ("answer",)),
    "olympiadbench": MathSet(674, ("question", "problem"), ("final_answer", "answers")),
}
QUESTIONS = sum(one.questions for one in SETS.values())


def read_set(name: str, path: Path) -> list[dict[str, str]]:
    """Return the questions of a set as rows {"id", "category", "problem", "answer"}; the category is the set.

    Raises:
        ValueError: another number of rows than the set has, or a row without a problem or an answer; names set, file
            and row (from 1).
    """
    shape, rows = SETS[name], read_rows(path)
    if len(rows) != shape.questions:
        raise ValueError(f"{path}: has {len(rows)} rows, but {name} has {shape.questions} questions; get the full set")
    questions = []
    for number, row in enumerate(rows, 1):
        where = f"{name}, {path}, row {number}"
        problem, answer = column(row, shape.problem, where), reference(column(row, shape.answer, where))
        if not isinstance(problem, str) or not problem.strip() or not answer:
            raise ValueError(f"{where}: needs a problem and an answer; it has {problem!r:.60} and {answer!r:.60}")
        questions.append({"id": f"{name}_{number - 1}", "category": name, "problem": problem, "answer": answer})
    return questions


def reference(answer: Any) -> str:
    """Return the answer as the graders compare it; empty if there is none.

    Of a list, the first; a float with an integer value as an integer; without up to three layers of outer math
    delimiters.

    >>> reference([142.0]), reference(r"$\\frac{1}{2}$")
    ('142', '\\\\frac{1}{2}')
    """
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        answer = answer[0] if answer else None
    if answer is None:
        return ""
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    text = str(answer).strip()
    for _ in range(LAYERS):
        text = _inside(text)
    return text


def _inside(text: str) -> str:
    """Return the text without delimiters around all of it; `$a$, $b$` has none."""
    for left, right in DELIMITERS:
        inner = text[len(left) : len(text) - len(right)]
        whole = len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right)
        if whole and left not in inner.replace(r"\$", ""):
            return inner.strip()
    return text
