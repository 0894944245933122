"""DeepScaleR-Preview: 40,315 competition problems with answers; some of them are held out for validation."""

from __future__ import annotations

import hashlib

from dara.data.contamination import words
from dara.data.hub import Fetch
from dara.data.problems import Exclusion, Problem
from dara.data.rows import column
from dara.evaluation.math_sets import SETS, question, reference

VERSION = 1
"""Changes whenever the same file would give other rows; it is part of the identity of the data."""
SOURCE = "deepscaler"
FILES = (SOURCE,)
BENCHMARKS = tuple(SETS)  # what its problems are compared with


def read(fetch: Fetch) -> tuple[list[Problem], list[Problem], list[Exclusion]]:
    """Problems, no validation problems (`split` holds them out), and the rows without an answer.

    Raises:
        ValueError: another number of rows than the set has, or a row without a problem; names the row (from 1).
    """
    problems, excluded = [], []
    for number, row in enumerate(fetch.rows(SOURCE)):
        where = f"{SOURCE}, row {number + 1}"
        text, answer = column(row, ("problem",), where), reference(column(row, ("answer",), where))
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{where}: has no problem; it has {text!r:.60}")
        name = f"train_{number}"
        if not answer:
            excluded.append(Exclusion(name, "no_answer", ""))
            continue
        problems.append(Problem(name, SOURCE, [{"role": "user", "content": question(text)}], answer, text))
    return problems, [], excluded


def split(
    train: list[Problem], validation: list[Problem], rows: int
) -> tuple[list[Problem], list[Problem], list[Exclusion]]:
    """Hold `rows` problems out: training without them, the held-out ones, and copies of them that training loses.

    The order in which problems are taken comes from a checksum of their place in the file. So it is the same for each
    model, though not each model has the same problems left.
    """
    order = sorted(train, key=lambda problem: hashlib.sha256(f"{SOURCE}/{VERSION}/{problem.id}".encode()).digest())
    if len(order) <= rows:
        raise ValueError(f"data.validation_rows: {rows}, but only {len(order)} problems are left; hold out fewer")
    chosen = {problem.id for problem in order[:rows]}
    held_out = [problem for problem in train if problem.id in chosen]
    texts = {tuple(words(problem.text)): problem.id for problem in held_out}
    kept, copies = [], []
    for problem in train:
        if problem.id in chosen:
            continue
        same = texts.get(tuple(words(problem.text)))
        if same is None:
            kept.append(problem)
        else:
            copies.append(Exclusion(problem.id, "copy_of_validation", same))
    return kept, held_out, copies
