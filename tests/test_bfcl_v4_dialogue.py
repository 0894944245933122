"""The driver of dialogues: when a turn ends, what goes into the history, and when a case is stopped."""

import json
from pathlib import Path
from typing import Any

import pytest

from bfcl_v4_fakes import ScriptedSampler, real_cases
from dara.evaluation import bfcl_v4
from dara.evaluation.bfcl_calls import decode_output
from dara.evaluation.records import Response, parse_row, response_line
from dara.evaluation.samplers import OVERFLOW, request_seed, run_programs
from dara.evaluation.tools import dialogue, one_request

TURNS = [[{"role": "user", "content": "one"}], [{"role": "user", "content": "two"}]]
SAID = Response("<think> done </think>\n<response> done </response>", 5, True)


def calling(*calls: tuple[str, dict[str, Any]], finished: bool = True) -> Response:
    lines = "\n".join(json.dumps({"name": name, "parameters": parameters}) for name, parameters in calls)
    return Response(f"<think> t </think>\n<tool_call>\n{lines}\n</tool_call>", 10, finished)


class Recorder:
    """An executor that writes down what it is asked for."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def execute(self, case_id: str, calls: list[dict[str, Any]]) -> list[str]:
        self.seen.append((case_id, calls))
        return [f"result {len(self.seen)}.{number}" for number, _ in enumerate(calls)]

    def lost(self, case_id: str) -> int:
        return sum(call == {"hang": {}} for _, calls in self.seen if calls != "forget" for call in calls)

    def forget(self, case_id: str) -> None:
        self.seen.append((case_id, "forget"))


def play(answers: list[Response], max_steps: int = 20) -> tuple[Response, list[list[dict[str, str]]], Recorder]:
    """What is kept of a case that is answered so, the prompts it made, and its executor."""
    executor, prompts = Recorder(), []
    program = dialogue("case", TURNS, list, executor, max_steps)
    prompts.append(next(program))
    for answer in answers[:-1]:
        prompts.append(program.send(answer))
    with pytest.raises(StopIteration) as end:
        program.send(answers[-1])
    return end.value.value, prompts, executor


def test_a_turn_goes_on_while_there_are_calls_and_results_are_shown() -> None:
    first = calling(("cd", {"folder": "it's"}), ("ls", {}))
    kept, prompts, executor = play([first, SAID, SAID])
    assert kept == Response("", 20, True, ((first.text, SAID.text), (SAID.text,)), None)
    assert prompts[1] == [
        TURNS[0][0],
        {"role": "assistant", "content": first.text},
        {"role": "tool", "name": """cd(folder="it's")""", "content": "result 2.0"},
        {"role": "tool", "name": "ls()", "content": "result 2.1"},
    ]
    assert prompts[2] == [*prompts[1], {"role": "assistant", "content": SAID.text}, TURNS[1][0]]
    calls = [{"cd": {"folder": "it's"}}, {"ls": {}}]
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


LS, CD = '{"name": "ls"}', '{"name": "cd", "parameters": {"folder": "a"}}'
DEEP = "[" * 70 + "]" * 70


@pytest.mark.parametrize(
    ("lines", "calls"),
    [
        ([LS, CD], [{"ls": {}}, {"cd": {"folder": "a"}}]),
        (['{"name": "cd", "arguments": {"folder": "a"}}'], [{"cd": {}}]),
        (['{"name": " ls "}'], [{"ls": {}}]),
        # What is no method's name, or has values that no literal has, is a call that is answered by an error.
        (['{"name": "get-weather", "parameters": {"x": 1}}', LS], [{"get-weather": {"x": 1}}, {"ls": {}}]),
        (['{"parameters": {"x": 1}}', "{}", LS], [{"": {"x": 1}}, {"": {}}, {"ls": {}}]),
        ([LS, '{"name": "cd", "parameters": {"folder": NaN}}'], [{"ls": {}}, {"cd": None}]),
        ([LS, f'{{"name": "cd", "parameters": {{"folder": {DEEP}}}}}'], [{"ls": {}}, {"cd": None}]),
        # What is no call at all is skipped.
        (["", "ls()", "7", "[" + LS + "]", "[" * 10_000, CD], [{"cd": {"folder": "a"}}]),
        (['{"name": "None"}', LS, '{"name": " none ", "parameters": 7}'], [{"ls": {}}]),
        (['{"name": "none"}'], []),
        # What cannot be written as a call makes the whole output void.
        ([LS, '{"name": 7}'], None),
        ([LS, '{"name": null, "parameters": {}}'], None),
        ([LS, '{"name": ["ls"]}'], None),
        ([LS, '{"name": "cd", "parameters": "a"}'], None),
        ([LS, '{"name": "cd", "parameters": null}'], None),
        ([LS, '{"name": "get-weather", "parameters": []}'], None),
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
    text = calling(("ls", {})).text.replace("\n</", '\n{"name": "cd", "parameters": {"folder": NaN}}\n</')
    _, prompts, executor = play([Response(text, 9, True), calling(("get-weather", {"x": 1})), SAID, SAID])
    assert executor.seen[1:3] == [("case", [{"ls": {}}, {"cd": None}]), ("case", [{"get-weather": {"x": 1}}])]
    assert [message["name"] for message in prompts[2] if message["role"] == "tool"] == [
        *("ls()", "cd(...)", "get-weather(x=1)")
    ]


def test_too_many_steps_in_a_turn_end_the_case_as_in_the_official_driver() -> None:
    again = calling(("ls", {}))
    kept, _, _ = play([again] * 4, max_steps=3)
    assert kept.turns == ((again.text,) * 4,)
    assert kept.stopped == "step_limit"
    assert kept.n_tokens == 40
    within, _, _ = play([again] * 3 + [SAID] + [again] * 3 + [SAID], max_steps=3)  # the count is a turn's own
    assert within.stopped is None
    assert [len(turn) for turn in within.turns] == [4, 4]


def test_no_room_for_another_output_is_kept_as_the_models_failure() -> None:
    first = calling(("ls", {}))
    kept, _, _ = play([first, OVERFLOW])
    assert kept == Response("", 10, False, ((first.text,),), "context_overflow")
    at_once, _, _ = play([OVERFLOW])
    assert at_once == Response("", 0, False, ((),), "context_overflow")


def test_calls_without_an_answer_are_counted() -> None:
    kept, _, _ = play([calling(("hang", {}), ("ls", {}), ("hang", {})), SAID, calling(("hang", {})), SAID])
    assert kept.lost_calls == 3
    fine, _, _ = play([calling(("ls", {})), SAID, SAID])
    assert fine.lost_calls == 0


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
    text = calling(("cd", {"folder": "a"})).text + HIDDEN
    _, prompts, executor = play([Response(text, 9, True), SAID, SAID])
    assert executor.seen[1] == ("case", [{"cd": {"folder": "b"}}])
    assert prompts[1][2]["name"] == "cd(folder='b')"
    assert decode_output(text) == [{"cd": {"folder": "b"}}]
    silent = "<think> t </think><|im_end|>" + calling(("ls", {})).text
    kept, _, executor = play([Response(silent, 9, True), SAID])
    assert kept.turns == ((silent,), (SAID.text,))
    assert decode_output(silent) is None
    assert executor.seen == [("case", "forget")] * 2


def test_one_truncated_output_makes_the_case_truncated() -> None:
    kept, _, _ = play([calling(("ls", {}), finished=False), SAID, SAID])
    assert not kept.finished
    assert kept.outputs == [calling(("ls", {})).text, SAID.text, SAID.text]


def test_many_programs_run_side_by_side_and_end_in_any_order() -> None:
    sampler = ScriptedSampler(lambda prompt, n: prompt.upper(), capacity=3)
    waiting = [((f"case{i}", 0), lambda i=i: one_request(f"prompt {i}")) for i in range(10)]
    ended = run_programs(iter(waiting), sampler.session(None, None), sampler, seed=5)
    kept = dict(place_and_response for some in ended for place_and_response in some)
    assert {place: response.text for place, response in kept.items()} == {
        (f"case{i}", 0): f"PROMPT {i}" for i in range(10)
    }
    assert sorted(sampler.seeds) == sorted(request_seed(5, (f"case{i}", 0), 0) for i in range(10))


def test_seeds_of_requests_differ_and_do_not_depend_on_what_ran_before() -> None:
    seeds = {request_seed(0, (case, sample), step) for case in "abcde" for sample in range(4) for step in range(4)}
    assert len(seeds) == 80
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(0, ("a", 0), 1) == request_seed(0, ("a", 0), 1) != request_seed(1, ("a", 0), 1)


def test_the_tools_of_a_case_are_really_executed_and_keep_their_state() -> None:
    case = next(one for one in real_cases(14) if one.category == "multi_turn_base")
    answers = [calling(("pwd", {})), calling(("cd", {"folder": "document"})), calling(("pwd", {}))]
    answers += [SAID] * len(case.question["question"])
    with bfcl_v4.programs([case], 20) as program:
        running = program(case)
        prompts = [next(running), *map(running.send, answers[:-1])]
        with pytest.raises(StopIteration) as end:
            running.send(answers[-1])
    assert len(end.value.value.turns) == len(case.question["question"])
    shown = prompts[3][1]["content"]
    assert 'the tool call pwd(). Execution returns: {"current_working_directory": ' in shown
    assert (
        'the tool call cd(folder=\'document\'). Execution returns: {"current_working_directory": "document"} </obs>'
        in shown
    )
    assert shown.count('Execution returns: {"current_working_directory": ') == 3
