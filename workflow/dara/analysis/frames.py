"""The tidy frames between analysis and drawing: their columns, and reading and writing them as CSV.

A frame has one observation a row, is sorted by its key, and is written with numbers that read back exactly, so that
two identical runs give identical bytes. Both directions check it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
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
    """A column: its kind, whether a cell may be empty, the allowed strings where they are a fixed set, and whether its
    numbers are shares in [0, 1]."""

    name: str
    kind: Literal["str", "int", "float"]
    empty: bool = False
    choices: tuple[str, ...] = ()
    share: bool = False


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
    "score_intervals": Frame(
        (
            *_strings("experiment", "model"),
            Column("group_size", "int"),
            *_strings("engine"),
            Column("step", "int"),
            *_strings("benchmark", "metric", "method"),
            Column("baseline", "str", empty=True),
            Column("value", "float"),
            *(Column(name, "float", empty=True) for name in ("t_low", "t_high", "low", "high")),
            Column("n_seeds", "int"),
            Column("n_questions", "int"),
        ),
        ("experiment", "model", "group_size", "engine", "step", "benchmark", "metric", "method", "baseline"),
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
            Column("density", "float", share=True),
            Column("weight", "float", empty=True),
            *(Column(name, "float") for name in ("energy_pos", "energy_neg")),
            *(Column(name, "float", empty=True) for name in ("contributed_pos", "contributed_neg")),
            *(Column(name, "float", empty=True, share=True) for name in ("share_before", "share_after")),
        ),
        ("run_id", "step", "reward"),
    ),
}
"""The frames by name. `runs.steps` are the steps a run has (0 where it is missing), `crossings.budget` the planned.
An empty `training_curves.value` is a value that was not finite, in a run that diverged; an empty share is a step
without any energy; a base model has no group size and no seed. A row of `score_intervals` with a `baseline` is the
difference method - baseline."""


class FrameFiles(Mapping[str, pd.DataFrame]):
    """The frames in a directory by name, each read when it is first asked for: no table and no figure needs all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._read:
            self._read[name] = read_frame(self._directory / f"{name}.csv", name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(FRAMES)

    def __len__(self) -> int:
        return len(FRAMES)


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
    contract = _contract(name)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FrameError(f"{path}: the file does not exist; it is written by `collect` or `analyse`") from None
    frame = _read_at_once(content, contract)
    return _read_by_cell(content, name, path) if frame is None else frame


def _read_at_once(content: bytes, contract: Frame) -> pd.DataFrame | None:
    """The frame, read and checked column by column (a hundred thousand rows take a second cell by cell).

    None where anything is not as `write_frame` leaves it; reading by cell then says what and where.
    """
    names = [column.name for column in contract.columns]
    header, _, rows = content.partition(b"\n")
    if header != ",".join(names).encode() or not rows.endswith(b"\n") or b'"' in rows:
        return None
    if rows.count(b",") != rows.count(b"\n") * (len(names) - 1):
        return None
    kinds = {column.name: _dtype(column) for column in contract.columns}
    empty = {column.name: [""] for column in contract.columns if column.kind != "str"}
    try:
        frame = pd.read_csv(io.BytesIO(content), dtype=kinds, keep_default_na=False, na_values=empty)
    except (ValueError, TypeError):
        return None
    key = list(contract.key)
    wrong = any(_any_wrong(frame[column.name], column) for column in contract.columns)
    if wrong or len(frame) != rows.count(b"\n") or frame.duplicated(key).any():
        return None
    return frame.sort_values(key, kind="stable", ignore_index=True)


def _any_wrong(cells: pd.Series, column: Column) -> bool:
    """Whether a typed column has a value that its contract forbids."""
    missing = cells.isna() | (cells == "" if column.kind == "str" else False)
    if missing.any() and not column.empty:
        return True
    if column.choices and not cells.isin(column.choices).all():
        return True
    if column.share and not cells[~missing].between(0, 1).all():
        return True
    return column.kind == "float" and not np.isfinite(cells[~missing]).all()


def _read_by_cell(content: bytes, name: str, path: Path) -> pd.DataFrame:
    try:
        header, *rows = list(csv.reader(io.StringIO(content.decode("utf-8"), newline=""))) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FrameError(f"{path}: not a CSV file in UTF-8 ({error})") from None
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
    """A column as its type. An empty string, None and NaN are an empty cell, which text keeps as an empty string."""
    values = cells.to_numpy(dtype=object)
    missing = pd.isna(values)
    missing |= np.fromiter((isinstance(value, str) and not value for value in values), bool, len(values))
    if missing.any() and not column.empty:
        raise FrameError(f"{where}: row {_row(missing)}, column {column.name}: empty or NaN; it needs a value")
    convert = {"str": _text, "int": _integer, "float": float}[column.kind]
    empty = "" if column.kind == "str" else None
    converted = []
    for index, value in enumerate(values):
        try:
            converted.append(empty if missing[index] else convert(value))
        except (TypeError, ValueError):
            form = {"str": "text", "int": "an integer", "float": "a number"}[column.kind]
            raise FrameError(f"{where}: row {index + 2}, column {column.name}: {value!r} is not {form}") from None
    _check_values(converted, column, where)
    return pd.Series(converted, dtype=_dtype(column))


def _dtype(column: Column) -> str:
    return {"str": "str", "int": "Int64" if column.empty else "int64", "float": "float64"}[column.kind]


def _check_values(values: list, column: Column, where: str) -> None:
    for index, value in enumerate(values):
        place = f"{where}: row {index + 2}, column {column.name}"
        if column.choices and value not in column.choices:
            raise FrameError(f"{place}: {value!r} is not one of {', '.join(column.choices)}")
        if column.kind == "float" and value is not None and not np.isfinite(value):
            raise FrameError(f"{place}: {value} is not a finite number")
        if column.share and value is not None and not 0 <= value <= 1:
            raise FrameError(f"{place}: {value} is not a share in [0, 1]")


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
