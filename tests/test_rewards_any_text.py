"""Whatever a model writes has a reward: no exception, values in range, and a time that is linear in the text."""

import json
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.rewards import reward_ranges, score
from dara.rewards.math import numeric_equal
from dara.rewards.tool_calling import evaluation_format

CALL = '{"name": "f", "parameters": {"a": [1, "x"]}}'
REFERENCES = {
    "call": f"<think> x </think>\n<tool_call>\n{CALL}\n</tool_call>",
    "both": f'<think> x </think>\n<tool_call>\n{CALL}\n{{"name": "g", "parameters": {{}}}}\n</tool_call>\n'
    "<response>a</response>",
    "response": "<think> x </think>\n<response> hi </response>",
}
NAMES = ("correctness", "format", "length")
PARAMS = {"length": {"limit": 3}}


def score_everything(text):
    """All rewards of all tasks on one text, checked against their ranges."""
    for reference in REFERENCES.values():
        values = score("tool_calling", NAMES, response=text, reference=reference, n_tokens=5, params=PARAMS)
        for value, (low, high) in zip(values, reward_ranges("tool_calling", NAMES), strict=True):
            assert isinstance(value, float)
            assert low <= value <= high
        assert set(values[1:]) <= {0.0, 1.0}
    for reference in ("42", r"\frac{1}{2}"):
        values = score("math", ("correctness", "length"), response=text, reference=reference, n_tokens=5, params={})
        assert values[0] in (0.0, 1.0)
        assert values[1] == 1.0
        assert isinstance(numeric_equal(text, reference), bool)
    assert 0.0 <= evaluation_format([text, text]) <= 1.0


SURROGATES = st.text(st.characters(codec=None, categories=None), max_size=60)  # lone surrogates and \0 included
FRAGMENTS = st.sampled_from(
    [
        *["<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>", "\n", " "],
        *["<|im_start|>assistant", "<|im_end|>", "<\uff5cAssistant\uff5c>", CALL, '{"name": "f"}', '{"name": [1]}'],
        *['{"name": "f", "parameters": ', "{", "}", "[", "]", '"', "NaN", "-Infinity", "1e999"],
        *["9" * 5000, "[" * 2000],
        *["\\boxed", "\\boxed{", "\\boxed ", "\\fbox{", "\\frac", "\\sqrt", "\\text{ ", "$", "=", "/", ".", "42"],
        *["\\times10^{", "10^{", "1/2", "\ufeff", "\u0663", "\x00", "\ud800"],
    ]
)
ASSEMBLED = st.lists(st.one_of(FRAGMENTS, FRAGMENTS, SURROGATES), max_size=15).map("".join)
BOXED = ASSEMBLED.map(lambda text: f"\\boxed{{{text}}}")
CALLED = ASSEMBLED.map(lambda text: f"<think>t</think>\n<tool_call>\n{text}\n</tool_call>")


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(SURROGATES, ASSEMBLED, BOXED, CALLED))
def test_no_text_raises(text):
    score_everything(text)


def called(block):
    return f"<think>t</think>\n<tool_call>\n{block}\n</tool_call>"


DEEP = "[" * 100_000 + "]" * 100_000
NUMBER = "7" * 100_000
HARD = {
    "deep list": called(DEEP),
    "deep unclosed list": called("[" * 100_000),
    "deep objects": called('{"a":' * 100_000 + "1" + "}" * 100_000),
    "deep parameter": called(f'{{"name": "f", "parameters": {{"a": {DEEP}}}}}'),
    "huge integer": called(f'{{"name": "f", "parameters": {{"a": {NUMBER}}}}}'),
    "huge negative integer": called(f"-{NUMBER}"),
    "huge float": called(f'{{"name": "f", "parameters": {{"a": {NUMBER}.{NUMBER}}}}}'),
    "huge exponent": called(f'{{"name": "f", "parameters": {{"a": 1e{NUMBER}}}}}'),
    "boxed huge integer": f"\\boxed{{{NUMBER}}}",
    "boxed huge ratio": f"\\boxed{{{NUMBER}/{NUMBER}}}",
    "boxed huge power": f"\\boxed{{10^{{{NUMBER}}}}}",
    "boxed deep braces": "\\boxed{" + "{" * 100_000 + "}" * 100_001,
    "lone surrogates": called('{"name": "\ud800", "parameters": {"\udfff": "\udc00"}}') + "\\boxed{\ud800}",
    "escaped surrogate": called('{"name": "\\ud800", "parameters": {}}'),
    "nul": "\x00" * 100 + called("\x00") + "\\boxed{\x00}",
    "byte order mark": called("\ufeff" + CALL),
}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
def test_hard_texts(text):
    score_everything(text)
    score_everything(text.strip("\n>"))


def test_calls_that_nest_almost_too_deep_to_compare():
    """Around the interpreter's limit parsing may succeed and comparing fail, on either side of the limit."""
    for depth in range(sys.getrecursionlimit() // 3, sys.getrecursionlimit() + 10, 7):
        nested = f'{{"name": "f", "parameters": {{"a": {"[" * depth + "]" * depth}}}}}'
        score_everything(called(nested))


def test_a_lifted_limit_of_integer_digits_changes_nothing():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        start = time.process_time()
        given = {"response": called("7" * 1_000_000), "reference": REFERENCES["call"], "n_tokens": 1, "params": {}}
        assert score("tool_calling", ["correctness"], **given) == [-3.0]
        assert time.process_time() - start < 1.0
    finally:
        sys.set_int_max_str_digits(before)


def repeated(piece, before="", after=""):
    return lambda size: before + piece * ((size - len(before) - len(after)) // len(piece)) + after


IN_CALL = {"before": "<think>t</think>\n<tool_call>\n", "after": "\n</tool_call>"}
BOX = {"before": "\\boxed{", "after": "}"}
SLOW = {
    "letters": repeated("a"),
    "blanks": repeated(" "),
    "newlines": repeated("\n", "<think>"),
    "words": repeated("a ", "<think>", "</think>"),
    "think tags": repeated("<think>"),
    "closed thinks": repeated("</think>\n", "<think>"),
    "almost calls": repeated("</think>\n<tool_call>\n", "<think>"),
    "almost call ends": repeated("\n</tool_call>\n<tool_call>", **IN_CALL),
    "almost responses": repeated("</think>\n<response>", "<think>"),
    "turns": repeated("<|im_start|>assistant"),
    "ends of turns": repeated("<|im_end|>"),
    "numbers in lines": repeated("1\n", **IN_CALL),
    "calls": repeated(CALL + "\n", **IN_CALL),
    "other calls": repeated('{"name": "f", "parameters": {"b": 1}}\n', **IN_CALL),
    "names with equal hashes": lambda size: called(
        "\n".join(json.dumps({"name": index * (2**61 - 1)}) for index in range(1, size // 30))
    ),
    "many parameters": lambda size: called(
        '{"name": "f", "parameters": {' + ", ".join(f'"k{index}": 0' for index in range(size // 14)) + "}}"
    ),
    "long string": repeated("\\u0041", '<think>t</think>\n<tool_call>\n{"name": "', '"}\n</tool_call>'),
    "digits": repeated("7", **IN_CALL),
    "brackets": repeated("[", **IN_CALL),
    "boxes": repeated("\\boxed"),
    "open boxes": repeated("\\boxed{"),
    "spaced boxes": repeated("\\boxed "),
    "small boxes": repeated("\\boxed{1}"),
    "empty braces": repeated("{}", "\\boxed{"),
    "open braces": repeated("{", "\\boxed{"),
    "boxed digits": repeated("7", "\\boxed{", "x}"),
    "boxed decimals": repeated("7", "\\boxed{.", "x}"),
    "boxed fractions": repeated("\\frac1{2}", **BOX),
    "boxed roots": repeated("\\sqrt2", **BOX),
    "boxed units": repeated("\\text{cm}", **BOX),
    "open units": repeated("\\text{", **BOX),
    "boxed slashes": repeated("1/", **BOX),
    "boxed signs": repeated("=", **BOX),
    "boxed backslashes": repeated("\\", **BOX),
}


def seconds(text):
    """CPU seconds of one pass over all rewards of each task."""
    start = time.process_time()
    score("tool_calling", NAMES, response=text, reference=REFERENCES["both"], n_tokens=5, params={})
    score("math", ("correctness", "length"), response=text, reference="42", n_tokens=5, params={})
    numeric_equal(text, "42")
    evaluation_format([text])
    return time.process_time() - start


@pytest.mark.parametrize("make", SLOW.values(), ids=SLOW.keys())
def test_time_is_bounded_and_linear(make):
    assert min(seconds(make(10_000)) for _ in range(3)) < 0.05
    # 100 times the text in at most 100 times the bound; quadratic time would need thousands of seconds.
    assert seconds(make(1_000_000)) < 5.0
