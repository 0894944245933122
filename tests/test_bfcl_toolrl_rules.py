"""Dialogues with all kinds of outputs count as for the paper's tools, whose rules are in `toolrl_rules`."""

import json
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import toolrl_rules
from bfcl_v4_fakes import real_cases
from dara.evaluation import bfcl_v4, bfcl_v4_score
from dara.evaluation.bfcl import is_multi_turn
from dara.evaluation.records import Case, Response
from dara.evaluation.samplers import OVERFLOW
from dara.evaluation.sandbox import Sandbox, ScorerSpec
from dara.evaluation.tools import dialogue
from dara.rewards.tool_calling import evaluation_format, think_length
from oracle import parse_call, tool_parameters

MAX_STEPS = 4
DIALOGUES = [case for case in real_cases(14 * 6) if is_multi_turn(case.category)]
SAID = "<think> t </think>\n<response> Done. </response>"
DEEP = "[" * 70 + "]" * 70
LINES = [
    '{"name": "pwd"}',
    '{"name": "ls", "arguments": {"a": true}}',
    '{"name": " pwd ", "parameters": {}}',
    *(
        f'{{"name": "{name}", "parameters": {{"x": 1}}}}'
        for name in ("get-weather", "get weather", "7cd", "", "cd.", "a.b")
    ),
    '{"parameters": {"x": 1}}',
    "{}",
    '{"name": "cd", "parameters": {"folder": NaN}}',
    '{"name": "cd", "parameters": {"folder": 1e999}}',
    f'{{"name": "cd", "parameters": {{"folder": {DEEP}}}}}',
    '{"name": "cd", "parameters": {"x y": 1}}',
    *(f'{{"name": {name}, "parameters": {{}}}}' for name in ("7", "null", '["ls"]', "true", '{"ls": 1}')),
    *(f'{{"name": "pwd", "parameters": {given}}}' for given in ("null", "[]", '"x"', "7")),
    '{"name": "get-weather", "parameters": []}',
    '{"name": "None"}',
    '{"name": " none ", "parameters": 7}',
    *("pwd()", "7", '[{"name": "pwd"}]', "", "{", "[" * 5000, "<tool_call>", "</tool_call>"),
]
OUTPUTS = [
    "",
    SAID,
    "<tool_call>",
    "<think> t </think>",
    "</tool_call>\n<tool_call>\n" + LINES[0],
    *map("<tool_call>{}".format, LINES),
]


def gold_outputs(case: Case) -> list[list[str]]:
    """The lines of each right output of a dialogue: all calls of a turn, and none at its end."""
    parameters = tool_parameters(case)
    calls = [[parse_call(text, parameters) for text in texts] for texts in case.gold["answer"]]
    lines = [
        [json.dumps({"name": name, "parameters": given}) for call in turn for name, given in call.items()]
        for turn in calls
    ]
    return [output for turn in lines for output in ([turn, []] if turn else [[]])]


def rewritten(line: str) -> list[str]:
    """A right call in other words: without an empty object, with blanks around its name, with another key or type."""
    call = json.loads(line)
    name, parameters = call["name"], call["parameters"]
    bare = {"name": name, "arguments": parameters} if parameters else {"name": name}
    others = [bare, {**call, "name": f" {name} "}, {**call, "name": [name]}, {**call, "parameters": list(parameters)}]
    return [line, *map(json.dumps, others)]


@st.composite
def scripts(draw: st.DrawFn) -> tuple[Case, list[str | None]]:
    """A dialogue and what the model says in it: the gold calls, with a few changes; None: no room for an output."""
    case = draw(st.sampled_from(DIALOGUES))
    outputs = gold_outputs(case)
    lines = outputs[draw(st.integers(0, len(outputs) - 1))]
    change = draw(st.sampled_from(["rewritten", "rewritten", "more", "more", "open", "nothing"]))
    if change == "rewritten" and lines:
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = draw(st.sampled_from(rewritten(lines[number])))
    elif change == "more":
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(LINES)))
    end = "" if change == "open" else "\n</tool_call>"
    said: list[str | None] = [
        "<think> t </think>\n<tool_call>\n" + "\n".join(lines) + end if lines else SAID for lines in outputs
    ]
    place = draw(st.integers(0, len(said)))
    more = draw(st.sampled_from(["nothing", "nothing", "output", "steps", "no room"]))
    if more == "output":
        said.insert(place, draw(st.sampled_from(OUTPUTS)))
    elif more == "steps":
        said[place:place] = ["<tool_call>" + draw(st.sampled_from(LINES))] * (MAX_STEPS + draw(st.integers(-1, 1)))
    elif more == "no room":
        said.insert(place, None)
    return case, said


class Quiet:
    """An executor whose tools say nothing."""

    def execute(self, case_id: str, calls: list[dict[str, Any]]) -> list[str]:
        return [""] * len(calls)

    def lost(self, case_id: str) -> int:
        return 0

    def forget(self, case_id: str) -> None:
        """No state."""


def played(case: Case, said: list[str | None]) -> Response:
    """What is kept of a dialogue in which the model says `said`, and then nothing more."""
    program = dialogue(case.id, bfcl_v4.turns(case), list, Quiet(), MAX_STEPS)
    next(program)
    for text in chain(said, repeat(SAID)):
        try:
            program.send(OVERFLOW if text is None else Response(text, 1, True))
        except StopIteration as end:
            return end.value


@pytest.fixture(scope="module")
def ours() -> Iterator[Sandbox]:
    with Sandbox(ScorerSpec(bfcl_v4_score.SCORER, {"think_limit": 16, "seconds": 20.0}, 20.0)) as box:
        yield box


@pytest.fixture(scope="module")
def theirs() -> Iterator[Sandbox]:
    with Sandbox(ScorerSpec("toolrl_rules:make_scorer", {}, 20.0, (Path(__file__).parent,))) as box:
        yield box


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(script=scripts())
def test_dialogues_count_as_for_the_papers_tools(
    ours: Sandbox, theirs: Sandbox, script: tuple[Case, list[str | None]]
) -> None:
    case, said = script
    kept = played(case, said)
    (outcome,) = ours.score([bfcl_v4_score.scorer_item(kept, case)])
    turns = toolrl_rules.play(chain(said, repeat(SAID)), len(case.gold["answer"]), MAX_STEPS)
    assert turns is None or turns == [list(turn) for turn in kept.turns]
    assert (turns is None) == (kept.stopped == "context_overflow")
    (reference,) = theirs.score([{"turns": turns, **case.gold}])
    outputs = ["an error"] if turns is None else [output for turn in turns for output in turn]
    assert {name: outcome.scores[name] for name in ("accuracy", "format", "think_length")} == {
        "accuracy": reference.scores["accuracy"],
        "format": evaluation_format(outputs),
        "think_length": sum(map(think_length, outputs)) / len(outputs),
    }
