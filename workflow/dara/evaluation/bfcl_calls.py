"""Tool calls in model text: what is read as a call, and how a call becomes the text that bfcl-eval evaluates.

The text is hostile. A call is a name that is a dotted identifier and an object of JSON values; nothing else of the
text goes on. bfcl-eval executes calls of several-turn cases with Python's eval(), so there a call is written anew from
these parts: only names that are known to be methods of the case's tools, and arguments as literals.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from dara.rewards import assistant_turn

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
MAX_DEPTH = 64  # of the arguments: more than any case needs, less than Python's parser bears


def decode_output(text: str) -> list[dict[str, Any]] | None:
    """The calls in the assistant turn of a model's output (`decode_calls`): what is executed, and what is scored."""
    return decode_calls(assistant_turn(text))


def decode_calls(text: str) -> list[dict[str, Any]] | None:
    """The calls in an assistant turn, as `[{name: parameters}, ...]`; None when it has no readable call.

    Read is what follows the last `<tool_call>`, up to the next `</tool_call>` or the end; each line is one call in
    JSON. Lines that are no such object are skipped, and so are calls of "none", by which a model declines. A call
    whose name is not a dotted identifier or whose parameters are no object of literals (`is_literal`) makes the whole
    turn unreadable.
    """
    _, tag, block = text.rpartition("<tool_call>")
    lines = block.partition("</tool_call>")[0].split("\n") if tag else []
    found = [call for call in map(_parse_call, lines) if call is not None]
    if not found:
        return None
    calls = [(name, parameters) for name, parameters in found if name.strip().lower() != "none"]
    if not all(_NAME.fullmatch(name) and _is_object(parameters) for name, parameters in calls):
        return None
    return [{name: parameters} for name, parameters in calls]


def _parse_call(line: str) -> tuple[str, Any] | None:
    try:
        call = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):  # RecursionError: thousands of nested braces
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "parameters" not in call:
        return None
    return call["name"], call["parameters"]


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and is_literal(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")  # Python reads NaN, Infinity and -Infinity


def is_literal(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a value is JSON (text, finite number, truth value, null, list, object) that is not nested too deeply."""
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(is_literal(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return all(type(key) is str and is_literal(item, depth - 1) for key, item in value.items())
    if isinstance(value, float):
        return math.isfinite(value)  # JSON's 1e999 is infinite in Python
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
