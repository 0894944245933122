"""Tool-calling rewards: the golden cases, each row of the format table and each rule of correctness."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.rewards.tool_calling import (
    assistant_turn,
    evaluation_format,
    think_length,
    think_words,
    tool_correctness,
    tool_format,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "rewards.json").read_text(encoding="utf-8"))

CALL = '<tool_call>\n{"name": "f", "parameters": {}}\n</tool_call>'
RESPONSE = "<response>hello</response>"
THINK = "<think>t</think>"
REFERENCES = {
    "neither": "<think> x </think>",
    "response": "<think> x </think>\n<response> hi </response>",
    "call": f"<think> x </think>\n{CALL}",
    "both": f"<think> x </think>\n{CALL}\n<response> hi </response>",
}


def calls(*items):
    """A well-formatted response or reference with one JSON value a line."""
    return "<think>t</think>\n<tool_call>\n" + "\n".join(json.dumps(item) for item in items) + "\n</tool_call>"


def call(name, /, **parameters):
    return {"name": name, "parameters": parameters}


@pytest.mark.parametrize("case", GOLDEN["tool_cases"], ids=lambda case: case["id"])
def test_golden_tool_cases(case):
    assert tool_format(case["response"], case["ground_truth"]) == case["format"]
    assert tool_correctness(case["response"], case["ground_truth"]) == pytest.approx(case["correctness"], abs=1e-12)
    assert think_length(case["response"]) == case["length16"]


@pytest.mark.parametrize("case", GOLDEN["evaluation_format"], ids=lambda case: case["id"])
def test_golden_evaluation_format(case):
    assert evaluation_format(case["outputs"]) == pytest.approx(case["case_format"], abs=1e-12)


# ------------------------------------------------------------------------------------------------ the turn


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("", ""),
        ("  a b \n", "a b"),
        ("p<|im_start|>assistant\nx<|im_end|>\n", "x"),
        ("<|im_start|>assistant a<|im_end|><|im_start|>user u<|im_end|><|im_start|>assistant b<|im_end|> c", "b"),
        ("a<|im_end|>b<|im_end|>c", "a"),
        ("<|im_start|>user\nq<|im_end|>", "<|im_start|>user\nq"),
    ],
)
def test_assistant_turn(text, turn):
    assert assistant_turn(text) == turn


# ------------------------------------------------------------------------------------------------ format


def test_each_reference_asks_for_its_own_structure():
    texts = {
        "neither": THINK,
        "response": f"{THINK}\n{RESPONSE}",
        "call": f"{THINK}\n{CALL}",
        "both": f"{THINK}\n{CALL}\n{RESPONSE}",
    }
    table = {(r, t): tool_format(text, REFERENCES[r]) for r in REFERENCES for t, text in texts.items()}
    # A text that ends with </think> is the only one that a reference without blocks accepts.
    assert {key for key, value in table.items() if value == 1.0} == {(name, name) for name in texts}


@pytest.mark.parametrize(
    ("reference", "text", "value"),
    [
        ("neither", "<think></think>", 1.0),
        ("neither", "<think>a</think> b </think>", 1.0),
        ("neither", "<think>a</think>\n", 1.0),
        ("neither", "<think>a</think>\n\n", 0.0),
        ("neither", "<think>", 0.0),
        ("neither", "a<think></think>", 0.0),
        ("neither", "", 0.0),
        ("response", "<think>\n</think>\n<response></response>", 1.0),
        ("response", "<think><think></think>\n<response>a</response>", 1.0),  # think tags are not counted
        ("response", "<think>t</think> \n<response>a</response>", 0.0),
        ("response", "<think>t</think>\n\n<response>a</response>", 0.0),
        ("response", "<think>t</think>\n<response>a</response></response>", 0.0),
        ("response", "<think><response></think>\n<response>a</response>", 0.0),
        ("response", "<think>t</think>\n<response>a</response>.", 0.0),
        ("response", "<think>t</think>\r\n<response>a</response>", 0.0),
        ("call", "<think>t</think>\n<tool_call>\nnot json\n</tool_call>", 1.0),
        ("call", "<think>t</think>\n<tool_call>\n\n</tool_call>", 1.0),
        ("call", "<think>t</think>\n<tool_call>\n</tool_call>", 0.0),  # one newline is not both
        ("call", "<think>t</think>\n<tool_call>\na\n</tool_call>\n<tool_call>\nb\n</tool_call>", 0.0),
        ("call", "<think>t</think>\n<tool_call>\na<response>b</response>\n</tool_call>", 1.0),
        ("both", "<think>t</think>\n<tool_call>\na\n</tool_call><response>b</response>", 0.0),
        ("both", "<think>t</think>\n<response>b</response>\n<tool_call>\na\n</tool_call>", 0.0),
        ("both", "<think>t</think>\n<tool_call>\na\n</tool_call>\n<response>b</response>", 1.0),
        ("both", "<think>t</think>\n<tool_call>\na\n</tool_call>\n<response>b<response></response>", 0.0),
    ],
)
def test_format_rules(reference, text, value):
    assert tool_format(text, REFERENCES[reference]) == value


PATTERNS = {
    "neither": r"^<think>.*?</think>$",
    "response": r"^<think>.*?</think>\n<response>.*?</response>$",
    "call": r"^<think>.*?</think>\n<tool_call>\n.*?\n</tool_call>$",
    "both": r"^<think>.*?</think>\n<tool_call>\n.*?\n</tool_call>\n<response>.*?</response>$",
}
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>"]
PIECES = [*TAGS, "</think>\n<tool_call>\n", "\n</tool_call>\n<response>", "</think>\n<response>", "\n", " ", "a", "{}"]
TAGGED = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def format_by_regular_expression(text, kind):
    tags = {"neither": [], "response": TAGS[4:], "call": TAGS[2:4], "both": TAGS[2:]}[kind]
    return bool(re.search(PATTERNS[kind], text, re.DOTALL)) and all(text.count(tag) == 1 for tag in tags)


@settings(max_examples=400, deadline=None)
@given(text=st.one_of(TAGGED, TAGGED.map("<think>".__add__)))
def test_format_equals_the_regular_expressions(text):
    for kind, reference in REFERENCES.items():
        assert tool_format(text, reference) == format_by_regular_expression(text, kind), (kind, text)
    anything = any(format_by_regular_expression(text.strip(), kind) for kind in ("response", "call", "both"))
    assert evaluation_format([text]) == anything


def test_evaluation_format_averages_and_needs_a_block():
    assert evaluation_format([]) == 0.0
    assert evaluation_format([THINK]) == 0.0
    assert evaluation_format([f" {THINK}\n{CALL}\n", THINK, "", f"{THINK}\n{RESPONSE}"]) == 0.5


# ------------------------------------------------------------------------------------------------ correctness


def test_no_call_expected_is_zero_whatever_is_said():
    for text in ("", CALL, calls(call("f")), "<tool_call>"):
        assert tool_correctness(text, REFERENCES["response"]) == 0.0
        assert tool_correctness(text, REFERENCES["neither"]) == 0.0


F = call("f", a=1, b=2)
G = call("g", c=3)


@pytest.mark.parametrize(
    ("predicted", "expected", "value"),
    [
        ([F], [F], 3.0),
        ([{"parameters": {"b": 2, "a": 1}, "name": "f"}], [F], 3.0),
        ([{**F, "id": 7}], [F], 3.0),  # unequal lists, but the score reaches the maximum 4
        ([G, F], [F, G], 3.0),
        ([call("f", a=1)], [F], -3 + 6 * (1 + 0.5 + 1) / 4),
        ([call("f", a=0, b=0)], [F], -3 + 6 * (1 + 1 + 0) / 4),
        ([call("f", z=0)], [F], -3 + 6 * 1 / 4),  # best score 0: not used, the name's 1 stays
        ([call("h", a=1, b=2)], [F], -3.0),
        ([F], [F, G], -3 + 6 * (0.5 + 3) / 6),
        ([F, F], [F], -3 + 6 * (0.5 + 3) / 4),
        ([F], [F, F], -3 + 6 * (0.5 + 3) / 7),  # a predicted call is used once
        ([call("f", a=0, b=0), F], [F], -3 + 6 * (0.5 + 3) / 4),  # the best counterpart, not the first
        ([F, call("f", a=1, b=0)], [call("f", a=1, b=0), F], 3.0),
        ([call("f", n=1.0)], [call("f", n=1)], 3.0),
        ([call("f", n=True)], [call("f", n=1)], 3.0),
        ([call("f", n="1")], [call("f", n=1)], -3 + 6 * 2 / 3),
        ([call("f", n=[1, {"x": None}])], [call("f", n=[1, {"x": None}])], 3.0),
        ([call("f", n=[2, 1])], [call("f", n=[1, 2])], -3 + 6 * 2 / 3),
        ([call("f"), call("f")], [call("f"), call("f")], 3.0),
        ([call("f", x=1), call("g")], [call("f"), call("g")], -3 + 6 * (1 + 0 + 1) / 3),
    ],
)
def test_scores_of_calls(predicted, expected, value):
    assert tool_correctness(calls(*predicted), calls(*expected)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "predicted",
    [
        [{"parameters": {"a": 1}}],
        [F, {"parameters": {}}],
        [{"name": "f"}],
        [{"name": "f", "parameters": None}],
        [{"name": "f", "parameters": ["a", "b"]}],
        [{"name": "f", "parameters": "a"}],
        [{"name": ["f"], "parameters": {}}],
        [{"name": {}, "parameters": {}}],
        [["name"]],
        ["name"],
        [None],
        [3],
    ],
)
def test_malformed_predictions_are_the_lowest(predicted):
    assert tool_correctness(calls(*predicted), calls(F)) == -3.0


@pytest.mark.parametrize("name", ["other", None, 3, True, 1.5])
def test_parameters_may_lack_where_the_name_differs(name):
    assert tool_correctness(calls(F, {"name": name}), calls(F)) == -3 + 6 * 3.5 / 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", -3.0),
        ("<tool_call></tool_call>", -3.0),
        ('{"name": "f", "parameters": {}}', -3.0),
        ('<tool_call>{"name": "f", "parameters": {}}', -3.0),
        ('{"name": "f", "parameters": {}}</tool_call>', -3.0),
        ('<tool_call> {"name": "f", "parameters": {}} </tool_call>', 3.0),
        ('<tool_call>\r\n{"name": "f", "parameters": {}}\r\n</tool_call>', 3.0),
        ('<tool_call>{"name": "f", "parameters": {}}\n\n{"name": "f", "parameters": {}}</tool_call>', -3.0),
        ('<tool_call>{"name": "f", "parameters": {}}</tool_call><tool_call>junk</tool_call>', 3.0),
        ('<tool_call>junk</tool_call><tool_call>{"name": "f", "parameters": {}}</tool_call>', -3.0),
        ('<tool_call>[{"name": "f", "parameters": {}}]</tool_call>', -3.0),
        # As in the original: both tags must occur, not in order; a second opening tag ends the block.
        ('</tool_call><tool_call>{"name": "f", "parameters": {}}', 3.0),
        ('<tool_call>{"name": "f", "parameters": {}}<tool_call>junk</tool_call>', 3.0),
    ],
)
def test_where_the_calls_are_read(text, value):
    assert tool_correctness(text, REFERENCES["call"]) == value


def test_nan_is_equal_only_in_the_comparison_of_whole_lists():
    nan = '<tool_call>{"name": "f", "parameters": {"x": NaN%s}}</tool_call>'
    assert tool_correctness(nan % "", nan % "") == 3.0  # the parser's one NaN object is found identical
    # Compared by itself it is unlike itself: names 1, keys 1/2, no value.
    assert tool_correctness(nan % ', "y": 1', nan % "") == pytest.approx(-3 + 6 * (1 + 0.5) / 3)
    infinite = '<tool_call>{"name": "f", "parameters": {"x": Infinity%s}}</tool_call>'
    assert tool_correctness(infinite % ', "y": 1', infinite % "") == pytest.approx(-3 + 6 * (1 + 0.5 + 1) / 3)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([1.0, "1", "a"])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=4,
)
GOOD = st.builds(
    lambda name, parameters: {"name": name, "parameters": parameters},
    st.sampled_from("fgh"),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 1.0, True, "1", 0, [1]]), max_size=3),
)


def correctness_by_definition(expected, predicted):
    """The rules as a slow, plain transcription."""

    def similarity(left, right):
        if left == right:
            return 1.0
        if not left or not right:
            return 0.0
        shared = (Counter(left) & Counter(right)).total()
        return shared / (len(left) + len(right) - shared)

    if expected == predicted:
        return 3.0
    try:
        score = similarity([item["name"] for item in expected], [item["name"] for item in predicted])
        rest = list(predicted)
        for item in expected:
            scores = []
            for other in rest:
                value = 0.0
                if other["name"] == item["name"]:
                    want, have = item["parameters"], other["parameters"]
                    value = similarity(list(want), list(have.keys()))
                    value += sum(key in have and have[key] == want[key] for key in want)
                scores.append(value)
            if scores and max(scores) > 0:
                score += max(scores)
                rest.pop(scores.index(max(scores)))
    except (KeyError, TypeError, AttributeError):
        return -3.0
    return -3 + 6 * score / (1 + sum(1 + len(item["parameters"]) for item in expected))


@settings(max_examples=300, deadline=None)
@given(expected=st.lists(GOOD, min_size=1, max_size=3), predicted=st.lists(st.one_of(GOOD, GOOD, VALUES), max_size=4))
def test_correctness_equals_the_definition(expected, predicted):
    value = tool_correctness(calls(*predicted), calls(*expected))
    assert -3.0 <= value <= 3.0
    # An empty block is one empty line, which is no JSON.
    assert value == pytest.approx(correctness_by_definition(expected, predicted) if predicted else -3.0, abs=1e-9)
    assert tool_correctness(calls(*expected), calls(*expected)) == 3.0


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (None, "must be a string, got NoneType"),
        (3.0, "must be a string, got float"),
        ("  \n", "blank"),
        ("<tool_call>\n{}", "without a </tool_call>"),
        ("</tool_call><tool_call>\n{}", "without a </tool_call>"),
        (f"<tool_call>\n{json.dumps(F)}\n{{\n</tool_call>", "line 2 of its <tool_call> is not JSON"),
        ("<tool_call>\n\n</tool_call>", "line 1 of its <tool_call> is not JSON"),
        ("<tool_call>\n" + "[" * 100_000 + "\n</tool_call>", "line 1 of its <tool_call> is not JSON"),
        ("<tool_call>\n" + "1" * 100_000 + "\n</tool_call>", "an integer of 100000 characters"),
        ("<tool_call>\n[]\n</tool_call>", "line 1 of its <tool_call> is not an object"),
        ('<tool_call>\n{"name": 1, "parameters": {}}\n</tool_call>', 'lacks a text "name"'),
        ('<tool_call>\n{"name": "f"}\n</tool_call>', 'an object "parameters"'),
    ],
)
def test_malformed_references_are_errors_that_say_what(reference, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        tool_correctness(CALL, reference)
    assert len(str(error.value)) < 400
    with pytest.raises(ValueError, match="must be a string, got dict"):
        tool_format(CALL, {"ground_truth": CALL})


# ------------------------------------------------------------------------------------------------ length


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", None),
        ("<think>a b", None),
        ("a b</think>", None),
        ("<think></think>", 0),
        ("<think>  a\tb\n c </think> d e", 3),
        ("<think>a b c</think><think>d</think>", 1),  # the last block
        ("<think>a b</think> c </think>", 2),  # up to the next end
        ("</think> x <think> a b", 2),  # both tags occur: the words go on to the end
    ],
)
def test_think_words(text, words):
    assert think_words(text) == words
    assert think_length(text, limit=2) == float(words is not None and words <= 2)


def test_think_length_refuses_a_limit_that_is_no_number():
    for limit in (float("nan"), -1, "16", None):
        with pytest.raises(ValueError, match="limit of a length reward must be a number >= 0"):
            think_length(THINK, limit=limit)
