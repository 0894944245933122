"""The cases and prompts of BFCL-v4: all of them, as bfcl-eval itself loads them, in the form of ToolRL."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bfcl_v4_fakes import real_cases
from dara.evaluation import bfcl_v4
from dara.evaluation.bfcl import BFCL_V4_COUNTS
from dara.evaluation.records import Case, select_cases

# Prints what bfcl-eval's own loader gives, as JSON; a process of its own, because importing it makes folders.
LOADER = """
import json, sys
from bfcl_eval.utils import load_dataset_entry, load_ground_truth_entry
for category in sys.argv[1:]:
    shown = load_dataset_entry(category, include_language_specific_hint=True)
    plain = load_dataset_entry(category, include_language_specific_hint=False)
    gold = load_ground_truth_entry(category)
    print(json.dumps([[a, b["function"], c["ground_truth"]] for a, b, c in zip(shown, plain, gold, strict=True)]))
"""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return real_cases(None)


def test_there_are_3301_cases_in_14_categories(cases: list[Case]) -> None:
    counts = {category: sum(case.category == category for case in cases) for category in BFCL_V4_COUNTS}
    assert counts == BFCL_V4_COUNTS
    assert len(cases) == len({case.id for case in cases}) == 3301


def test_cases_are_what_bfcl_evals_own_loader_gives(cases: list[Case], tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LOADER, *BFCL_V4_COUNTS],
        env={**os.environ, "BFCL_PROJECT_ROOT": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    theirs = [row for line in result.stdout.splitlines() for row in json.loads(line)]
    for case, (shown, plain, answer) in zip(cases, theirs, strict=True):
        assert case.id == shown["id"]
        assert case.question["function"] == shown["function"]
        assert case.question["question"] == shown["question"]
        assert case.question.get("missed_function", {}) == shown.get("missed_function", {})
        assert case.gold["answer"] == answer
        if case.category.startswith("multi_turn"):
            assert case.gold["entry"]["initial_config"] == shown["initial_config"]
        else:
            assert case.gold["functions"] == plain


def test_a_category_with_another_number_of_cases_is_an_error_that_names_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(bfcl_v4.data_directory(), data)
    path = data / "BFCL_v4_live_parallel.json"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"live_parallel.json: category live_parallel has 15 cases; BFCL-v4 has 16"):
        bfcl_v4.load_cases(data)
    path.write_text("".join(lines))
    answers = data / "possible_answer" / path.name
    answers.write_text("".join(answers.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match=r"row 1: case 'live_parallel_0-0-0' has no answer in .*possible_answer"):
        bfcl_v4.load_cases(data)


def test_a_first_look_is_spread_over_the_categories(cases: list[Case]) -> None:
    chosen = select_cases(cases, 30)
    counts = [sum(case.category == category for case in chosen) for category in BFCL_V4_COUNTS]
    assert counts == [3, 3] + [2] * 12
    assert [case.id for case in chosen] == [case.id for case in cases if case in chosen]
    assert select_cases(cases, 4000) == select_cases(cases, None) == cases


def test_the_prompt_of_a_single_turn_case(cases: list[Case]) -> None:
    system, user = bfcl_v4.prompt(cases[0])
    assert (system["role"], user["role"]) == ("system", "user")
    assert system["content"].startswith(
        "You are a helpful multi-turn dialogue assistant capable of leveraging tool calls"
    )
    assert (
        "**Available Tools**\nIn your response, you can use the following tools:\n"
        "1. Name: calculate_triangle_area\nDescription: Calculate the area of a triangle given its base and height. "
        "Note that the provided function is in Python 3 syntax.\n"
        'Parameters: {"base": {"type": "integer", "description": "The base of the triangle."}, "height": {"type": '
        '"integer", "description": "The height of the triangle."}, "unit": {"type": "string", "description": "The unit '
        "of measure (defaults to 'units' if not specified)\"}}\n\n**Steps for Each Turn**\n"
    ) in system["content"]
    assert (
        '<tool_call>\n{"name": "Tool name", "parameters": {"Parameter name": "Parameter content", "... ...": "... ..."}}\n'
        in system["content"]
    )
    assert user["content"] == (
        "**Dialogue Records History**\n<user> Find the area of a triangle with a base of 10 units and height of 5 units.\n"
        "If there's no appropriate tools to apply or required parameters are missing, please directly inform me in your "
        "response without any tool call, or call the tool with the name as 'None'. Otherwise, you should use one or more "
        "necessary tool calls to complete the given task in this turn. </user>"
    )  # fmt: skip


def test_a_message_of_the_system_in_a_case_is_left_out_as_by_the_papers_handler(cases: list[Case]) -> None:
    case = next(one for one in cases if one.question["question"][0][0]["role"] == "system")
    shown = json.dumps(bfcl_v4.prompt(case))
    spoken = case.question["question"][0]
    assert spoken[0]["content"].strip()[:60] not in shown
    assert json.dumps(spoken[1]["content"].strip())[1:-1] in shown


def test_java_and_javascript_parameters_are_said_to_be_text(cases: list[Case]) -> None:
    for category, said in (("simple_java", "Java"), ("simple_javascript", "JavaScript")):
        for case in (one for one in cases if one.category == category):
            for tool in case.question["function"]:
                for value in tool["parameters"]["properties"].values():
                    assert value["type"] == "string"
                    assert f"{said} " in value["description"]
            assert all("syntax" not in tool["description"][-30:] for tool in case.gold["functions"])


def test_the_prompt_of_a_dialogue_shows_calls_and_what_they_returned(cases: list[Case]) -> None:
    case = next(one for one in cases if one.id == "multi_turn_base_0")
    history = [
        {"role": "user", "content": " Look. "},
        {"role": "assistant", "content": "<think> a </think>\n"},
        {"role": "tool", "name": "ls(a=True)", "content": '{"x": 1}\n'},
        {"role": "tool", "name": "pwd()", "content": "y"},
    ]
    text = bfcl_v4.messages(case, history)[1]["content"]
    assert text == (
        f"**Dialogue Records History**\n<user> Look.\n{bfcl_v4.MULTI_TURN} </user>\n\n<think> a </think>\n"
        '<obs> You have made the tool call ls(a=True). Execution returns: {"x": 1} </obs>\n'
        "<obs> You have made the tool call pwd(). Execution returns: y </obs>\n\n"
        f"<user> {bfcl_v4.CONTINUE} </user>"
    )
    later = bfcl_v4.messages(case, [*history, {"role": "user", "content": "Go on."}])[1]["content"]
    assert later.endswith(f"Execution returns: y </obs>\n<user> Go on.\n{bfcl_v4.MULTI_TURN} </user>")


def test_tools_that_are_held_back_appear_in_their_turn(cases: list[Case]) -> None:
    case = next(one for one in cases if one.category == "multi_turn_miss_func")
    ((turn, tools),) = case.question["missed_function"].items()
    name = tools[0]["name"]
    assert name not in [tool["name"] for tool in case.question["function"]]
    assert case.question["question"][int(turn)] == []
    (message,) = bfcl_v4.turns(case)[int(turn)]
    assert message["content"] == f"{tools}\nI have updated some more functions you can choose from. What about now?"
    before = [message for other in bfcl_v4.turns(case)[: int(turn)] for message in other]
    assert f". Name: {name}\n" not in "".join(shown["content"] for shown in bfcl_v4.messages(case, before))


def test_bfcl_eval_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl_v4.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"bfcl-eval is not installed.*pip install --no-deps bfcl-eval==2026.3.23"):
        bfcl_v4.data_directory()
