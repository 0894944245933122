"""The table of rewards: what `score` applies to a response, the declared ranges, and its errors."""

import pytest

from dara.rewards import REWARDS, reward_ranges, score, tool_correctness, tool_format

REFERENCE = '<think> x </think>\n<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>'
ANSWER = '<think>a b c</think>\n<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>'


def tool(names, response=ANSWER, **changes):
    arguments = {"response": response, "reference": REFERENCE, "n_tokens": 9, "params": {}, **changes}
    return score("tool_calling", names, **arguments)


def math(names, response=r"\boxed{42}", **changes):
    return score("math", names, **{"response": response, "reference": "42", "n_tokens": 24, "params": {}, **changes})


def test_scores_are_in_the_order_of_the_names():
    assert tool(("correctness", "format", "length")) == [3.0, 1.0, 1.0]
    broken = ANSWER.replace("</think>\n", "</think>")
    assert tool(("format", "correctness"), broken) == [0.0, 3.0]
    assert tool(("correctness", "format"), broken) == [3.0, 0.0]
    assert math(("length", "correctness"), params={"length": {"limit": 23}}) == [0.0, 1.0]
    assert math(["correctness"], "") == [0.0]


def test_the_assistant_turn_is_taken_once_for_tools_and_not_for_math():
    wrapped = f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>\n"
    assert tool_format(wrapped, REFERENCE) == 0.0
    assert tool(("correctness", "format"), wrapped) == [3.0, 1.0]
    assert tool_correctness(wrapped, REFERENCE) == 3.0
    assert math(["correctness"], r"\boxed{42}<|im_end|>\boxed{41}") == [0.0]


def test_parameters_have_the_defaults_of_the_paper():
    sixteen = ANSWER.replace("a b c", "w " * 16)
    assert tool(["length"], sixteen) == [1.0]
    assert tool(["length"], sixteen.replace("w w", "w w w", 1)) == [0.0]
    assert tool(["length"], params={"length": {"limit": 2}}) == [0.0]
    assert math(["length"], n_tokens=4000) == [1.0]
    assert math(["length"], n_tokens=4001) == [0.0]


def test_ranges():
    assert reward_ranges("tool_calling", ("format", "correctness", "length")) == [(0, 1), (-3, 3), (0, 1)]
    assert reward_ranges("math", ("correctness", "length")) == [(0, 1), (0, 1)]
    assert {task: list(rewards) for task, rewards in REWARDS.items()} == {
        "tool_calling": ["correctness", "format", "length"],
        "math": ["correctness", "length"],
    }


def test_a_parameter_of_a_reward_that_is_not_selected_is_allowed():
    assert tool(["format"], params={"length": {"limit": 2}}) == [1.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"task": "maths"}, "unknown task 'maths': the tasks are tool_calling, math"),
        ({"names": ["format", "size"]}, "unknown reward 'size' of task tool_calling: .* correctness, format, length"),
        ({"params": {"size": {}}}, "unknown reward 'size' of task tool_calling: .* correctness, format, length"),
        ({"params": {"length": {"max": 3}}}, "unknown parameter 'max' of reward length .* its parameters are limit"),
        ({"params": {"format": {"limit": 3}}}, "unknown parameter 'limit' of reward format .* its parameters are none"),
        ({"params": {"length": {"limit": -3}}}, "limit of a length reward must be a number >= 0, got -3"),
        ({"reference": None}, "reference must be a string, got NoneType"),
        ({"reference": "<tool_call>{</tool_call>"}, "reference: line 1 of its <tool_call> is not JSON"),
    ],
)
def test_errors_name_the_right_ones(arguments, words):
    valid = {
        "task": "tool_calling",
        "names": ["correctness", "format", "length"],
        "response": ANSWER,
        "reference": REFERENCE,
        "n_tokens": 9,
        "params": {},
    }
    call = {**valid, **arguments}
    with pytest.raises(ValueError, match=words):
        score(call.pop("task"), call.pop("names"), **call)
    with pytest.raises(ValueError, match="unknown"):
        reward_ranges("tool_calling", ["size"])


def test_a_token_count_is_needed_only_where_it_counts():
    assert tool(("correctness", "format", "length"), n_tokens=None) == [3.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="n_tokens must be an integer"):
        math(["length"], n_tokens=None)
