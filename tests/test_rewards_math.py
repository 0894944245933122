"""Math rewards: the golden cases, each rule of extraction and normalisation, and the numeric fallback."""

import json
from pathlib import Path

import numpy as np
import pytest

from dara.data.public import gold_answer
from dara.rewards.math import last_boxed, math_correctness, normalise, numeric_equal, response_length

GOLDEN = json.loads((Path(__file__).parent / "golden" / "rewards.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", GOLDEN["math_rewards"], ids=lambda case: case["id"])
def test_golden_math_rewards(case):
    correctness, length = math_correctness(case["boxed"], case["gt"]), response_length(case["tokens"])
    assert (correctness, length, correctness + length) == (case["correctness"], case["length"], case["total"])


@pytest.mark.parametrize("case", GOLDEN["numeric_fallback"], ids=lambda case: case["response"])
def test_golden_numeric_fallback(case):
    assert numeric_equal(case["response"], case["gt"]) is case["numeq"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", None),
        ("42", None),
        (r"\boxed{}", ""),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}} }", r"\frac{1}{2}"),
        (r"\boxed{1} \boxed{2", None),  # the last box is open: no earlier one counts
        (r"\boxed{1 \boxed{2}}", "2"),
        (r"\boxed 42$ is it", "42"),
        (r"\boxed 42", "42"),
        (r"\boxed 42$ no, \boxed{43}", "42"),  # the spaced form comes first
        (r"\boxed 1$ \boxed 2$", "2"),
        (r"\boxed5", None),
        (r"\boxed5 {6}", None),
        (r"\boxed}{7}", None),
        (r"\fbox{42}", None),
        ("\\boxed{1}<\uff5cAssistant\uff5c>so 2", None),
        ("\\boxed{1}<\uff5cAssistant\uff5c>\\boxed{2}", "2"),
    ],
)
def test_last_boxed(text, answer):
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("1\n2", "12"),
        (r"1\!000", "1000"),
        (r"\left(1,\right)", "(1,)"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        (r"\$5", "5"),
        (r"5\%", "5"),
        ("5%", "5%"),
        (r"a\\b", r"a\b"),
        (r"\tfrac{1}{2}", r"\frac{1}{2}"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"12\text{ cm}", "12"),
        (r"\text{Evelyn}", r"\text{Evelyn}"),
        ("a .5", "a0.5"),
        ("{.5}", "{0.5}"),
        (".25", "0.25"),
        (".5", r"\frac{1}{2}"),
        ("x=5", "5"),
        ("x = 5", "5"),
        ("xy =5", "xy=5"),  # three characters stand before the sign
        ("a=b=c", "a=b=c"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"2\sqrt35", r"2\sqrt{3}5"),
        (r"\sqrt{ 3}", r"\sqrt{3}"),
        (r"\sqrt 3", r"\sqrt{}3"),  # the blank is its argument when spaces are removed
        ("1 , 2", "1,2"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac1{72}", r"\frac{1}{72}"),
        (r"\frac{72}1", r"\frac{72}1"),
        (r"\frac123", r"\frac{1}{2}3"),
        (r"\frac12+\frac3", r"\frac12+\frac3"),  # a fraction without denominator leaves all as it is
        ("0.5", r"\frac{1}{2}"),
        ("0.50", "0.50"),
        ("3/4", r"\frac{3}{4}"),
        ("-3/4", r"\frac{-3}{4}"),
        ("03/4", "03/4"),
        ("+3/4", "+3/4"),
        ("-0/4", "-0/4"),
        ("1/2/3", "1/2/3"),
        ("x/2", "x/2"),
        ("٣/٤", "٣/٤"),
        ("", ""),
        ("x=", ""),
    ],
)
def test_normalise(answer, normal):
    assert normalise(answer) == normal


@pytest.mark.parametrize("answer", [r"\sqrt", r"2\sqrt", r"\frac", r"1+\frac", r"1\text{ cm} 2\text{ mm}"])
def test_what_cannot_be_normalised_scores_zero(answer):
    with pytest.raises(ValueError):
        normalise(answer)
    assert math_correctness(rf"\boxed{{{answer}}}", "1") == 0.0
    assert math_correctness(rf"\boxed{{{answer}}}", answer) == 0.0


@pytest.mark.parametrize(
    ("response", "reference", "value"),
    [
        (r"so $\boxed{\dfrac12}$", r"\frac{1}{2}", 1.0),
        (r"\boxed{0.5}", "1/2", 1.0),
        (r"\boxed{x=7}", "7", 1.0),
        (r"\boxed{12 \text{ cm}}", "12", 1.0),
        (r"\boxed{12 \text{cm}}", "12", 0.0),
        (r"\boxed{1,000}", "1000", 0.0),
        (r"\boxed{0.10}", "0.1", 0.0),
        (r"\boxed{\left(3,\frac{\pi}{2}\right)}", r"\left( 3, \frac{\pi}{2} \right)", 1.0),
        (r"\fbox{42}", "42", 0.0),
        ("42", "42", 0.0),
        ("", "42", 0.0),
        (r"\boxed{}", "42", 0.0),
        (r"\boxed{" + "9" * 100_000 + "/2}", "4", 0.0),
    ],
)
def test_math_correctness(response, reference, value):
    assert math_correctness(response, reference) == value


@pytest.mark.parametrize(
    ("response", "reference", "equal"),
    [
        (r"\boxed{7}", "7", True),
        (r"\boxed{-.5}", "-0.50", True),
        (r"\boxed{1e3}", "1000", True),
        (r"\boxed{+1E+3}", "1000", True),
        (r"\boxed{\text{about } 3\mathrm{kg}}", "3", True),
        (r"\boxed{3\text {kg}\mbox{ a}\rm{b}\textrm{}}", "3", True),
        (r"\boxed{3\textbf{kg}}", "3", False),  # no unit
        (r"\boxed{3 kg}", "3", False),
        (r"\boxed{$12$}", "12", True),
        (r"\boxed{1\!2\,3\ 4\;5\:6~7 8}", "12345678", True),
        (r"\boxed{1{,}000}", "1000", False),  # braces stay
        (r"\boxed{5\ }", "5", False),  # the blank is trimmed first, which leaves a backslash
        (r"\boxed{90^\circ}", "90", True),
        (r"\boxed{90\circ}", "90", True),
        (r"\boxed{90^{\circ}}", "90", False),
        (r"\boxed{90°}", "90", False),
        (r"\boxed{50%}", "50", True),
        (r"\boxed{5\%}", "5", False),
        (r"\boxed{5}", r"5\%", False),
        (r"\boxed{5\%}", r"5\%", False),
        (r"\boxed{\left 4\right.}", "4", True),
        (r"\boxed{4 ...}", "4", True),
        (r"\boxed{4..5}", "4.5", False),
        (r"\boxed{-2.5 \times 10^{-3}}", "-0.0025", True),
        (r"\boxed{2\times 10 ^ { 3 } \text{ m}}", "2000", True),
        (r"\boxed{2\times10^-3}", "0.002", True),
        (r"\boxed{\times 10^{3}}", "1000", False),  # no mantissa
        (r"\boxed{2\times10^{- 3}}", "0.002", False),
        (r"\boxed{2\times10^{3}\times10^{2}}", "200000", False),
        (r"\boxed{2*10^3}", "2000", False),
        (r"\boxed{10^{-2}}", ".01", True),
        (r"\boxed{10^{ +2}.}", "100", True),
        (r"\boxed{10^{x}}", "10", False),
        (r"\boxed{110^{2}}", "11e2", False),
        (r"\boxed{2\times10^{3}x}", "2000", False),
        (r"\boxed{1e400}", r"2\times10^{400}", False),
        (r"\boxed{-10^{2}}", "-100", False),  # only a bare power
        (r"\boxed{0.3}", "0.30000000000000001", True),  # the same float
        (r"\boxed{0.3}", "0.3000001", False),  # no tolerance
        (r"\boxed{\frac{1}{2}}", "0.5", False),
        (r"\boxed{\sqrt{4}}", "2", False),
        (r"\boxed{1,2}", "12", True),  # a comma is one of thousands
        (r"\boxed{nan}", "nan", False),
        (r"\boxed{inf}", "inf", False),
        (r"\boxed{}", "7", False),
        (r"\boxed{1e999}", "2e999", False),  # beyond a float's range
        (r"\boxed{1_000}", "1000", False),
        (r"\boxed{٣}", "3", False),
        (r"\boxed{7", "7", False),
        (r"7", "7", False),
        (r"", "7", False),
        (r"\boxed{2} \boxed{\frac{\sqrt{3}}{2}}", "2", True),  # a box two levels deep is passed over
        ("\\boxed{7}<\uff5cAssistant\uff5c>hm", "7", False),
    ],
)
def test_numeric_equal(response, reference, equal):
    assert numeric_equal(response, reference) is equal


def test_minervas_answers_with_a_unit_after_a_thin_space(real_rows):
    """A grader that keeps the thin space accepts 1 of 272: physics answers are written so."""
    golds = [gold_answer(row["answer"]) for row in real_rows("minerva.jsonl")]
    boxes = [rf"\boxed{{{gold} \, \text{{cm}}}}" for gold in golds]
    second = [numeric_equal(box, gold) for box, gold in zip(boxes, golds, strict=True)]
    strict = [math_correctness(box, gold) == 1 for box, gold in zip(boxes, golds, strict=True)]
    assert (sum(second), sum(map(max, strict, second)), len(golds)) == (180, 181, 272)


@pytest.mark.parametrize("function", [math_correctness, numeric_equal])
@pytest.mark.parametrize(
    ("reference", "words"),
    [(None, "must be a string, got NoneType"), (42, "must be a string, got int: 42"), ([], "got list"), (" ", "blank")],
)
def test_a_reference_that_is_no_text_is_an_error(function, reference, words):
    with pytest.raises(ValueError, match=words):
        function(r"\boxed{42}", reference)


def test_response_length():
    assert [response_length(n, limit=23) for n in (0, 23, 24)] == [1.0, 1.0, 0.0]
    assert response_length(np.int64(23), limit=23.0) == 1.0
    for count in (-1, 2.5, None, float("nan")):
        with pytest.raises(ValueError, match="n_tokens must be an integer >= 0"):
            response_length(count)
    with pytest.raises(ValueError, match="limit of a length reward must be a number >= 0, got nan"):
        response_length(1, limit=float("nan"))
