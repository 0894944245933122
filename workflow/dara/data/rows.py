"""Rows of a published data file: Parquet, JSON lines, or one JSON list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The rows of `path`, in values of Python; its suffix says the format (.parquet, .jsonl, .json).

    Raises:
        ValueError: the file is missing, in another format, or not a table; names file and row (from 1).
    """
    if not path.is_file():
        raise ValueError(f"{path}: the file does not exist")
    readers = {".parquet": _parquet, ".jsonl": _json_lines, ".json": _json_list}
    if path.suffix not in readers:
        raise ValueError(f"{path}: is not in a known format; the name must end with {', '.join(readers)}")
    return readers[path.suffix](path)


def column(row: Row, names: tuple[str, ...], where: str) -> Any:
    """The value of the first of `names` that the row has; ValueError, naming `where`, if it has none of them."""
    for name in names:
        if name in row:
            return row[name]
    raise ValueError(f"{where}: has no {' or '.join(names)}; its columns are {', '.join(row)}")


def chat_row(row: Row, roles: list[str], where: str) -> tuple[list[dict[str, str]], str]:
    """Messages and gold answer of a row as verl's preparations write it: `prompt`, and `reward_model.ground_truth`.

    Raises:
        ValueError: the row, which `where` names, has no messages of these roles, or no gold answer in text.
    """
    messages, gold = column(row, ("prompt",), where), column(row, ("reward_model",), where)
    found = [message["role"] for message in messages] if isinstance(messages, list) else messages
    if found != roles or not isinstance(gold, dict) or not isinstance(gold.get("ground_truth"), str):
        asked = " and ".join(f"a {role}" for role in roles)
        raise ValueError(f"{where}: needs a prompt of {asked} message, and reward_model.ground_truth")
    return [{"role": message["role"], "content": message["content"]} for message in messages], gold["ground_truth"]


def _parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a complete Parquet file ({error})") from None


def _json_lines(path: Path) -> list[Row]:
    # Not splitlines(): a problem may hold other separators, which JSON leaves as they are.
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [_object(path, number, _parsed(path, number, line)) for number, line in enumerate(lines, 1)]


def _json_list(path: Path) -> list[Row]:
    rows = _parsed(path, 1, path.read_text(encoding="utf-8"))
    if not isinstance(rows, list):
        raise ValueError(f"{path}: must be a JSON list of objects")
    return [_object(path, number, row) for number, row in enumerate(rows, 1)]


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}, row {number}: not valid JSON ({error})") from None


def _object(path: Path, number: int, row: Any) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"{path}, row {number}: must be an object, not {row!r:.80}")
    return row
