r"""Readers of public data: ToolRL's RL split, DeepScaleR-Preview with the authors' split, the five math benchmarks.

MATH-500, AIME 2024, AMC 2022/2023 (AMC 12), Minerva and OlympiadBench (text only, English, competition) have 1,559
questions. A copy with another number of rows is rejected; the widely copied OlympiadBench file has one row more.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dara.places import DATA, load_function
from dara.rewards import score

if TYPE_CHECKING:
    from dara.data.hub import Fetch

TOOLRL = ("toolrl_train", "toolrl_validation")
DEEPSCALER = ("deepscaler_train", "deepscaler_validation")
INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."
OWN_ROW = "{'messages': [{'role': 'user', 'content': '...'}], 'reference': '...'}"
SETS_VERSION = 2
"""Raised whenever the same rows would give other questions, answers or prompts (2: a prompt has the problem without
surrounding blanks)."""

_USER_TURN = re.compile(r"<user>(.*?)</user>", re.DOTALL)
_SPACING = re.compile(r"\\(?:left|right|displaystyle|quad|qquad|[,;:! ])(?![a-z])|\\[()\[\]]|[$~]")
_WORD = re.compile(r"[^\W\d_]+|\d+|[-+*/=<>^!|_%]")

Row = dict[str, Any]


class MathSet(NamedTuple):
    """A math benchmark: its number of questions, and the columns of its files (the first one present is used)."""

    questions: int
    problem: tuple[str, ...] = ("problem",)
    answer: tuple[str, ...] = ("answer",)


SETS: dict[str, MathSet] = {
    "math500": MathSet(500),
    "aime24": MathSet(30),
    "amc": MathSet(83),
    "minerva": MathSet(272, ("question", "problem")),
    "olympiadbench": MathSet(674, ("question", "problem"), ("final_answer", "answers")),
}


class Problem(NamedTuple):
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


class Exclusion(NamedTuple):
    """A row that is not used, with its reason: a word for the count, and the details."""

    id: str
    reason: str
    detail: str


Problems = tuple[list[Problem], list[Problem], list[Exclusion]]
"""Problems for training and for validation, and rows that are left out of training."""


def words(text: str) -> list[str]:
    r"""Return the words of a text: lower case, letters, numbers and signs apart, no spacing or delimiters of LaTeX.

    >>> words(r"Find $\dfrac{1}{2}+x$.")
    ['find', 'frac', '1', '2', '+', 'x']
    """
    text = _SPACING.sub(" ", unicodedata.normalize("NFKC", text).lower())
    return _WORD.findall(text.replace("dfrac", "frac").replace("tfrac", "frac"))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of `path` as Python values; the suffix gives the format (.parquet, .jsonl, .json).

    ValueError, naming file and row (from 1), for a file that is missing, in another format, or not a table.
    """
    if not path.is_file():
        raise ValueError(f"{path}: the file does not exist")
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.read_table(path).to_pylist()
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{path}: not a complete Parquet file ({error})") from None
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


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}, row {number}: not valid JSON ({error})") from None


def _column(row: Row, names: tuple[str, ...], where: str) -> Any:
    """Return the value of the first of `names` that the row has. ValueError, naming `where`, if it has none of them."""
    for name in names:
        if name in row:
            return row[name]
    raise ValueError(f"{where}: has no {' or '.join(names)}; its columns are {', '.join(row)}")


def own_problems(function: str, base_dir: Path | None) -> Problems:
    """Read a user's own rows: function(split) for "train" and "validation" gives {"messages", "reference"} objects.

    A row can have a `category`, and the `text` to compare with benchmarks. ValueError, naming function and row (from
    1), for a row without messages or reference, and if there is no training row.
    """
    read, _ = load_function(function, base_dir, example=DATA)
    splits: dict[str, list[Problem]] = {"train": [], "validation": []}
    for split, problems in splits.items():
        for number, row in enumerate(read(split), 1):
            match row:
                case {"messages": list(messages), "reference": str(reference)} if (
                    messages and all(map(_is_message, messages)) and reference.strip()
                ):
                    text = str(row.get("text", messages[-1]["content"]))
                    category = str(row.get("category", "own"))
                    problems.append(Problem(f"{split}_{number - 1}", category, messages, reference, text))
                case _:
                    raise ValueError(f"{function!r}, row {number} of {split}: must be {OWN_ROW}, not {row!r:.200}")
    if not splits["train"]:
        raise ValueError(f"{function!r}: gives no row of 'train'")
    return splits["train"], splits["validation"], []


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def question(problem: str) -> str:
    """Return the user's message: the problem, a blank line, and how to answer."""
    return f"{problem}\n\n{INSTRUCTION}"


def _chat_rows(fetch: Fetch, source: str, roles: Sequence[str]) -> Iterator[tuple[str, list[dict[str, str]], str]]:
    """Yield id, messages and gold answer of rows in verl's form: `prompt`, and `reward_model.ground_truth`.

    ValueError, naming the row (from 1), for one without messages of these roles, or without a gold answer as text.
    """
    for number, row in enumerate(fetch.rows(source)):
        where = f"{source}, row {number + 1}"
        messages, gold = _column(row, ("prompt",), where), _column(row, ("reward_model",), where)
        found = [message["role"] for message in messages] if isinstance(messages, list) else messages
        if found != roles or not isinstance(gold, dict) or not isinstance(gold.get("ground_truth"), str):
            asked = " and ".join(f"a {role}" for role in roles)
            raise ValueError(f"{where}: needs a prompt of {asked} message, and reward_model.ground_truth")
        messages = [{key: message[key] for key in ("role", "content")} for message in messages]
        yield f"{source.partition('_')[2]}_{number}", messages, gold["ground_truth"]


def toolrl(fetch: Fetch) -> Problems:
    """Read ToolRL's RL split (rlla_4k): 3,920 training and 80 validation rows of dialogue, tools and gold turn.

    Training rows whose gold turn the rewards cannot read are left out. ValueError, naming file and row (from 1), for
    another number of rows than the split has, and for a wrong row.
    """
    train, validation = (
        [_tool_problem(*row) for row in _chat_rows(fetch, source, ["system", "user"])] for source in TOOLRL
    )
    faults = {problem.id: fault for problem in train if (fault := _fault(problem.reference))}
    for problem in validation:
        if fault := _fault(problem.reference):
            raise ValueError(f"{TOOLRL[1]}, {problem.id}: the rewards cannot read its gold turn: {fault}")
    excluded = [Exclusion(name, "unusable_reference", fault) for name, fault in faults.items()]
    return [problem for problem in train if problem.id not in faults], validation, excluded


def _tool_problem(name: str, messages: list[dict[str, str]], reference: str) -> Problem:
    # The format reward requires the tags of the gold turn.
    tags = [tag for tag in ("tool_call", "response") if f"<{tag}>" in reference]
    # The user's turns of the dialogue, without the headline, the calls and their results.
    content = messages[-1]["content"]
    said = "\n".join(turn.strip() for turn in _USER_TURN.findall(content)) or content
    return Problem(name, "_and_".join(tags) or "think", messages, reference, said)


def _fault(reference: str) -> str:
    """Return why the rewards reject a gold turn; empty if they accept it."""
    try:
        score("tool_calling", ("correctness", "format"), response="", reference=reference, n_tokens=0, params={})
    except ValueError as error:
        return str(error)
    return ""


def deepscaler(fetch: Fetch) -> Problems:
    """Read DeepScaleR-Preview with the authors' split: their training rows and their 200 validation rows.

    Rows without an answer and copies of validation problems are left out of training. Prompts and answers are those of
    the files. ValueError, naming the row (from 1), for another number of rows than a file has, and for a wrong row.
    """
    problems, validation = (
        [
            Problem(name, "deepscaler", messages, answer, messages[0]["content"].removesuffix(question("")))
            for name, messages, answer in _chat_rows(fetch, source, ["user"])
        ]
        for source in DEEPSCALER
    )
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


def read_set(name: str, path: Path) -> list[dict[str, str]]:
    """Return the questions of a math set as rows {"id", "category", "problem", "answer"}; the category is the set.

    ValueError, naming set, file and row (from 1), for another number of rows, and a row without problem or answer.
    """
    shape, rows = SETS[name], read_rows(path)
    if len(rows) != shape.questions:
        raise ValueError(f"{path}: has {len(rows)} rows, but {name} has {shape.questions} questions; get the full set")
    questions = []
    for number, row in enumerate(rows, 1):
        where = f"{name}, {path}, row {number}"
        problem, answer = _column(row, shape.problem, where), gold_answer(_column(row, shape.answer, where))
        if not isinstance(problem, str) or not problem.strip() or not answer:
            raise ValueError(f"{where}: needs a problem and an answer; it has {problem!r:.60} and {answer!r:.60}")
        questions.append({"id": f"{name}_{number - 1}", "category": name, "problem": problem, "answer": answer})
    return questions


def gold_answer(answer: Any) -> str:
    """Return a gold answer as the graders compare it; empty if there is none.

    Of a list, the first; a float with an integer value as an integer; without up to three layers of math delimiters
    around all of it (`$a$, $b$` has none).

    >>> gold_answer([142.0]), gold_answer(r"$\\frac{1}{2}$")
    ('142', '\\\\frac{1}{2}')
    """
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        answer = answer[0] if answer else None
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    text = "" if answer is None else str(answer).strip()
    for _ in range(3):
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            inner = text[len(left) : -len(right)]
            whole = len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right)
            if whole and left not in inner.replace(r"\$", ""):
                text = inner.strip()
                break
    return text
