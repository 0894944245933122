"""Tool calls in model text: what is read as a call, and how a call becomes the text that bfcl-eval evaluates.

The text is hostile. A call is a name and an object of JSON values; nothing else of the text goes on. bfcl-eval executes
calls of several-turn cases with Python's eval(), so there a call is written anew from these parts: only names that are
known to be methods of the case's tools, and arguments as literals.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dara.rewards import assistant_turn

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
MAX_DEPTH = 64  # of the arguments: more than any case needs, less than Python's parser bears


def decode_output(text: str) -> list[dict[str, Any]] | None:
    """The calls in an output of a dialogue, as `[{name: parameters}, ...]`: what is executed, and what is scored.

    They are read as by ToolRL's handler: without "parameters" a call has none, whatever else it has. None when the
    output has no call, or when a name is no text or parameters are no object, which makes all of it void. A call that
    cannot be executed (`render_call`) is answered by an error, and the others run. Its parameters are None where they
    are no literals (`is_literal`): those can be neither shown nor passed on.
    """
    found = [(call.get("name", ""), call.get("parameters", {})) for call in _objects(assistant_turn(text))]
    if not found or not all(isinstance(name, str) for name, _ in found):
        return None
    calls = [(name.strip(), parameters) for name, parameters in found if not _declines(name)]
    if not all(isinstance(parameters, dict) for _, parameters in calls):
        return None
    return [{name: parameters if is_literal(parameters) else None} for name, parameters in calls]


def decode_calls(text: str) -> list[dict[str, Any]] | None:
    """The calls in the assistant turn of a single-turn case, as `[{name: parameters}, ...]`; None when it has none.

    A call needs a name and "parameters", or it is skipped. One whose name is not a dotted identifier or whose
    parameters are no object of literals (`is_literal`) makes the whole turn unreadable: no answer has such a call.
    """
    found = [
        (call["name"], call["parameters"])
        for call in _objects(text)
        if isinstance(call.get("name"), str) and "parameters" in call
    ]
    calls = [(name, parameters) for name, parameters in found if not _declines(name)]
    if not found or not all(_NAME.fullmatch(name) and _is_object(parameters) for name, parameters in calls):
        return None
    return [{name: parameters} for name, parameters in calls]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """What stands after the last `<tool_call>`, up to the next `</tool_call>` or the end: JSON objects, one a line."""
    _, tag, block = text.rpartition("<tool_call>")
    for line in block.partition("</tool_call>")[0].split("\n") if tag else ():
        try:
            call = json.loads(line)
        except (ValueError, RecursionError):  # RecursionError: thousands of nested braces
            continue
        if isinstance(call, dict):
            yield call


def _declines(name: str) -> bool:
    """Whether a call is one of "none", by which a model declines."""
    return name.strip().lower() == "none"


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and is_literal(value)


def is_literal(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a value is JSON (text, finite number, truth value, null, list, object) that is not nested too deeply."""
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(is_literal(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return all(type(key) is str and is_literal(item, depth - 1) for key, item in value.items())
    if isinstance(value, float):
        return math.isfinite(value)  # Python reads 1e999, NaN and Infinity
    return value is None or type(value) in (str, int, bool)


def render_call(call: Mapping[str, Any], methods: Collection[str]) -> str | None:
    """`{name: parameters}` as the text of a Python call; None unless it is a call of one of `methods` with literals.

    The parameters are one dictionary, `cd(**{'folder': 'a'})`: whatever text a parameter's name is, it stays a text.
    """
    if not isinstance(call, Mapping) or len(call) != 1:
        return None
    ((name, parameters),) = call.items()
    if name not in methods or not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("_"):
        return None
    if not _is_object(parameters):
        return None
    return f"{name}(**{parameters!r})"
