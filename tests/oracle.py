"""The best answers that BFCL-v4 allows: gold calls in ToolRL's format.

They show what the whole path from text to score can give: a parser or a checker that loses a call loses points here. A
few cases cannot be satisfied by a plain rendering of their possible answer (UNSATISFIED): their answers hold values
that no call in JSON expresses, or that the checker's own types refuse.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dara.evaluation.records import Case, Response

UNSATISFIED: dict[str, str] = {
    "simple_java_36": "a list of texts, numbers and truth values, whose items the checker reads as texts",
    "simple_java_65": "a list of texts and truth values, whose items the checker reads as texts",
    "live_simple_106-63-0": "required parameters without a possible value",
    "live_simple_112-68-0": "required parameters without a possible value",
    "live_multiple_862-181-3": "the answer has a parameter that the tool has not",
    "live_multiple_964-207-0": "the answer has a parameter that the tool has not",
}
"""Cases that no answer satisfies, and why: 6 of 3,301."""


def oracle_response(case: Case) -> Response:
    """The gold answer of a case of BFCL-v4, as a model in ToolRL's format would say it."""
    if "entry" not in case.gold:
        text = turn([_single_call(answer, case.gold) for answer in case.gold["answer"]])
        return Response(text, len(text), True)
    parameters = tool_parameters(case)
    done = "<think> Done. </think>\n<response> Done. </response>"
    turns = tuple(
        (*([turn([parse_call(call, parameters) for call in calls])] if calls else []), done)
        for calls in case.gold["answer"]
    )
    return Response("", sum(len(step) for steps in turns for step in steps), True, turns)


def turn(calls: Sequence[Mapping[str, Any]]) -> str:
    """An assistant turn that makes `calls`, each `{name: parameters}`."""
    lines = [json.dumps({"name": name, "parameters": given}) for call in calls for name, given in call.items()]
    return "<think> I call the tools. </think>\n<tool_call>\n" + "\n".join(lines) + "\n</tool_call>"


def tool_parameters(case: Case) -> dict[str, list[str]]:
    """Tool -> its parameters, in order, from the descriptions that a dialogue's model reads (now or later)."""
    later = [tool for tools in case.question.get("missed_function", {}).values() for tool in tools]
    return {tool["name"]: list(tool["parameters"]["properties"]) for tool in [*case.question["function"], *later]}


def parse_call(text: str, parameters: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """A gold call in Python, `f(1, b='x')`, as `{name: parameters}`."""
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text!r} is no call of a function by its name")
    name = call.func.id
    given = dict(zip(parameters.get(name, ()), map(ast.literal_eval, call.args), strict=False))
    return {name: given | {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}}


def _single_call(answer: Mapping[str, Any], gold: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`{name: {parameter: possible values}}` -> the call with the first value of each parameter that must be there."""
    ((name, possible),) = answer.items()
    (function,) = [function for function in gold["functions"] if function["name"] == name]
    schema, write, given = function["parameters"], _SOURCES[gold["language"]], {}
    for parameter, values in possible.items():
        required = parameter in schema["required"]
        if not values or ("" in values and not required):  # an empty text: the parameter may be left out
            continue
        wanted = next((value for value in values if value != ""), "")
        given[parameter] = write(_first(wanted), schema["properties"].get(parameter, {}))
    return {name: given}


def _first(value: Any) -> Any:
    """A value without alternatives: in the answers an object's entry is a list of the values that it may have."""
    if isinstance(value, dict):
        return {key: _one(options) for key, options in value.items() if "" not in options}
    if isinstance(value, list):
        return [_first(item) if isinstance(item, dict) else item for item in value]
    return value


def _one(options: Any) -> Any:
    return options[0] if isinstance(options, list) else options


def _python(value: Any, schema: Mapping[str, Any]) -> Any:
    return value


def _javascript(value: Any, schema: Mapping[str, Any]) -> str:
    """A value as it is written in JavaScript: there all arguments are texts."""
    return value if isinstance(value, str) else json.dumps(value)


def _java(value: Any, schema: Mapping[str, Any]) -> str:
    """A value as it is written in Java, in the one of its spellings that the checker reads."""
    kind, inner = schema.get("type"), schema.get("items", {})
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        puts = " ".join(f'put("{key}", {json.dumps(item)});' for key, item in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    if isinstance(value, list):
        if kind == "Array":  # here the checker keeps quotation marks as a part of the text
            return f"new Object[]{{{', '.join(_java(item, inner) for item in value)}}}"
        items = [json.dumps(item) if isinstance(item, str) else _java(item, inner) for item in value]
        return f"new ArrayList<>(Arrays.asList({', '.join(items)}))"
    return json.dumps(value) + {"long": "L", "float": "f"}.get(kind, "")


_SOURCES = {"PYTHON": _python, "JAVA": _java, "JAVASCRIPT": _javascript}
