"""The tidy frames between analysis and drawing, each declared once as the pydantic model of its rows.

A frame has one observation a row, is sorted by its key, and is written as CSV with numbers that read back exactly, so
that two identical runs give identical bytes. Types, checks and the order of columns follow from the declaration, for
reading and for writing. Columns are checked as a whole, since a frame can have a million rows; only if a check fails
are the rows checked one by one with pydantic, to name the row and the column.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from dara.specs import Share

MISSING = "missing"
"""Outcome and origin of a planned run without results; such a run is in the frame `runs` only."""

Text = Annotated[str, Field(min_length=1)]


class FrameError(ValueError):
    """A frame breaks its declaration; the message names the file, the row and the column."""


class Row(BaseModel):
    """A row of a frame: its fields are the columns in order.

    key: the columns that are unique together, and by which rows are sorted; what: the frame's name in messages; remedy:
    advice in the message on a number that is not finite.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    key: ClassVar[tuple[str, ...]]
    what: ClassVar[str]
    remedy: ClassVar[str] = ""

    @classmethod
    def keys_of(cls, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that must be unique together."""
        return frame[list(cls.key)]


def _each(kind: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


_RUN = _each(Text, "run_id task model method") | _each(int, "group_size seed")
# A base model (step 0 of checkpoint_scores) has no group size and no seed.
_RUN_OR_BASE = _RUN | _each(int | None, "group_size seed")
_OUTCOMES = {"outcome": Literal["completed", "diverged", "missing"], "origin": Literal["trained", "cached", "missing"]}
_STATUS = {"status": Literal["reached", "pending", "not_reached"]}
_SCORE = {"value": float, "low": float | None, "high": float | None}

_DECLARED: dict[str, tuple[str, dict[str, Any]]] = {
    "runs": (
        "experiment run_id",
        {"experiment": Text} | _RUN | {"repeat": int, "steps": int, "engine": Text} | _OUTCOMES,
    ),
    "training_curves": (
        "run_id metric step",
        _RUN | {"step": int, "metric": Text, "value": float | None},
    ),
    "checkpoint_scores": (
        "run_id benchmark metric step",
        _RUN_OR_BASE | {"step": int, "benchmark": Text, "metric": Text} | _SCORE | {"n_questions": int},
    ),
    "score_intervals": (
        "experiment model group_size engine step benchmark metric method baseline",
        _each(Text, "experiment model") | {"group_size": int, "engine": Text, "step": int}
        | _each(Text, "benchmark metric method") | {"baseline": Text | None, "value": float}
        | _each(float | None, "t_low t_high low high") | _each(int, "n_seeds n_questions"),
    ),
    "crossings": (
        "run_id reward threshold",
        _RUN | {"reward": Text, "threshold": float} | _each(int | None, "first_step stable_step")
        | _STATUS | {"pending_step": int | None, "budget": int},
    ),
    "energies": (
        "run_id step reward",
        _RUN | {"step": int, "reward": Text, "density": Share, "weight": float | None}
        | _each(float, "energy_pos energy_neg") | _each(float | None, "contributed_pos contributed_neg")
        | _each(Share | None, "share_before share_after"),
    ),
}  # fmt: skip
FRAMES: dict[str, type[Row]] = {}
"""The row model of each frame; a column whose type includes None may be empty, and rows may omit it.

`runs.steps` are the completed steps of a run (0 if it is missing), `crossings.budget` the planned ones. An empty
`training_curves.value` is a value that was not finite, in a run that diverged; an empty share is a step without any
energy; a base model has no group size and no seed. A row of `score_intervals` with a `baseline` is the difference
method - baseline.
"""
for _name, (_key, _declared) in _DECLARED.items():
    _fields = {column: (kind, None if type(None) in get_args(kind) else ...) for column, kind in _declared.items()}
    FRAMES[_name] = create_model(_name, __base__=Row, **_fields)
    FRAMES[_name].key, FRAMES[_name].what = tuple(_key.split()), f"the frame {_name}"


class FrameFiles(dict[str, pd.DataFrame]):
    """The frames in a directory by name, each read at first use: no table and no figure needs all."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def __missing__(self, name: str) -> pd.DataFrame:
        self[name] = read_frame(self._directory / f"{name}.csv", name)
        return self[name]


def write_frame(frame: pd.DataFrame, name: str, path: Path) -> None:
    """Check a frame, sort it by its key and write it as `path`. Raise FrameError if it breaks its declaration."""
    checked = _checked_frame(frame, FRAMES[name], str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # pandas writes a float with the fewest digits that read back as the same float.
    checked.to_csv(path, index=False, lineterminator="\n", encoding="utf-8")


def read_frame(path: Path, name: str) -> pd.DataFrame:
    """Read and check the frame `name`: strings as str, integers as int64 or Int64 (may be empty), floats as float64.

    Raise FrameError if the file is not there, or breaks the declaration of `name`.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FrameError(f"{path}: the file does not exist; it is written by the rule `frames`") from None
    frame = _read_at_once(content, FRAMES[name])
    return _sorted_frame(read_rows(content, FRAMES[name], path) if frame is None else frame, FRAMES[name], str(path))


def rows_to_frame(rows: list[dict], name: str) -> pd.DataFrame:
    """Return rows (each a dict of column to value; an empty cell is None, or is left out) as the checked frame."""
    frame = pd.DataFrame(rows, dtype=object)
    names = list(dict.fromkeys([*FRAMES[name].model_fields, *frame.columns]))
    return _checked_frame(frame.reindex(columns=names), FRAMES[name], name)


def joined_frame(parts: Iterable[Mapping[str, Any]], name: str) -> pd.DataFrame:
    """Return parts (each a dict of column to an array, or to the value of all its rows) as the checked frame `name`."""
    frames = [pd.DataFrame(part) for part in parts]
    return (
        _checked_frame(pd.concat(frames, ignore_index=True), FRAMES[name], name) if frames else rows_to_frame([], name)
    )


def _checked_frame(frame: pd.DataFrame, row: type[Row], where: str) -> pd.DataFrame:
    """Return the frame with the declared columns, types and order of rows. Raise FrameError if it breaks them.

    Rows in messages count as lines of a file do: the header is row 1.
    """
    _check_columns(list(frame.columns), row, where)
    typed = {name: _converted(frame[name], column) for name, column in _columns(row).items()}
    if any(series is None for series in typed.values()):
        cells = frame.astype(object)
        records = cells.where(cells.notna(), None).to_dict("records")
        return _sorted_frame(_validated(records, row, where), row, where)
    return _sorted_frame(pd.DataFrame(typed), row, where)


def read_rows(content: bytes, row: type[Row], path: Path) -> pd.DataFrame:
    """Read a CSV file row by row; an empty cell is an empty value.

    Raise FrameError if it is not a CSV file of these columns, or a row breaks the declaration.
    """
    try:
        header, *lines = list(csv.reader(io.StringIO(content.decode("utf-8"), newline=""))) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FrameError(f"{path}: not a CSV file in UTF-8 ({error})") from None
    _check_columns(header, row, str(path))
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise FrameError(f"{path}: row {number} has {len(line)} cells; the header has {len(header)} columns")
    return _validated((dict(zip(header, line, strict=True)) for line in lines), row, str(path))


def _validated(records: Iterable[Mapping[str, Any]], row: type[Row], where: str) -> pd.DataFrame:
    """Return records (None and "" are empty) as a frame. Raise FrameError if one breaks the declaration."""
    found = []
    for number, record in enumerate(records, start=2):
        cells = {name: None if value == "" else value for name, value in record.items()}
        try:
            found.append(vars(row.model_validate(cells)))
        except ValidationError as error:
            raise FrameError(f"{where}: row {number}, column {_problem(error, row)}") from None
    columns = {}
    for name, column in _columns(row).items():
        empty = "" if column.kind == "string" else None
        values = (empty if record[name] is None else record[name] for record in found)
        columns[name] = pd.Series(list(values), dtype=column.dtype)
    return pd.DataFrame(columns)


def _sorted_frame(frame: pd.DataFrame, row: type[Row], where: str) -> pd.DataFrame:
    check_unique(frame, row, where)
    return frame.sort_values(list(row.key), kind="stable", ignore_index=True)


def check_unique(frame: pd.DataFrame, row: type[Row], where: str) -> None:
    """Raise FrameError if the key of a row is repeated."""
    keys = row.keys_of(frame)
    repeated = np.flatnonzero(keys.duplicated())
    if len(repeated):
        this = repeated[0]
        group = keys.groupby(list(row.key), dropna=False, sort=False).ngroup()
        first = np.flatnonzero(group == group.iloc[this])[0]
        known = keys.iloc[this].replace("", None).dropna()
        described = ", ".join(f"{name} {value}" for name, value in known.items())
        raise FrameError(f"{where}: row {this + 2} repeats the key of row {first + 2}: {described}")


class _Column(NamedTuple):
    """Checks of a whole column."""

    kind: str  # of JSON: string, integer, number
    dtype: str
    nullable: bool
    choices: tuple[str, ...]
    low: float | None
    high: float | None


@cache
def _columns(row: type[Row]) -> dict[str, _Column]:
    columns = {}
    for name, field in row.model_json_schema()["properties"].items():
        options = field.get("anyOf", [field])
        first, nullable = options[0], len(options) > 1
        dtype = {"string": "str", "integer": "Int64" if nullable else "int64", "number": "float64"}[first["type"]]
        choices, bounds = tuple(first.get("enum", ())), (first.get("minimum"), first.get("maximum"))
        columns[name] = _Column(first["type"], dtype, nullable, choices, *bounds)
    return columns


KINDS = {
    "string": ("string", "empty"),
    "integer": ("integer", "empty"),
    "number": ("floating", "integer", "mixed-integer-float", "empty"),
}
"""Kind of a column -> kinds of cells, as pandas names them, that convert as a whole."""


def _converted(series: pd.Series, column: _Column) -> pd.Series | None:
    """Return a series as the column's type; None if its values must be checked one by one, as one may be wrong."""
    wrong_kind = pd.api.types.infer_dtype(series, skipna=True) not in KINDS[column.kind]
    if wrong_kind or (series.isna().any() and not column.nullable):
        return None
    string = column.kind == "string"
    typed = series.astype("str").where(series.notna(), "") if string else pd.to_numeric(series).astype(column.dtype)
    return None if _any_wrong(typed, column) else typed.reset_index(drop=True)


def _any_wrong(series: pd.Series, column: _Column) -> bool:
    missing = (series == "") if column.kind == "string" else series.isna()
    given = series[~missing]
    return bool(
        (missing.any() and not column.nullable)
        or (column.choices and not series.isin(column.choices).all())
        or (column.kind == "number" and not np.isfinite(given).all())
        or (column.low is not None and (given < column.low).any())
        or (column.high is not None and (given > column.high).any())
    )


def _read_at_once(content: bytes, row: type[Row]) -> pd.DataFrame | None:
    """Return the frame, read column by column (reading a hundred thousand rows one by one takes a second).

    None if anything differs from the format of `write_frame`; reading by row then names the place.
    """
    columns = _columns(row)
    header, _, rows = content.partition(b"\n")
    plain = header == ",".join(columns).encode() and rows.endswith(b"\n") and b'"' not in rows
    if not plain or rows.count(b",") != rows.count(b"\n") * (len(columns) - 1):
        return None
    kinds = {name: column.dtype for name, column in columns.items()}
    empty = {name: [""] for name, column in columns.items() if column.kind != "string"}
    try:
        frame = pd.read_csv(io.BytesIO(content), dtype=kinds, keep_default_na=False, na_values=empty)
    except (ValueError, TypeError):
        return None
    wrong = any(_any_wrong(frame[name], column) for name, column in columns.items())
    return None if wrong or len(frame) != rows.count(b"\n") else frame


def _check_columns(given: list[str], row: type[Row], where: str) -> None:
    names = list(row.model_fields)
    for name in names:
        if name not in given:
            raise FrameError(f"{where}: column {name!r} is missing; {row.what} has the columns {', '.join(names)}")
    for name in given:
        if name not in names or given.count(name) > 1:
            problem = "stands twice in" if name in names else "is not a column of"
            raise FrameError(f"{where}: {name!r} {problem} {row.what}, which has {', '.join(names)}")


def _problem(error: ValidationError, row: type[Row]) -> str:
    """Return the first error of a row: its column, and the problem."""
    found = error.errors()[0]
    if found["type"] == "value_error":  # from a validator; that of a whole row names the column itself
        return ": ".join(map(str, (*found["loc"], found["ctx"]["error"])))
    name, value = str(found["loc"][0]), found["input"]
    column = _columns(row)[name]
    if value is None or found["type"] == "missing":
        return f"{name}: empty or NaN; it needs a value"
    if column.choices:
        return f"{name}: {value!r} is not one of {', '.join(column.choices)}"
    if found["type"] == "finite_number":
        return f"{name}: {value} is not a finite number{row.remedy}"
    if column.high is not None and "equal" in found["type"]:
        return f"{name}: {value} is not a share in [0, 1]"
    if found["type"] == "greater_than_equal":
        return f"{name}: {value} is less than {column.low:g}"
    return f"{name}: {value!r} is not {({'string': 'text', 'integer': 'an integer'}).get(column.kind, 'a number')}"
