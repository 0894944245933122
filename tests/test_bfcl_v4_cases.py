"""BFCL-v4: the cases as bfcl-eval itself loads them, prompts in the form of ToolRL, and the driver of dialogues."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bfcl_v4_fakes import ScriptedSampler, real_cases, turn
from dara.evaluation import bfcl_v4
from dara.evaluation.bfcl import BFCL_V4_COUNTS
from dara.evaluation.bfcl_calls import decode_output
from dara.evaluation.records import Case, Response, parse_row, response_line, select_cases
from dara.evaluation.samplers import OVERFLOW, request_seed, run_programs
from dara.evaluation.tools import dialogue, one_request

# Prints what bfcl-eval's own loader gives, as JSON; a process of its own, because importing it makes folders.
LOADER = """
import json, sys
from bfcl_eval.utils import load_dataset_entry, load_ground_truth_entry
for category in sys.argv[1:]:
    shown = load_dataset_entry(category, include_language_specific_hint=True)
    several = category.startswith("multi_turn")  # they are never compared with plain ones
    plain = shown if several else load_dataset_entry(category, include_language_specific_hint=False)
    gold = load_ground_truth_entry(category)
    print(json.dumps([[a, b["function"], c["ground_truth"]] for a, b, c in zip(shown, plain, gold, strict=True)]))
"""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return real_cases(None)


def test_cases_are_what_bfcl_evals_own_loader_gives(cases: list[Case], tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LOADER, *BFCL_V4_COUNTS],
        env={**os.environ, "BFCL_PROJECT_ROOT": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    theirs = [row for line in result.stdout.splitlines() for row in json.loads(line)]
    assert len({case.id for case in cases}) == 3301
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
    path.write_text("".join([lines[0].replace("live_parallel_0-0-0", "stranger"), *lines[1:]]))
    with pytest.raises(ValueError, match=r"row 1: case 'stranger' has no answer in .*possible_answer"):
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
    shown = system["content"]
    assert shown.startswith("You are a helpful multi-turn dialogue assistant capable of leveraging tool calls")
    assert (
        "**Available Tools**\nIn your response, you can use the following tools:\n"
        "1. Name: calculate_triangle_area\nDescription: Calculate the area of a triangle given its base and height. "
        "Note that the provided function is in Python 3 syntax.\n"
        'Parameters: {"base": {"type": "integer", "description": "The base of the triangle."}, "height": {"type": '
        '"integer", "description": "The height of the triangle."}, "unit": {"type": "string", "description": "The unit '
        "of measure (defaults to 'units' if not specified)\"}}\n\n**Steps for Each Turn**\n"
    ) in shown
    example = '{"name": "Tool name", "parameters": {"Parameter name": "Parameter content", "... ...": "... ..."}}'
    assert f"<tool_call>\n{example}\n" in shown
    assert user["content"] == (
        "**Dialogue Records History**\n"
        "<user> Find the area of a triangle with a base of 10 units and height of 5 units.\n"
        "If there's no appropriate tools to apply or required parameters are missing, please directly inform me in "
        "your response without any tool call, or call the tool with the name as 'None'. Otherwise, you should use one "
        "or more necessary tool calls to complete the given task in this turn. </user>"
    )


def test_a_message_of_the_system_in_a_case_is_left_out_as_by_the_papers_handler(cases: list[Case]) -> None:
    case = next(one for one in cases if one.question["question"][0][0]["role"] == "system")
    shown = json.dumps(bfcl_v4.prompt(case))
    spoken = case.question["question"][0]
    assert spoken[0]["content"].strip()[:60] not in shown
    assert json.dumps(spoken[1]["content"].strip())[1:-1] in shown


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
    ((number, tools),) = case.question["missed_function"].items()
    name = tools[0]["name"]
    assert name not in [tool["name"] for tool in case.question["function"]]
    assert case.question["question"][int(number)] == []
    (message,) = bfcl_v4.turns(case)[int(number)]
    assert message["content"] == f"{tools}\nI have updated some more functions you can choose from. What about now?"
    before = [message for other in bfcl_v4.turns(case)[: int(number)] for message in other]
    assert f". Name: {name}\n" not in "".join(shown["content"] for shown in bfcl_v4.messages(case, before))


def test_bfcl_eval_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl_v4.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"bfcl-eval is not installed.*pip install --no-deps bfcl-eval==2026.3.23"):
        bfcl_v4.data_directory()


TURNS = [[{"role": "user", "content": "one"}], [{"role": "user", "content": "two"}]]
SAID = Response("<think> done </think>\n<response> done </response>", 5, True)


def calling(*calls: dict[str, Any] | str, finished: bool = True) -> Response:
    return Response(turn(*calls), 10, finished)


class Recorder:
    """An executor that writes down what it is asked for; a call of `hang` has no answer."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def execute(self, case_id: str, calls: list[dict[str, Any]]) -> list[str]:
        self.seen.append((case_id, calls))
        return [f"result {len(self.seen)}.{number}" for number, _ in enumerate(calls)]

    def forget(self, case_id: str) -> int:
        lost = sum(call == {"hang": {}} for _, calls in self.seen if calls != "forget" for call in calls)
        self.seen.append((case_id, "forget"))
        return lost


def play(answers: list[Response], max_steps: int = 20) -> tuple[Response, list[list[dict[str, str]]], Recorder]:
    """What is kept of a case that is answered so, the prompts it made, and its executor."""
    executor = Recorder()
    program = dialogue("case", TURNS, list, executor, max_steps)
    prompts = [next(program), *map(program.send, answers[:-1])]
    with pytest.raises(StopIteration) as end:
        program.send(answers[-1])
    return end.value.value, prompts, executor


LS = {"ls": {}}


def test_a_turn_goes_on_while_there_are_calls_and_results_are_shown() -> None:
    calls = [{"cd": {"folder": "it's"}}, LS]
    first = calling(*calls)
    kept, prompts, executor = play([first, SAID, SAID])
    assert kept == Response("", 20, True, ((first.text, SAID.text), (SAID.text,)), None)
    assert prompts[1] == [
        TURNS[0][0],
        {"role": "assistant", "content": first.text},
        {"role": "tool", "name": """cd(folder="it's")""", "content": "result 2.0"},
        {"role": "tool", "name": "ls()", "content": "result 2.1"},
    ]
    assert prompts[2] == [*prompts[1], {"role": "assistant", "content": SAID.text}, TURNS[1][0]]
    assert executor.seen == [("case", "forget"), ("case", calls), ("case", "forget")]


@pytest.mark.parametrize(
    "text",
    ["", "no call", "<tool_call>\nnot json\n</tool_call>", '<tool_call>\n{"name": "None", "parameters": {}}\n</tool_call>',
     '<tool_call>\n{"name": "ls"}\n{"name": 7}\n</tool_call>'],
)  # fmt: skip
def test_an_output_without_a_readable_call_ends_the_turn(text: str) -> None:
    kept, _, executor = play([Response(text, 1, True), SAID])
    assert kept.turns == ((text,), (SAID.text,))
    assert executor.seen == [("case", "forget")] * 2


SHORT, CD = '{"name": "ls"}', '{"name": "cd", "parameters": {"folder": "a"}}'
DEEP = "[" * 70 + "]" * 70


@pytest.mark.parametrize(
    ("lines", "calls"),
    [
        ([SHORT, CD], [{"ls": {}}, {"cd": {"folder": "a"}}]),
        (['{"name": "cd", "arguments": {"folder": "a"}}'], [{"cd": {}}]),
        (['{"name": " ls "}'], [{"ls": {}}]),
        # What is no method's name, or has values that no literal has, is a call that is answered by an error.
        (['{"name": "get-weather", "parameters": {"x": 1}}', SHORT], [{"get-weather": {"x": 1}}, {"ls": {}}]),
        (['{"parameters": {"x": 1}}', "{}", SHORT], [{"": {"x": 1}}, {"": {}}, {"ls": {}}]),
        ([SHORT, '{"name": "cd", "parameters": {"folder": NaN}}'], [{"ls": {}}, {"cd": None}]),
        ([SHORT, f'{{"name": "cd", "parameters": {{"folder": {DEEP}}}}}'], [{"ls": {}}, {"cd": None}]),
        # What is no call at all is skipped.
        (["", "ls()", "7", "[" + SHORT + "]", "[" * 10_000, CD], [{"cd": {"folder": "a"}}]),
        (['{"name": "None"}', SHORT, '{"name": " none ", "parameters": 7}'], [{"ls": {}}]),
        (['{"name": "none"}'], []),
        # What cannot be written as a call makes the whole output void.
        ([SHORT, '{"name": 7}'], None),
        ([SHORT, '{"name": null, "parameters": {}}'], None),
        ([SHORT, '{"name": ["ls"]}'], None),
        ([SHORT, '{"name": "cd", "parameters": "a"}'], None),
        ([SHORT, '{"name": "cd", "parameters": null}'], None),
        ([SHORT, '{"name": "get-weather", "parameters": []}'], None),
        (["ls()"], None),
        ([], None),
    ],
)  # fmt: skip
def test_calls_of_a_dialogue_are_read_as_by_toolrls_handler(
    lines: list[str], calls: list[dict[str, dict[str, Any] | None]] | None
) -> None:
    text = "<think>t</think>\n<tool_call>\n" + "\n".join(lines)
    for end in ("", "\n</tool_call>", "\n</tool_call>\n<response>x</response>"):
        assert decode_output(text + end) == calls


def test_an_odd_call_is_answered_and_the_turn_goes_on() -> None:
    odd, other = calling(LS, '{"name": "cd", "parameters": {"folder": NaN}}'), {"get-weather": {"x": 1}}
    _, prompts, executor = play([odd, calling(other), SAID, SAID])
    assert executor.seen[1:3] == [("case", [LS, {"cd": None}]), ("case", [other])]
    names = [message["name"] for message in prompts[2] if message["role"] == "tool"]
    assert names == ["ls()", "cd(...)", "get-weather(x=1)"]


LISTING, CUT, HANG = calling(LS), calling(LS, finished=False), {"hang": {}}
HANGING = [calling(HANG, LS, HANG), calling(HANG)]


@pytest.mark.parametrize(
    ("answers", "kept"),
    [
        ([CUT, SAID, SAID], Response("", 20, False, ((CUT.text, SAID.text), (SAID.text,)))),
        # As in the official driver, too many steps in a turn end the case; the count is a turn's own.
        ([LISTING] * 4, Response("", 40, True, ((LISTING.text,) * 4,), "step_limit")),
        (
            ([LISTING] * 3 + [SAID]) * 2,
            Response("", 70, True, ((*[LISTING.text] * 3, SAID.text),) * 2),
        ),
        # No room for another output is the model's failure.
        ([LISTING, OVERFLOW], Response("", 10, False, ((LISTING.text,),), "context_overflow")),
        ([OVERFLOW], Response("", 0, False, ((),), "context_overflow")),
        (
            [HANGING[0], SAID, HANGING[1], SAID],
            Response("", 30, True, ((HANGING[0].text, SAID.text), (HANGING[1].text, SAID.text)), None, 3),
        ),
    ],
)
def test_what_is_kept_of_a_dialogue(answers: list[Response], kept: Response) -> None:
    assert play(answers, max_steps=3)[0] == kept


def test_a_line_of_a_response_file_has_what_differs_from_the_usual() -> None:
    usual = '{"step": 9, "case": "a", "sample": 0, "response": "x", "n_tokens": 1, "finished": true}'
    assert response_line(9, "a", 0, Response("x", 1, True)) == usual
    assert parse_row(Path("file"), 1, usual).answer == Response("x", 1, True, lost_calls=0)
    lost = Response("", 1, True, (("x",),), None, 2)
    assert parse_row(Path("file"), 1, response_line(9, "a", 0, lost)).answer == lost
    for key, wrong, due in (
        *(("lost_calls", value, "a number of calls, 0 or more") for value in (-1, True, "2", None, 1.5)),
        ("turns", [["x", 1]], "a list of lists of texts"),
        ("stopped", "tired", r"one of \('context_overflow', 'step_limit'\)"),
    ):
        row = json.dumps({**json.loads(usual), key: wrong})
        with pytest.raises(ValueError, match=f"file, row 3: {key} must be {due}, not "):
            parse_row(Path("file"), 3, row)


HIDDEN = """<|im_start|>assistant
<tool_call>
{"name": "cd", "parameters": {"folder": "b"}}
</tool_call><|im_end|>
<tool_call>
{"name": "cd", "parameters": {"folder": "c"}}
</tool_call>"""


def test_what_is_executed_is_what_is_scored() -> None:
    """Text that looks like the marks of a chat template: the assistant turn between them counts, in both."""
    text = calling({"cd": {"folder": "a"}}).text + HIDDEN
    _, prompts, executor = play([Response(text, 9, True), SAID, SAID])
    assert executor.seen[1] == ("case", [{"cd": {"folder": "b"}}])
    assert prompts[1][2]["name"] == "cd(folder='b')"
    assert decode_output(text) == [{"cd": {"folder": "b"}}]
    silent = "<think> t </think><|im_end|>" + calling(LS).text
    kept, _, executor = play([Response(silent, 9, True), SAID])
    assert kept.turns == ((silent,), (SAID.text,))
    assert decode_output(silent) is None
    assert executor.seen == [("case", "forget")] * 2


def test_many_programs_run_side_by_side_and_end_in_any_order() -> None:
    sampler = ScriptedSampler(lambda prompt, n: prompt.upper(), capacity=3)
    waiting = [((f"case{i}", 0), lambda i=i: one_request(f"prompt {i}")) for i in range(10)]
    ended = run_programs(iter(waiting), sampler.session(None, None), sampler, seed=5)
    kept = {place: response.text for some in ended for place, response in some}
    assert kept == {(f"case{i}", 0): f"PROMPT {i}" for i in range(10)}
    assert sorted(sampler.seeds) == sorted(request_seed(5, (f"case{i}", 0), 0) for i in range(10))


def test_seeds_of_requests_differ_and_do_not_depend_on_what_ran_before() -> None:
    seeds = {request_seed(0, (case, sample), step) for case in "abcde" for sample in range(4) for step in range(4)}
    assert len(seeds) == 80
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(0, ("a", 0), 1) == request_seed(0, ("a", 0), 1) != request_seed(1, ("a", 0), 1)


def test_the_tools_of_a_case_are_really_executed_and_keep_their_state() -> None:
    case = next(one for one in real_cases(14) if one.category == "multi_turn_base")
    answers = [calling({"pwd": {}}), calling({"cd": {"folder": "document"}}), calling({"pwd": {}})]
    answers += [SAID] * len(case.question["question"])
    with bfcl_v4.programs([case], 20) as program:
        running = program(case)
        prompts = [next(running), *map(running.send, answers[:-1])]
        with pytest.raises(StopIteration) as end:
            running.send(answers[-1])
    assert len(end.value.value.turns) == len(case.question["question"])
    shown = prompts[3][1]["content"]
    returned = 'Execution returns: {"current_working_directory": '
    assert f"the tool call pwd(). {returned}" in shown
    assert f"the tool call cd(folder='document'). {returned}\"document\"}} </obs>" in shown
    assert shown.count(returned) == 3
