"""Tool calls in model text, and the checkers of bfcl-eval (CHECKER_VERSION) that judge or execute them.

Model text is untrusted. A call is reduced to a name and an object of JSON values; no other part of the text is used.
bfcl-eval executes the calls of multi-turn cases with Python's eval(), so `render_call` writes each call from these
parts: the name must be a method of the case's tools, and the arguments are literals.

The full installation of bfcl-eval needs 1.9 GB of packages that only serve other models; a stub of its table of models
makes the checkers work without them. The checkers are the original ones: `ast_checker` compares calls in Python, Java
and JavaScript with possible answers, `multi_turn_checker` executes the calls of a dialogue and compares states and
results with those of the gold calls. Only worker processes use them: they are imported late, and write to directories
that the worker sets. A worker executes calls in forked copies of itself that cannot open files, so modules that the
tools import at their first call are imported beforehand.
"""

from __future__ import annotations

import errno
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

from dara.rewards.tool_calling import assistant_turn

Calls = list[dict[str, Any]]
"""Calls `{name: parameters}`."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
MAX_DEPTH = 64  # of the arguments: more than any case needs, less than Python's parser allows


def decode_output(text: str) -> Calls | None:
    """Return the calls in an output of a dialogue: these are executed and scored.

    They are read as by ToolRL's handler: a call without "parameters" has none, whatever other keys it has. None is
    returned if the output has no call, or if a name is not text or parameters are not an object; such a call makes the
    whole output void. A call that cannot be executed (`render_call`) is answered by an error, and the other calls are
    executed. Parameters that are not literals (`is_literal`) are returned as None: they can be neither shown nor passed
    on.
    """
    found = [(call.get("name", ""), call.get("parameters", {})) for call in _objects(assistant_turn(text))]
    if not found or not all(isinstance(name, str) for name, _ in found):
        return None
    calls = [(name.strip(), parameters) for name, parameters in found if not _declines(name)]
    if not all(isinstance(parameters, dict) for _, parameters in calls):
        return None
    return [{name: parameters if is_literal(parameters) else None} for name, parameters in calls]


def decode_calls(text: str) -> Calls | None:
    """Return the calls in the turn of a single-turn case; None without a call.

    A call needs a name and "parameters", or it is skipped. A call whose name is not a dotted identifier or whose
    parameters are not an object of literals (`is_literal`) makes the whole turn unreadable: no answer has such a call.
    """
    found = [call for call in _objects(text) if isinstance(call.get("name"), str) and "parameters" in call]
    calls = [{call["name"]: call["parameters"]} for call in found if not _declines(call["name"])]
    return calls if found and all(map(_is_plain, calls)) else None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects, one a line, from the last `<tool_call>` to the next `</tool_call>` or the end."""
    _, tag, block = text.rpartition("<tool_call>")
    for line in block.partition("</tool_call>")[0].split("\n") if tag else ():
        try:
            call = json.loads(line)
        except (ValueError, RecursionError):  # RecursionError: thousands of nested braces
            continue
        if isinstance(call, dict):
            yield call


def _declines(name: str) -> bool:
    """Return whether the call's name is a form of "none", by which a model declines."""
    return name.strip().lower() == "none"


def _is_plain(call: Mapping[str, Any]) -> bool:
    """Return whether a call has a dotted identifier and an object of literals."""
    ((name, parameters),) = call.items()
    return _NAME.fullmatch(name) is not None and isinstance(parameters, dict) and is_literal(parameters)


def is_literal(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether a value is JSON (text, finite number, boolean, null, list, object) of a bounded depth."""
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
    """Return `{name: parameters}` as a Python call; None unless it calls one of `methods` with literals.

    The parameters are passed as one dictionary, `cd(**{'folder': 'a'})`, so that a parameter's name is never code.
    """
    ((name, parameters),) = call.items()
    if name not in methods or name.startswith("_") or not _is_plain(call):
        return None
    return f"{name}(**{parameters!r})"


CHECKER_VERSION = "2026.3.23"
MODEL_NAME = "dara"  # the checker's key for its table of models; an underscore would be taken for a slash
# A call of an undefined name, in place of calls that are not executed: bfcl-eval answers that it is not defined.
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
# bfcl-eval's answer when a file or a process was refused: it returns every exception as the tool's answer. No tool
# opens anything, or begins an exception with text of a model, so the limits of `isolation` are the cause.
REFUSED = tuple(f"Error during execution: [Errno {code}]" for code in (errno.EMFILE, errno.EFBIG, errno.EAGAIN))


def _load_package() -> None:
    """Replace bfcl-eval's table of models by one that has MODEL_NAME only. RuntimeError for another version of it."""
    installed = metadata.version("bfcl-eval")
    if installed != CHECKER_VERSION:
        raise RuntimeError(f"bfcl-eval {installed} is installed; the scores are defined by {CHECKER_VERSION}")
    module = types.ModuleType("bfcl_eval.constants.model_config")
    module.MODEL_CONFIG_MAPPING = {MODEL_NAME: types.SimpleNamespace(underscore_to_dot=False)}
    sys.modules[module.__name__] = module


def single_turn_checker() -> Callable[[Calls, Mapping[str, Any]], bool]:
    """Return the check of calls against possible answers, `check(calls, {functions, answer, category, language})`."""
    _load_package()
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.utils import is_function_calling_format_output

    def check(calls: Calls, gold: Mapping[str, Any]) -> bool:
        language = Language[gold["language"]]
        if not is_function_calling_format_output(calls):
            return False
        try:
            verdict = ast_checker(gold["functions"], calls, gold["answer"], language, gold["category"], MODEL_NAME)
        except CHECKER_FAILS:
            return False
        return bool(verdict["valid"])

    return check


class Tools:
    """The tools of dialogues, executed by bfcl-eval's own function; it evaluates text, but gets rendered calls only."""

    def __init__(self) -> None:
        _load_package()
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        def execute(*args: Any, **kwargs: Any) -> tuple[list[str], Any]:
            said, instances = execute_multi_turn_func_call(*args, **kwargs)
            for text in said:
                if text.startswith(REFUSED):
                    raise RuntimeError(
                        f"a tool wanted to open a file or start a process, which no copy can: {text[:300]!r}; what it "
                        "imports so late must stand in IMPORTED_LATE"
                    )
            return said, instances

        for module in IMPORTED_LATE:
            importlib.import_module(module)
        # The checker compares the answers to model and gold calls: if both were refused, it would count them as equal.
        checker.execute_multi_turn_func_call = execute
        self._check, self._execute = checker.multi_turn_checker, execute
        self._classes = {
            name: getattr(importlib.import_module(path), name)
            for name, path in CLASS_FILE_PATH_MAPPING.items()
            if "." not in name and not name.startswith(("WebSearch", "Memory"))  # these need more packages
        }

    def methods(self, classes: Sequence[str]) -> set[str]:
        """Return the public methods of tool classes, which are all that a model may call."""
        members = [inspect.getmembers(self._classes[name], inspect.isfunction) for name in classes]
        return {method for found in members for method, _ in found if not method.startswith("_")}

    def execute(self, calls: Calls, entry: Mapping[str, Any], long_context: bool) -> list[str]:
        """Return the tools' answer to each call, in order; the state of the entry's tools stays in this process."""
        classes, said = entry["involved_classes"], []
        for call in calls:
            text = render_call(call, self.methods(classes))
            if text is None:  # as bfcl-eval answers to a call of an unknown name
                name = next(iter(call)).partition(".")[0][:200]
                said.append(f"Error during execution: name '{name}' is not defined")
            else:
                state = (entry["initial_config"], classes, MODEL_NAME, entry["id"], long_context)
                said += self._execute([text], *state)[0]
        return said

    def check(self, turns: Sequence[Sequence[Calls]], gold: Mapping[str, Any]) -> bool:
        """Return whether a dialogue's calls (turns of steps of calls, none empty) have the effect of the gold calls."""
        if len(turns) != len(gold["answer"]):  # the dialogue was stopped before its end
            return False
        methods = self.methods(gold["entry"]["involved_classes"])
        rendered = [[[render_call(call, methods) or UNKNOWN_CALL for call in step] for step in turn] for turn in turns]
        try:
            verdict = self._check(rendered, gold["answer"], dict(gold["entry"]), gold["category"], MODEL_NAME)
        except CHECKER_FAILS:  # comparing states; what a tool raises is its answer
            return False
        return bool(verdict["valid"])
