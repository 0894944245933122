"""Tool calls in model text, and the checkers of bfcl-eval (CHECKER_VERSION) that judge or execute them.

The text is hostile. A call is a name and an object of JSON values; nothing else of the text goes on. bfcl-eval executes
calls of several-turn cases with Python's eval(), so there a call is written again from these parts: only names that are
known to be methods of the case's tools, and arguments as literals.

The full installation of bfcl-eval needs 1.9 GB of packages that only serve other models; a stand-in for its table of
models makes the checkers work without them. They are the real ones: `ast_checker` compares calls in Python, Java and
JavaScript with possible answers, `multi_turn_checker` executes the calls of a dialogue and compares states and results
with those of the gold calls. Only worker processes use them: they are imported late, and write folders where they are
told to. A worker executes calls in copies of itself that can open nothing any more, so what the tools import when they
are first called is imported before.
"""

from __future__ import annotations

import errno
import functools
import importlib
import inspect
import json
import math
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import metadata
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


CHECKER_VERSION = "2026.3.23"
MODEL_NAME = "dara"  # the checker's key for its table of models; an underscore would be taken for a slash
# A call of nothing: bfcl-eval answers that the name is not defined. It stands for calls that are not executed.
UNKNOWN_CALL = "unknown_function()"
# The checker fails with one of these on values that it does not expect, such as a number of 400 digits that it makes a
# float, or 5,000 that it makes an integer; no gold answer is such a value. NotImplementedError is bfcl-eval's own, for
# Java types that it does not convert.
CHECKER_FAILS = (
    *(RecursionError, ArithmeticError, ValueError, TypeError, AttributeError, LookupError),
    NotImplementedError,
)
# What the tools import when they are first called: datetime.strptime is written in C and finds its Python part then.
IMPORTED_LATE = ("_strptime",)
# How bfcl-eval tells that a file or a process was refused: it takes every exception for the tool's answer. No tool
# opens anything, nor begins an exception with text of a model, so our own limits did it.
REFUSED = tuple(f"Error during execution: [Errno {code}]" for code in (errno.EMFILE, errno.EFBIG, errno.EAGAIN))

Calls = list[dict[str, Any]]


def check_version() -> None:
    """RuntimeError if another version of bfcl-eval is installed."""
    installed = metadata.version("bfcl-eval")
    if installed != CHECKER_VERSION:
        raise RuntimeError(f"bfcl-eval {installed} is installed; the scores are defined by {CHECKER_VERSION}")


def stand_in() -> None:
    """Put a table of models with MODEL_NAME only where bfcl-eval looks for its own."""
    module = types.ModuleType("bfcl_eval.constants.model_config")
    module.MODEL_CONFIG_MAPPING = {MODEL_NAME: types.SimpleNamespace(underscore_to_dot=False)}
    sys.modules[module.__name__] = module


class SingleTurnChecker:
    """Whether calls are a possible answer: `check(calls, {"functions", "answer", "category", "language"})`."""

    def __init__(self) -> None:
        check_version()
        stand_in()
        from bfcl_eval.constants.enums import Language
        from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
        from bfcl_eval.utils import is_function_calling_format_output

        self._languages, self._check, self._is_calls = Language, ast_checker, is_function_calling_format_output

    def __call__(self, calls: Calls, gold: Mapping[str, Any]) -> bool:
        if not self._is_calls(calls):
            return False
        language = self._languages[gold["language"]]
        try:
            verdict = self._check(gold["functions"], calls, gold["answer"], language, gold["category"], MODEL_NAME)
        except CHECKER_FAILS:
            return False
        return bool(verdict["valid"])


class Tools:
    """The tools of dialogues, executed by bfcl-eval's own function, which evaluates text: only ours reaches it."""

    def __init__(self) -> None:
        check_version()
        stand_in()
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        for module in IMPORTED_LATE:
            importlib.import_module(module)
        # The checker compares the answers to model and gold calls: where both were refused, it would call that right.
        checker.execute_multi_turn_func_call = _unrefused(execute_multi_turn_func_call)
        self._check, self._execute = checker.multi_turn_checker, checker.execute_multi_turn_func_call
        self._modules: dict[str, type] = {}
        for name, path in CLASS_FILE_PATH_MAPPING.items():
            if "." not in name and not name.startswith(("WebSearch", "Memory")):  # these need more packages
                self._modules[name] = getattr(importlib.import_module(path), name)

    def methods(self, classes: Sequence[str]) -> set[str]:
        """The public methods of tool classes: all that a model may call."""
        found: set[str] = set()
        for name in classes:
            members = inspect.getmembers(self._modules[name], inspect.isfunction)
            found |= {method for method, _ in members if not method.startswith("_")}
        return found

    def execute(self, calls: Calls, entry: Mapping[str, Any], long_context: bool) -> list[str]:
        """What the tools say to each call, in order; the state of the entry's tools stays in this process."""
        methods = self.methods(entry["involved_classes"])
        said = []
        for call in calls:
            text = render_call(call, methods)
            if text is None:
                said.append(_refusal(call))
                continue
            results, _ = self._execute(
                [text], entry["initial_config"], entry["involved_classes"], MODEL_NAME, entry["id"], long_context
            )
            said += results
        return said

    def check(self, turns: Sequence[Sequence[Calls]], gold: Mapping[str, Any]) -> bool:
        """Whether the calls of a dialogue (turns of steps of calls, none of them empty) do what the gold calls do."""
        if len(turns) != len(gold["answer"]):  # the dialogue was stopped before its end
            return False
        methods = self.methods(gold["entry"]["involved_classes"])
        rendered = [[[render_call(call, methods) or UNKNOWN_CALL for call in step] for step in turn] for turn in turns]
        try:
            verdict = self._check(rendered, gold["answer"], dict(gold["entry"]), gold["category"], MODEL_NAME)
        except CHECKER_FAILS:  # comparing states; what a tool raises is its answer
            return False
        return bool(verdict["valid"])


def _unrefused(execute: Callable[..., tuple[list[str], Any]]) -> Callable[..., tuple[list[str], Any]]:
    """bfcl-eval's `execute`, which raises RuntimeError where our own limits kept a tool from doing its work."""

    @functools.wraps(execute)
    def checked(*args: Any, **kwargs: Any) -> tuple[list[str], Any]:
        said, instances = execute(*args, **kwargs)
        for text in said:
            if text.startswith(REFUSED):
                raise RuntimeError(
                    f"a tool wanted to open a file or start a process, which no copy can: {text[:300]!r}; what it "
                    "imports so late must stand in IMPORTED_LATE"
                )
        return said, instances

    return checked


def _refusal(call: Mapping[str, Any]) -> str:
    """What bfcl-eval says to a call of a name that it does not know."""
    name = next(iter(call), "") if isinstance(call, Mapping) else ""
    return f"Error during execution: name '{str(name).partition('.')[0][:200]}' is not defined"
