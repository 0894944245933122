"""The tidy frames between analysis and drawing: their columns, and reading and writing them as CSV.

A frame has one observation a row, is sorted by its key, and is written with numbers that read back exactly, so that
two identical runs give identical bytes. Both directions check it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

MISSING = "missing"
"""Outcome and origin of a run that an experiment plans and that has no results: it is in `runs` and nowhere else."""


class FrameError(ValueError):
    """A frame breaks its contract; the message names the file, the row and the column."""


@dataclass(frozen=True)
class Column:
    """A column: its kind, whether a cell may be empty, and the allowed strings where they are a fixed set."""

    name: str
    kind: Literal["str", "int", "float"]
    empty: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Frame:
    """The contract of a frame: its columns in order, and the key that is unique and that rows are sorted by."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]


def _strings(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "str") for name in names)


_RUN = (*_strings("run_id", "task", "model", "method"), Column("group_size", "int"), Column("seed", "int"))
# A base model (step 0 of checkpoint_scores) belongs to no group size and no seed.
_RUN_OR_BASE = (*_RUN[:4], Column("group_size", "int", empty=True), Column("seed", "int", empty=True))

FRAMES = {
    "runs": Frame(
        (
            *_strings("experiment"),
            *_RUN,
            Column("repeat", "int"),
            Column("steps", "int"),
            *_strings("engine"),
            Column("outcome", "str", choices=("completed", "diverged", MISSING)),
            Column("origin", "str", choices=("trained", "cached", MISSING)),
        ),
        ("experiment", "run_id"),
    ),
    "training_curves": Frame(
        (*_RUN, Column("step", "int"), *_strings("metric"), Column("value", "float", empty=True)),
        ("run_id", "metric", "step"),
    ),
    "checkpoint_scores": Frame(
        (
            *_RUN_OR_BASE,
            Column("step", "int"),
            *_strings("benchmark", "metric"),
            Column("value", "float"),
            Column("low", "float", empty=True),
            Column("high", "float", empty=True),
            Column("n_questions", "int"),
        ),
        ("run_id", "benchmark", "metric", "step"),
    ),
    "crossings": Frame(
        (
            *_RUN,
            *_strings("reward"),
            Column("threshold", "float"),
            Column("first_step", "int", empty=True),
            Column("stable_step", "int", empty=True),
            Column("status", "str", choices=("reached", "pending", "not_reached")),
            Column("pending_step", "int", empty=True),
            Column("budget", "int"),
        ),
        ("run_id", "reward", "threshold"),
    ),
    "energies": Frame(
        (
            *_RUN,
            Column("step", "int"),
            *_strings("reward"),
            Column("density", "float"),
            Column("weight", "float", empty=True),
            *(Column(name, "float") for name in ("energy_pos", "energy_neg")),
            *(
                Column(name, "float", empty=True)
                for name in ("contributed_pos", "contributed_neg", "share_before", "share_after")
            ),
        ),
        ("run_id", "step", "reward"),
    ),
}
"""The frames by name. `runs.steps` are the steps a run has (0 where it is missing), `crossings.budget` the planned.
An empty `training_curves.value` is a value that was not finite, in a run that diverged; an empty share is a step
without any energy; a base model has no group size and no seed."""


def write_frame(frame: pd.DataFrame, name: str, path: Path) -> None:
    """Check a frame, sort it by its key and write it as `path` (its folder is made where it is missing).

    Raises:
        FrameError: the frame breaks the contract of `name`.
    """
    checked = checked_frame(frame, name, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # pandas writes a float with the fewest digits that read back as the same float.
    checked.to_csv(path, index=False, lineterminator="\n", encoding="utf-8")


def read_frame(path: Path, name: str) -> pd.DataFrame:
    """Read and check the frame `name`: strings as str, integers as int64 or Int64 (may be empty), floats as float64.

    Raises:
        FrameError: the file is not there, or breaks the contract of `name`.
    """
    _contract(name)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except FileNotFoundError:
        raise FrameError(f"{path}: the file does not exist; it is written by `collect` or `analyse`") from None
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise FrameError(f"{path}: row {line} has {len(row)} cells; the header has {len(header)} columns")
    cells = pd.DataFrame(rows, columns=header, dtype=object)
    return checked_frame(cells, name, str(path))


def checked_frame(frame: pd.DataFrame, name: str, where: str) -> pd.DataFrame:
    """The frame with the contract's columns, types and order of rows. Rows in messages count as lines of a file do:
    the header is row 1.

    Raises:
        FrameError: a missing, unknown or repeated column; a wrong, empty or unknown value; a repeated key.
    """
    contract = _contract(name)
    names = [column.name for column in contract.columns]
    for column in names:
        if column not in frame.columns:
            known = ", ".join(names)
            raise FrameError(f"{where}: column {column!r} is missing; the frame {name} has the columns {known}")
    for column in frame.columns:
        if column not in names or list(frame.columns).count(column) > 1:
            problem = "stands twice in" if column in names else "is not a column of"
            raise FrameError(f"{where}: {column!r} {problem} the frame {name}, which has {', '.join(names)}")
    checked = pd.DataFrame({column.name: _converted(frame[column.name], column, where) for column in contract.columns})
    repeated = np.flatnonzero(checked.duplicated(list(contract.key)))
    if len(repeated):
        key = ", ".join(f"{column} {checked[column].iloc[repeated[0]]}" for column in contract.key)
        raise FrameError(f"{where}: row {repeated[0] + 2}: the key stands twice: {key}")
    return checked.sort_values(list(contract.key), kind="stable", ignore_index=True)


def empty_frame(name: str) -> pd.DataFrame:
    """The frame `name` without rows."""
    return checked_frame(pd.DataFrame(columns=[column.name for column in _contract(name).columns]), name, name)


def rows_to_frame(rows: list[dict], name: str) -> pd.DataFrame:
    """Rows (each a dict of column to value; an empty cell is None, or is left out) as the checked frame `name`."""
    cells = dict.fromkeys(column.name for column in _contract(name).columns)
    return (
        checked_frame(pd.DataFrame([cells | row for row in rows], dtype=object), name, name)
        if rows
        else empty_frame(name)
    )


def _contract(name: str) -> Frame:
    if name not in FRAMES:
        raise FrameError(f"{name!r} is not a frame; the frames are {', '.join(FRAMES)}")
    return FRAMES[name]


def _converted(cells: pd.Series, column: Column, where: str) -> pd.Series:
    """A column as its type. An empty string, None and NaN are an empty cell."""
    values = cells.to_numpy(dtype=object)
    missing = pd.isna(values)
    missing |= np.fromiter((isinstance(value, str) and not value for value in values), bool, len(values))
    if missing.any() and not column.empty:
        raise FrameError(f"{where}: row {_row(missing)}, column {column.name}: empty or NaN; it needs a value")
    convert = {"str": _text, "int": _integer, "float": float}[column.kind]
    converted = []
    for index, value in enumerate(values):
        try:
            converted.append(None if missing[index] else convert(value))
        except (TypeError, ValueError):
            form = {"str": "text", "int": "an integer", "float": "a number"}[column.kind]
            raise FrameError(f"{where}: row {index + 2}, column {column.name}: {value!r} is not {form}") from None
    _check_values(converted, column, where)
    kind = {"str": "str", "int": "Int64" if column.empty else "int64", "float": "float64"}[column.kind]
    return pd.Series(converted, dtype=kind)


def _check_values(values: list, column: Column, where: str) -> None:
    for index, value in enumerate(values):
        place = f"{where}: row {index + 2}, column {column.name}"
        if column.choices and value not in column.choices:
            raise FrameError(f"{place}: {value!r} is not one of {', '.join(column.choices)}")
        if column.kind == "float" and value is not None and not np.isfinite(value):
            raise FrameError(f"{place}: {value} is not a finite number")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _integer(value: object) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)


def _row(mask: np.ndarray) -> int:
    return int(np.flatnonzero(mask)[0]) + 2
