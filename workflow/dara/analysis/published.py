"""The numbers that the authors of the paper published: their schema, and reading them with every check.

They are tidy CSV files in `results/published/data/`, one subject a file, one number a row. docs/published.md says what
stands in each file, how metrics are named, and where the authors' sources disagree with each other.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from dara.analysis.frames import Column, FrameError

EXPERIMENTS = ("tool_main", "group_size", "three_rewards", "math_main", "fixed_weight", "extended")

METHODS = (
    *("base", "grpo", "gdpo", "dvao", "gd2po_hard", "dara_asym", "dara_sym", "static_asym", "static_sym"),
    *("gdpo_saw", "rvpo", "all"),
)
"""The product's names. `base` is the model before training, `rvpo` a method that the authors tried and this project
does not have, and `all` stands in settings that all methods of an experiment share."""

MODELS = (
    *("Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct", "DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-7B"),
    *("Qwen3-4B-Instruct-2507", "Qwen3-4B-Thinking-2507", "all"),
)

SETTING = "setting"
"""The unit of a hyperparameter. It belongs to no step, and one that is no number stands in the note."""

UNITS = {
    "fraction": "a share in [0, 1]; what was printed in percent is divided by 100",
    "step": "a step of training, which the column step repeats",
    "ratio": "a quotient or a weight, at least 0",
    "reward": "a reward in its own range",
    "count": "a whole number, at least 0",
    SETTING: "a hyperparameter, in the unit that its name says",
}

COLUMNS = (
    Column("experiment", "str", choices=EXPERIMENTS),
    Column("model", "str", choices=MODELS),
    Column("method", "str", choices=METHODS),
    Column("seed", "int", empty=True),
    Column("group_size", "int", empty=True),
    Column("step", "int", empty=True),
    Column("metric", "str"),
    Column("unit", "str", choices=tuple(UNITS)),
    Column("value", "float", empty=True),
    Column("sd", "float", empty=True),
    Column("n_seeds", "int", empty=True),
    Column("seeds", "str", empty=True),
    Column("source", "str"),
    Column("note", "str", empty=True),
)
"""`sd` is the sample standard deviation over seeds, in the unit of the value."""

KEY = ("experiment", "model", "method", "seed", "group_size", "step", "metric")
"""Unique within a file. Two files may hold one quantity, where the authors published it at two places."""

_NAMES = [column.name for column in COLUMNS]
_SMALLEST = {"seed": 0, "group_size": 1, "step": 0, "n_seeds": 1, "sd": 0}
_METRIC = re.compile(r"[a-z0-9_.]+(/[a-z0-9_.]+)*(:[a-z0-9_]+)?")

Record = dict[str, Any]
"""A row by column; an empty cell is None."""

Problem = tuple[str, str] | None
"""What is wrong with a row: the column, and the rest of the sentence."""


class PublishedError(FrameError):
    """A file of published numbers breaks the schema; the message names the file, the row and the column."""


def read_published(directory: Path) -> pd.DataFrame:
    """All published numbers: the rows of every CSV file of a directory, file by file.

    Returns:
        The columns of the schema after a first column `file`: the name of the file without `.csv`.

    Raises:
        PublishedError: there is no CSV file, or one breaks the schema.
    """
    paths = sorted(Path(directory).glob("*.csv"))
    if not paths:
        raise PublishedError(f"{directory}: no published numbers; they are CSV files in results/published/data/")
    frames = []
    for path in paths:
        frame = read_published_file(path)
        frame.insert(0, "file", pd.Series(path.stem, index=frame.index, dtype="str"))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def read_published_file(path: Path) -> pd.DataFrame:
    """The published numbers of one file, in the order of its rows.

    Returns:
        The columns of the schema: text as str (an empty cell is ""), integers as Int64, value and sd as float64.

    Raises:
        PublishedError: the file is missing, is not text, or breaks the schema. Rows are counted as lines of the file;
            the header is row 1.
    """
    header, lines = _lines(path)
    _check_header(header, path)
    records = []
    first_row: dict[tuple, int] = {}
    for number, cells in enumerate(lines, start=2):
        where = f"{path}: row {number}"
        if len(cells) != len(header):
            raise PublishedError(f"{where} has {len(cells)} cells; the header has {len(header)} columns")
        record = _record(dict(zip(header, cells, strict=True)), where)
        _check_record(record, where)
        key = _key(record)
        if key in first_row:
            described = ", ".join(f"{name} {record[name]}" for name in KEY if record[name] is not None)
            raise PublishedError(f"{where}, column metric: the key stands in row {first_row[key]} too: {described}")
        first_row[key] = number
        records.append(record)
    return _frame(records)


def _lines(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            header, *lines = list(csv.reader(file)) or [[]]
    except FileNotFoundError:
        raise PublishedError(f"{path}: the file does not exist; it is part of the repository") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise PublishedError(f"{path}: not a CSV file in UTF-8 ({error})") from None
    return header, lines


def _check_header(header: list[str], path: Path) -> None:
    for name in _NAMES:
        if header.count(name) != 1:
            problem = "stands twice" if name in header else "is missing"
            raise PublishedError(f"{path}: row 1: column {name!r} {problem}; the columns are {', '.join(_NAMES)}")
    unknown = [name for name in header if name not in _NAMES]
    if unknown:
        raise PublishedError(f"{path}: row 1: unknown column {unknown[0]!r}; the columns are {', '.join(_NAMES)}")


def _record(cells: dict[str, str], where: str) -> Record:
    return {column.name: _converted(cells[column.name], column, f"{where}, column {column.name}") for column in COLUMNS}


def _converted(cell: str, column: Column, place: str) -> Any:
    if not cell:
        if column.empty:
            return None
        raise PublishedError(f"{place}: empty; it needs a value")
    if column.kind == "str":
        if column.choices and cell not in column.choices:
            raise PublishedError(f"{place}: {cell!r} is not one of {', '.join(column.choices)}")
        return cell
    try:
        number = int(cell) if column.kind == "int" else float(cell)
    except ValueError:
        form = "an integer" if column.kind == "int" else "a number"
        raise PublishedError(f"{place}: {cell!r} is not {form}") from None
    if not math.isfinite(number):
        raise PublishedError(f"{place}: {cell} is not a finite number; leave the cell empty and say why in the note")
    smallest = _SMALLEST.get(column.name)
    if smallest is not None and number < smallest:
        raise PublishedError(f"{place}: {cell} is less than {smallest}")
    return number


def _check_record(record: Record, where: str) -> None:
    """What the columns of one row owe each other."""
    for check in (_metric_problem, _empty_problem, _value_problem, _seeds_problem):
        if found := check(record):
            raise PublishedError(f"{where}, column {found[0]}: {found[1]}")


def _metric_problem(record: Record) -> Problem:
    if not _METRIC.fullmatch(record["metric"]):
        return "metric", f"{record['metric']!r} is not a metric such as 'reward/format/mean' or 'density/format:median'"
    return None


def _empty_problem(record: Record) -> Problem:
    # A setting has no step and no seeds, and nothing to explain about that.
    explained = ("value",) if record["unit"] == SETTING else ("step", "value", "n_seeds")
    empty = [name for name in explained if record[name] is None]
    return (empty[0], "empty, and the note does not say why") if empty and record["note"] is None else None


def _value_problem(record: Record) -> Problem:
    unit, value, step = record["unit"], record["value"], record["step"]
    if unit == SETTING:
        return None if step is None else ("step", f"a setting belongs to no step (given: {step})")
    if unit == "step":
        return None if value == step else ("step", f"{step} does not repeat the value {value}, which is a step")
    wrong = value is not None and {
        "fraction": not 0 <= value <= 1,
        "ratio": value < 0,
        "count": value < 0 or not value.is_integer(),
    }.get(unit)
    return ("value", f"{value} is not {UNITS[unit].split(';')[0]}") if wrong else None


def _seeds_problem(record: Record) -> Problem:
    """`seeds` lists distinct seeds, n_seeds of them; a row of one seed lists that one."""
    seeds, seed, count = record["seeds"], record["seed"], record["n_seeds"]
    if seed is not None and (seeds != str(seed) or count != 1):
        return "seeds", f"a row of seed {seed} has n_seeds 1 and the seeds {seed} (given: {count} and {seeds})"
    if seeds is None:
        return None
    listed = seeds.split(" ")
    if not all(one.isdecimal() for one in listed) or len(set(listed)) != len(listed):
        return "seeds", f"{seeds!r} is not a list of distinct seeds such as '0 1 2'"
    return None if len(listed) == count else ("n_seeds", f"{count}, but seeds lists {len(listed)} ({seeds})")


def _key(record: Record) -> tuple:
    # Where the value is a step, the column step repeats it and cannot tell two rows apart.
    return tuple(None if name == "step" and record["unit"] == "step" else record[name] for name in KEY)


def _frame(records: list[Record]) -> pd.DataFrame:
    kinds = {"str": "str", "int": "Int64", "float": "float64"}
    columns = {}
    for column in COLUMNS:
        cells = [record[column.name] for record in records]
        values = [cell or "" for cell in cells] if column.kind == "str" else cells
        columns[column.name] = pd.Series(values, dtype=kinds[column.kind])
    return pd.DataFrame(columns)
