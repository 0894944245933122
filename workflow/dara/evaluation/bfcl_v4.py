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
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.evaluation import bfcl
from dara.evaluation.bfcl import LANGUAGES, is_multi_turn, read_category
from dara.evaluation.bfcl_calls import CHECKER_VERSION
from dara.evaluation.records import Case, read_jsonl
from dara.evaluation.tools import Program, ToolExecutor, dialogue, one_request, tools_identity
from dara.registries import BenchmarkDefinition, PublishedCases

if TYPE_CHECKING:
    from dara.data.hub import Fetch

NAME, CATEGORIES = bfcl.V4, bfcl.CATEGORIES[bfcl.V4]
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
    content = {"versions": {"bfcl-eval": version("bfcl-eval")}, "cases": count}
    return PublishedCases(count=count, content=content, files=files)


def questions() -> list[tuple[str, str]]:
    """Return the id and the user texts of each case, all turns of a case together."""
    said = {case.id: itertools.chain(*case.question["question"]) for case in load_cases(data_directory())}
    return [(case, "\n".join(message["content"] for message in messages)) for case, messages in said.items()]


def load_cases(cases_dir: Path) -> list[Case]:
    """Return all cases, category by category, in the order of the files.

    `question` is the case as a model sees it: the descriptions of its tools name their language. `gold` is the scorer's
    input; there the tools are those of the file. A row of a dialogue names tools by their classes, and may hold some
    back until a later turn. ValueError: a category has another number of cases than the paper's, or a row is wrong or
    has no answer.
    """
    cases = []
    for category in CATEGORIES:
        for row, gold in read_category(cases_dir, category):
            question, language = dict(row), LANGUAGES.get(category, "PYTHON")
            if is_multi_turn(category):
                tools = [tool for name in row["involved_classes"] for tool in _tool_docs(cases_dir, name)]
                held_back = row.get("missed_function", {})
                later = {name for names in held_back.values() for name in names}
                question["function"] = [tool for tool in tools if tool["name"] not in later]
                question["missed_function"] = {
                    turn: [tool for name in names for tool in tools if tool["name"] == name]
                    for turn, names in held_back.items()
                }
            question["function"] = [_with_hints(tool, language) for tool in question["function"]]
            cases.append(Case(row["id"], category, question, gold))
    return cases


@cache
def _tool_docs(cases_dir: Path, tool_class: str) -> list[dict[str, Any]]:
    if tool_class not in TOOL_DOCS:
        raise ValueError(f"{cases_dir}: tools of class {tool_class!r} are not known; known are {', '.join(TOOL_DOCS)}")
    path = cases_dir / "multi_turn_func_doc" / TOOL_DOCS[tool_class]
    return read_jsonl(path, ("name", "description", "parameters"))


# Language -> its syntax, its name in descriptions of parameters, and its types of lists.
_HINTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "PYTHON": ("Python 3", "", ()),
    "JAVA": ("Java 8 SDK", "Java", ("ArrayList", "Array")),
    "JAVASCRIPT": ("JavaScript", "JavaScript", ("array",)),
}


def _with_hints(function: Mapping[str, Any], language: str) -> dict[str, Any]:
    """Return a copy of a tool's description with the language of the tool added.

    Values of Java and JavaScript parameters are given as text, whatever their type; the description names the type.
    """
    tool, (syntax, spoken, lists) = copy.deepcopy(dict(function)), _HINTS[language]
    tool["description"] += f" Note that the provided function is in {syntax} syntax."
    for value in tool["parameters"]["properties"].values() if spoken else ():
        kind = value["type"]
        sort = f"is {spoken} {kind} type parameter"
        if kind == "any":
            sort = f"parameter can be of any type of {spoken} object"
        hint = f" This {sort} in string representation."
        if kind in lists:
            items = value.pop("items")["type"]
            hint += f" The list elements are of type {items}; they are not in string representation."
        if language == "JAVASCRIPT" and kind == "dict" and "properties" in value:
            schema = json.dumps(value.pop("properties"))
            hint += (
                f" The dictionary entries have the following schema; they are not in string representation. {schema}"
            )
        value["description"] += hint
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
    with ToolExecutor(cases) as executor:

        def program(case: Case) -> Program:
            if not is_multi_turn(case.category):
                return one_request(prompt(case))
            return dialogue(case.id, turns(case), lambda history: messages(case, history), executor, max_steps)

        yield program


BFCL_V4 = BenchmarkDefinition(
    name=NAME,
    task="tool_calling",
    kind="published",
    case_files=case_files,
    load_cases=load_cases,
    prompt=prompt,
    publish=published_cases,
    questions=questions,
    # `prompt` changes whenever this module makes other prompts, `tools` whenever a call is read, executed or answered
    # in another way (2: date checks of the travel tools work, 3: calls are read as by ToolRL's handler).
    versions=lambda: {"bfcl-eval": CHECKER_VERSION, "prompt": 1, "tools": 3},
    programs=programs,
    tools_identity=tools_identity,
    scorer=bfcl.SCORER,
    scorer_version=3,  # 2: tools that check dates work; 3: calls and ends of dialogues are judged as by the authors
    scorer_settings=lambda settings: {
        "think_limit": bfcl.THINK_WORDS if settings.length_limit is None else settings.length_limit,
        "seconds": settings.seconds_per_case,
    },
    scorer_item=bfcl.scorer_item,
    graders={"bfcl-eval": CHECKER_VERSION},
    columns=bfcl.V4_COLUMNS,
    score_row=bfcl.v4_row,
    summarise=bfcl.summarise_v4,
    paper={
        "samples": 1,
        "sampling": {"temperature": 0.6, "top_p": 0.95, "max_response_tokens": 8192},
        "seed": 0,
        "max_context": 32768,
    },
    parts=CATEGORIES,
    headline=bfcl.HEADLINE,
    plain_numbers=("think_words",),
)
