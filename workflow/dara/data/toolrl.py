"""ToolRL's RL split (rlla_4k): 3,920 training and 80 validation rows of a dialogue, its tools and the gold turn."""

from __future__ import annotations

import re
from typing import Any

from dara.data.hub import Fetch
from dara.data.problems import Exclusion, Problem
from dara.data.rows import chat_row
from dara.rewards import score

VERSION = 1
"""Changes whenever the same files would give other rows; it is part of the identity of the data."""
TRAIN, VALIDATION = "toolrl_train", "toolrl_validation"
FILES = (TRAIN, VALIDATION)
BENCHMARKS = ("bfcl_v4",)  # what its problems are compared with

_USER_TURN = re.compile(r"<user>(.*?)</user>", re.DOTALL)


def read(fetch: Fetch) -> tuple[list[Problem], list[Problem], list[Exclusion]]:
    """Training problems, validation problems, and training rows whose gold turn the rewards cannot read.

    Raises:
        ValueError: another number of rows than the split has, or a row is wrong; names file and row (from 1).
    """
    excluded: list[Exclusion] = []
    train = []
    for problem in _problems(fetch, TRAIN, "train"):
        fault = _fault(problem.reference)
        if fault:
            excluded.append(Exclusion(problem.id, "unusable_reference", fault))
        else:
            train.append(problem)
    validation = _problems(fetch, VALIDATION, "validation")
    for problem in validation:
        fault = _fault(problem.reference)
        if fault:
            raise ValueError(f"{VALIDATION}, {problem.id}: the rewards cannot read its gold turn: {fault}")
    return train, validation, excluded


def _problems(fetch: Fetch, source: str, prefix: str) -> list[Problem]:
    return [_problem(row, source, prefix, number) for number, row in enumerate(fetch.rows(source))]


def _problem(row: dict[str, Any], source: str, prefix: str, number: int) -> Problem:
    where = f"{source}, row {number + 1}"
    prompt, reference = chat_row(row, ["system", "user"], where)
    return Problem(f"{prefix}_{number}", _category(reference), prompt, reference, _user_text(prompt[-1]["content"]))


def _category(reference: str) -> str:
    """Which structure the format reward requires: the tags of the gold turn."""
    tags = [tag for tag in ("tool_call", "response") if f"<{tag}>" in reference]
    return "_and_".join(tags) or "think"


def _user_text(content: str) -> str:
    """What the user says in the dialogue, without the headline, the calls and their results."""
    return "\n".join(turn.strip() for turn in _USER_TURN.findall(content)) or content


def _fault(reference: str) -> str:
    """Why the rewards refuse a gold turn; empty where they do not."""
    try:
        score("tool_calling", ("correctness", "format"), response="", reference=reference, n_tokens=0, params={})
    except ValueError as error:
        return str(error)
    return ""
