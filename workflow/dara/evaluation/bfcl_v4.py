"""BFCL-v4: the 14 categories of the paper, 3,301 cases, and the prompts that ToolRL's models are trained on.

The cases are those of the bfcl-eval package, which contains them; the package is located but never imported. A prompt
has ToolRL's system message, with the tools in a numbered list, and one user message with the whole dialogue so far:
`<user>`, the model's own turns, and `<obs>` with the tools' results. The texts are those of ToolRL's handler for this
benchmark (github qiancheng0/ToolRL, benchmarks/BFCL, revision 8cee13e), by which the paper's models are scored;
`tests/test_bfcl_v4_cases.py` compares the cases with bfcl-eval's own loader.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.evaluation import bfcl
from dara.evaluation.bfcl import BFCL_V4_COUNTS, CATEGORIES, is_multi_turn
from dara.evaluation.bfcl_calls import CHECKER_VERSION
from dara.evaluation.bfcl_v4_score import COLUMNS, NAME, SCORER, score_row, scorer_item, scorer_settings, summarise
from dara.evaluation.records import Case, read_jsonl
from dara.evaluation.tools import Program, ToolExecutor, dialogue, one_request
from dara.registries import BenchmarkDefinition, PublishedCases

if TYPE_CHECKING:
    from dara.data.hub import Fetch

VERSIONS = {"bfcl-eval": CHECKER_VERSION, "prompt": 1, "tools": 3}
"""Versions of what determines the prompts, besides the files of the cases.

`prompt` changes whenever this module makes other prompts, `tools` whenever a call is read, executed or answered in
another way (2: date checks of the travel tools work, 3: calls are read as by ToolRL's handler).
"""

# Class of tools in a several-turn case -> the file that documents them.
TOOL_DOCS = {
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TwitterAPI": "posting_api.json",
    "TicketAPI": "ticket_api.json",
    "TradingBot": "trading_bot.json",
    "TravelAPI": "travel_booking.json",
    "VehicleControlAPI": "vehicle_control.json",
}

SYSTEM = """You are a helpful multi-turn dialogue assistant capable of leveraging tool calls to solve user tasks \
and provide structured chat responses.

**Available Tools**
In your response, you can use the following tools:
{tools}

**Steps for Each Turn**
1. **Think:** Recall relevant context and analyze the current user goal.
2. **Decide on Tool Usage:** If a tool is needed, specify the tool and its parameters.
3. **Respond Appropriately:** If a response is needed, generate one while maintaining consistency across user queries.

**Output Format**
```plaintext
<think> Your thoughts and reasoning </think>
<tool_call>
{{"name": "Tool name", "parameters": {{"Parameter name": "Parameter content", "... ...": "... ..."}}}}
{{"name": "... ...", "parameters": {{"... ...": "... ...", "... ...": "... ..."}}}}
...
</tool_call>
<response> AI's final response </response>
```

**Important Notes**
1. You must always include the `<think>` field to outline your reasoning. Provide at least one of `<tool_call>` or \
`<response>`. Decide whether to use `<tool_call>` (possibly multiple times), `<response>`, or both.
2. You can invoke multiple tool calls simultaneously in the `<tool_call>` fields. Each tool call should be a JSON \
object with a "name" field and an "parameters" field containing a dictionary of parameters. If no parameters are \
needed, leave the "parameters" field an empty dictionary.
3. Refer to the previous dialogue records in the history, including the user's queries, previous `<tool_call>`, \
`<response>`, and any tool feedback noted as `<obs>` (if exists).
"""
SINGLE_TURN = (
    "If there's no appropriate tools to apply or required parameters are missing, please directly inform me in your "
    "response without any tool call, or call the tool with the name as 'None'. Otherwise, you should use one or more "
    "necessary tool calls to complete the given task in this turn."
)
MULTI_TURN = (
    "Use the one or more necessary tool calls to complete the task. You could perform tool calls for multiple rounds "
    "so you can try and error. Please make a comprehensive plan about how to achieve the goal step by step, and begin "
    "to call the tool step by step. If no tools apply or required parameters are missing, please also directly state "
    "this in your response without tool calls."
)
# Text after the results of tools; the spelling mistake is in ToolRL's handler.
CONTINUE = (
    "If you think you have completed the current task, or the task cannot be finished, please respond directly without "
    "additional tool calls. If you encounter an error during tool execution or the task remains unfinished, retry with "
    "the one or more necessary tool calls according to your thought and plan until completion. Based on the tool "
    "execution feedback, reflect on if understanding or selectioin of tool is wrong, what tool calling step is "
    "missing, and how to achieve the task goal from now on."
)
# Text of a turn in which tools that were held back become available.
MORE_TOOLS = "{tools}\nI have updated some more functions you can choose from. What about now?"


def data_directory() -> Path:
    """Return the directory of the cases inside the installed bfcl-eval. Raise ValueError if it is not installed."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"bfcl-eval is not installed, which has the cases of BFCL-v4; install it with "
            f"`pip install --no-deps bfcl-eval=={CHECKER_VERSION}`"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def case_files(cases_dir: Path) -> list[Path]:
    """Return the files with the cases."""
    docs = [cases_dir / "multi_turn_func_doc" / name for name in TOOL_DOCS.values()]
    return bfcl.case_files(cases_dir, NAME) + docs


def published_cases(fetch: Fetch) -> PublishedCases:
    """Return the files of the installed bfcl-eval."""
    source = data_directory()
    count = len(load_cases(source))  # checks their numbers
    files = {path.relative_to(source).as_posix(): path for path in case_files(source)}
    return PublishedCases(
        count=count, content={"versions": {"bfcl-eval": version("bfcl-eval")}, "cases": count}, files=files
    )


def questions() -> list[tuple[str, str]]:
    """Return the id and the user texts of each case, all turns of a case together."""
    found = []
    for category in CATEGORIES[NAME]:
        for row in read_jsonl(data_directory() / f"BFCL_v4_{category}.json", ("id", "question")):
            said = [message["content"] for turn in row["question"] for message in turn]
            found.append((row["id"], "\n".join(said)))
    return found


def load_cases(cases_dir: Path) -> list[Case]:
    """Return all cases, category by category, in the order of the files.

    `question` is the case as a model sees it: the descriptions of its tools name their language. `gold` is the scorer's
    input; there the tools are those of the file.

    Raises:
        ValueError: a category has another number of cases than the paper's, or a row is wrong or has no answer.
    """
    cases = []
    for category, language in CATEGORIES[NAME].items():
        path = cases_dir / f"BFCL_v4_{category}.json"
        answer_path = cases_dir / "possible_answer" / path.name
        fields = ("id", "question", "involved_classes" if is_multi_turn(category) else "function")
        rows, expected = read_jsonl(path, fields), BFCL_V4_COUNTS[category]
        if len(rows) != expected:
            raise ValueError(f"{path}: category {category} has {len(rows)} cases; BFCL-v4 has {expected}")
        answers = {row["id"]: row["ground_truth"] for row in read_jsonl(answer_path, ("id", "ground_truth"))}
        for number, row in enumerate(rows, 1):
            if row["id"] not in answers:
                raise ValueError(f"{path}, row {number}: case {row['id']!r} has no answer in {answer_path}")
            make = _several_turns if is_multi_turn(category) else _single_turn
            cases.append(make(row, category, language, answers[row["id"]], cases_dir))
    return cases


def _single_turn(row: dict[str, Any], category: str, language: str, answer: Any, cases_dir: Path) -> Case:
    gold = {"functions": row["function"], "answer": answer, "category": category, "language": language}
    functions = [_with_hints(function, language) for function in row["function"]]
    return Case(row["id"], category, {**row, "function": functions}, gold)


def _several_turns(row: dict[str, Any], category: str, language: str, answer: Any, cases_dir: Path) -> Case:
    """Return a multi-turn case; its row names tools by their classes, and may hold some back until a later turn."""
    held_back = row.get("missed_function", {})
    tools = [tool for name in row["involved_classes"] for tool in _tool_docs(cases_dir, name)]
    later: dict[str, list[dict[str, Any]]] = {}
    for turn, names in held_back.items():
        later[turn] = []
        for name in names:
            position = next((i for i, tool in enumerate(tools) if tool["name"] == name), None)
            if position is not None:
                later[turn].append(tools.pop(position))
    question = {**row, "function": [_with_hints(tool, language) for tool in tools], "missed_function": later}
    entry = {key: value for key, value in row.items() if key not in ("question", "missed_function")}
    return Case(row["id"], category, question, {"entry": entry, "answer": answer, "category": category})


@cache
def _read_docs(path: Path) -> tuple[dict[str, Any], ...]:
    return tuple(read_jsonl(path, ("name", "description", "parameters")))


def _tool_docs(cases_dir: Path, tool_class: str) -> Sequence[dict[str, Any]]:
    if tool_class not in TOOL_DOCS:
        raise ValueError(f"{cases_dir}: tools of class {tool_class!r} are not known; known are {', '.join(TOOL_DOCS)}")
    return _read_docs(cases_dir / "multi_turn_func_doc" / TOOL_DOCS[tool_class])


_SYNTAX = {"PYTHON": "Python 3", "JAVA": "Java 8 SDK", "JAVASCRIPT": "JavaScript"}
_SPOKEN = {"JAVA": "Java", "JAVASCRIPT": "JavaScript"}
_LISTS = {"JAVA": ("ArrayList", "Array"), "JAVASCRIPT": ("array",)}


def _with_hints(function: Mapping[str, Any], language: str) -> dict[str, Any]:
    """Return a copy of a tool's description with the language of the tool added.

    Values of Java and JavaScript parameters are given as text, whatever their type; the description names the type.
    """
    tool = copy.deepcopy(dict(function))
    tool["description"] += f" Note that the provided function is in {_SYNTAX[language]} syntax."
    if language not in _SPOKEN:
        return tool
    spoken = _SPOKEN[language]
    for value in tool["parameters"]["properties"].values():
        kind = value["type"]
        if kind == "any":
            value["description"] += f" This parameter can be of any type of {spoken} object in string representation."
        else:
            value["description"] += f" This is {spoken} {kind} type parameter in string representation."
        if kind in _LISTS[language]:
            items = value.pop("items")["type"]
            value["description"] += f" The list elements are of type {items}; they are not in string representation."
        if language == "JAVASCRIPT" and kind == "dict" and "properties" in value:
            value["description"] += (
                " The dictionary entries have the following schema; they are not in string representation. "
                f"{json.dumps(value.pop('properties'))}"
            )
        value["type"] = "string"
    return tool


def prompt(case: Case) -> list[dict[str, str]]:
    """Return the chat messages of a case's first prompt."""
    return messages(case, case.question["question"][0])


def messages(case: Case, history: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the system and the user message for the dialogue so far.

    Args:
        history: messages of role user, assistant or tool (with the call as `name`); others are left out, as in
            ToolRL's handler.
    """
    tools = "\n".join(
        f"{number}. Name: {tool['name']}\nDescription: {tool['description']}\n"
        f"Parameters: {json.dumps(tool['parameters'].get('properties', {}))}"
        for number, tool in enumerate(case.question["function"], 1)
    )
    instruction = MULTI_TURN if is_multi_turn(case.category) else SINGLE_TURN
    text = "**Dialogue Records History**\n"
    for message in history:
        content = message["content"].strip()
        if message["role"] == "user":
            text += f"<user> {content}\n{instruction} </user>\n"
        elif message["role"] == "assistant":
            text += f"\n{content}\n"
        elif message["role"] == "tool":
            text += (
                f"<obs> You have made the tool call {message['name'].strip()}. Execution returns: {content} </obs>\n"
            )
    if history and history[-1]["role"] == "tool":
        text += f"\n<user> {CONTINUE} </user>\n"
    return [{"role": "system", "content": SYSTEM.format(tools=tools)}, {"role": "user", "content": text.strip()}]


def turns(case: Case) -> list[list[dict[str, str]]]:
    """Return the messages that begin each turn; a turn in which tools become available announces them instead."""
    later = case.question.get("missed_function", {})
    return [
        [{"role": "user", "content": MORE_TOOLS.format(tools=later[str(number)])}] if str(number) in later else turn
        for number, turn in enumerate(case.question["question"])
    ]


@contextlib.contextmanager
def programs(cases: Sequence[Case], max_steps: int) -> Iterator[Callable[[Case], Program]]:
    """Yield the program of each case: one request, or a dialogue whose tool calls are executed."""

    def program(case: Case) -> Program:
        if not is_multi_turn(case.category):
            return one_request(prompt(case))
        return dialogue(case.id, turns(case), lambda history: messages(case, history), executor, max_steps)

    with ToolExecutor(cases) as executor:
        yield program


def tools_identity() -> dict[str, Any]:
    """Return versions and limits of the execution of tool calls in `programs`, and its `network`, as JSON values.

    `network` is isolated or reachable. A worker is started to determine it, which takes a second.
    """
    with ToolExecutor(()) as executor:
        return executor.identity


BFCL_V4 = BenchmarkDefinition(
    name=NAME,
    task="tool_calling",
    kind="published",
    case_files=case_files,
    load_cases=load_cases,
    prompt=prompt,
    publish=published_cases,
    questions=questions,
    versions=lambda: VERSIONS,
    programs=programs,
    tools_identity=tools_identity,
    scorer=SCORER,
    scorer_version=3,  # 2: tools that check dates work; 3: calls and ends of dialogues are judged as by the authors
    scorer_settings=scorer_settings,
    scorer_item=scorer_item,
    graders={"bfcl-eval": CHECKER_VERSION},
    columns=COLUMNS,
    score_row=score_row,
    summarise=summarise,
    paper={
        "samples": 1,
        "sampling": {"temperature": 0.6, "top_p": 0.95, "max_response_tokens": 8192},
        "seed": 0,
        "max_context": 32768,
    },
    parts=tuple(CATEGORIES[NAME]),
    headline=bfcl.HEADLINE,
    plain_numbers=("think_words",),
)
