r"""Readers of public data: data files, ToolRL's RL split, and DeepScaleR-Preview with the authors' split."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.data.contamination import words
from dara.places import DATA, load_function
from dara.rewards import score

if TYPE_CHECKING:
    from dara.data.hub import Fetch

TOOLRL = ("toolrl_train", "toolrl_validation")
DEEPSCALER = ("deepscaler_train", "deepscaler_validation")
INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."

OWN_ROW = "{'messages': [{'role': 'user', 'content': '...'}], 'reference': '...'}"

Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A row of a data set, for training or validation.

    Attributes:
        messages: the dialogue that the model continues, [{"role", "content"}].
        reference: the reference with which the rewards compare a response.
        text: the problem's own words, without instructions, for the comparison with benchmarks.
    """

    id: str
    category: str
    messages: list[dict[str, str]]
    reference: str
    text: str


@dataclass(frozen=True)
class Exclusion:
    """A row that is not used, with its reason: a word for the count, and the details."""

    id: str
    reason: str
    detail: str


Problems = tuple[list[Problem], list[Problem], list[Exclusion]]
"""Problems for training and for validation, and rows that are left out of training."""


def read_rows(path: Path) -> list[Row]:
    """Return the rows of `path` as Python values; the suffix gives the format (.parquet, .jsonl, .json).

    Raises:
        ValueError: the file is missing, in another format, or not a table; names file and row (from 1).
    """
    if not path.is_file():
        raise ValueError(f"{path}: the file does not exist")
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".jsonl":
        # Not splitlines(): a problem may contain other separators, which JSON does not escape.
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        rows = [_parsed(path, number, line) for number, line in enumerate(lines, 1)]
    elif path.suffix == ".json":
        rows = _parsed(path, 1, path.read_text(encoding="utf-8"))
    else:
        raise ValueError(f"{path}: is not in a known format; the name must end with .parquet, .jsonl, .json")
    if not isinstance(rows, list):
        raise ValueError(f"{path}: must be a JSON list of objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: must be an object, not {row!r:.80}")
    return rows


def _parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a complete Parquet file ({error})") from None


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}, row {number}: not valid JSON ({error})") from None


def column(row: Row, names: tuple[str, ...], where: str) -> Any:
    """Return the value of the first of `names` that the row has. ValueError, naming `where`, if it has none of them."""
    for name in names:
        if name in row:
            return row[name]
    raise ValueError(f"{where}: has no {' or '.join(names)}; its columns are {', '.join(row)}")


def chat_row(row: Row, roles: list[str], where: str) -> tuple[list[dict[str, str]], str]:
    """Return messages and gold answer of a row in verl's form: `prompt`, and `reward_model.ground_truth`.

    Raises:
        ValueError: the row, named by `where`, has no messages of these roles, or no gold answer as text.
    """
    messages, gold = column(row, ("prompt",), where), column(row, ("reward_model",), where)
    found = [message["role"] for message in messages] if isinstance(messages, list) else messages
    if found != roles or not isinstance(gold, dict) or not isinstance(gold.get("ground_truth"), str):
        asked = " and ".join(f"a {role}" for role in roles)
        raise ValueError(f"{where}: needs a prompt of {asked} message, and reward_model.ground_truth")
    return [{"role": message["role"], "content": message["content"]} for message in messages], gold["ground_truth"]


def own_problems(function: str, base_dir: Path | None) -> Problems:
    """Read a user's own rows: function(split) for "train" and "validation" gives {"messages", "reference"} objects.

    A row can have a `category`, and the `text` to compare with benchmarks. ValueError, naming function and row (from
    1), for a row without messages or reference, and if there is no training row.
    """
    read, _ = load_function(function, base_dir, example=DATA)
    splits: dict[str, list[Problem]] = {"train": [], "validation": []}
    for split, problems in splits.items():
        for number, row in enumerate(read(split), 1):
            messages, reference = (row.get("messages"), row.get("reference")) if isinstance(row, dict) else (None, None)
            whole = isinstance(messages, list) and messages and all(_is_message(one) for one in messages)
            if not whole or not isinstance(reference, str) or not reference.strip():
                raise ValueError(f"{function!r}, row {number} of {split}: must be {OWN_ROW}, not {row!r:.200}")
            text = str(row.get("text", messages[-1]["content"]))
            category = str(row.get("category", "own"))
            problems.append(Problem(f"{split}_{number - 1}", category, messages, reference, text))
    if not splits["train"]:
        raise ValueError(f"{function!r}: gives no row of 'train'")
    return splits["train"], splits["validation"], []


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def question(problem: str) -> str:
    """Return the user's message: the problem, a blank line, and how to answer."""
    return f"{problem}\n\n{INSTRUCTION}"


_USER_TURN = re.compile(r"<user>(.*?)</user>", re.DOTALL)


def toolrl(fetch: Fetch) -> Problems:
    """Read ToolRL's RL split (rlla_4k): 3,920 training and 80 validation rows of dialogue, tools and gold turn.

    Returns training problems, validation problems, and training rows whose gold turn the rewards cannot read.

    Raises:
        ValueError: another number of rows than the split has, or a row is wrong; names file and row (from 1).
    """
    read = [[_tool_problem(row, source, number) for number, row in enumerate(fetch.rows(source))] for source in TOOLRL]
    faults = {problem.id: fault for problem in read[0] if (fault := _fault(problem.reference))}
    for problem in read[1]:
        if fault := _fault(problem.reference):
            raise ValueError(f"{TOOLRL[1]}, {problem.id}: the rewards cannot read its gold turn: {fault}")
    train = [problem for problem in read[0] if problem.id not in faults]
    return train, read[1], [Exclusion(name, "unusable_reference", fault) for name, fault in faults.items()]


def _tool_problem(row: Row, source: str, number: int) -> Problem:
    messages, reference = chat_row(row, ["system", "user"], f"{source}, row {number + 1}")
    # The format reward requires the tags of the gold turn.
    tags = [tag for tag in ("tool_call", "response") if f"<{tag}>" in reference]
    # The user's turns of the dialogue, without the headline, the calls and their results.
    content = messages[-1]["content"]
    said = "\n".join(turn.strip() for turn in _USER_TURN.findall(content)) or content
    split = source.removeprefix("toolrl_")
    return Problem(f"{split}_{number}", "_and_".join(tags) or "think", messages, reference, said)


def _fault(reference: str) -> str:
    """Return why the rewards reject a gold turn; empty if they accept it."""
    try:
        score("tool_calling", ("correctness", "format"), response="", reference=reference, n_tokens=0, params={})
    except ValueError as error:
        return str(error)
    return ""


def deepscaler(fetch: Fetch) -> Problems:
    """Read DeepScaleR-Preview with the authors' split: their training rows and their 200 validation rows.

    Returns training problems, validation problems, and rows left out of training: rows without an answer, copies of
    validation problems. Prompts and answers are those of the files.

    Raises:
        ValueError: another number of rows than a file has, or a row is wrong; names the row (from 1).
    """
    problems, validation = (_math_problems(fetch, source) for source in DEEPSCALER)
    held_out = {tuple(words(problem.text)): problem.id for problem in validation}
    train, excluded = [], []
    for problem in problems:
        copied = held_out.get(tuple(words(problem.text)))
        if not problem.reference.strip():
            excluded.append(Exclusion(problem.id, "no_answer", ""))
        elif copied:
            excluded.append(Exclusion(problem.id, "copy_of_validation", copied))
        else:
            train.append(problem)
    return train, validation, excluded


def _math_problems(fetch: Fetch, source: str) -> list[Problem]:
    problems, split = [], source.removeprefix("deepscaler_")
    for number, row in enumerate(fetch.rows(source)):
        messages, reference = chat_row(row, ["user"], f"{source}, row {number + 1}")
        text = messages[0]["content"].removesuffix(question(""))
        problems.append(Problem(f"{split}_{number}", "deepscaler", messages, reference, text))
    return problems
