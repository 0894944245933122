"""Training problems that also stand in a benchmark: what counts as the same text, on real rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dara.data.contamination import LENGTH, Match, Text, matches, words
from dara.data.math_sets import SETS

FILES = {name: f"{name}.jsonl" for name in SETS} | {"olympiadbench": "olympiadbench_675.jsonl"}


@pytest.fixture
def questions(real_rows):
    return [
        Text(name, f"{name}_{number}", row["problem"])
        for name, file in FILES.items()
        for number, row in enumerate(real_rows(file))
    ]


def test_no_real_training_problem_stands_in_a_benchmark(real_rows, questions):
    problems = [(f"train_{i}", row["problem"]) for i, row in enumerate(real_rows("deepscaler_200.jsonl"))]
    assert len(problems) == 200
    assert len(questions) == 500 + 30 + 83 + 272 + 675
    assert matches(problems, questions) == []


def test_a_question_in_other_dress_is_found(questions):
    original = questions[0]
    assert original.text.startswith("Convert the point $(0,3)$ in rectangular coordinates")
    dressed = {
        "same": original.text,
        "spaces": "  " + original.text.replace(" ", "  \n"),
        "latex": original.text.replace("$", r"\( ", 1).replace(r"\theta", r"\left.\theta\right."),
        "capitals": original.text.upper(),
        "addition": original.text + " Show your work. Put the answer in a box.",
        "beginning": "Here is a task. " + original.text,
    }
    found = {match.problem: match for match in matches(dressed.items(), questions)}
    assert {name: (match.case, match.rule) for name, match in found.items()} == {
        "same": ("math500_0", "equal"),
        "spaces": ("math500_0", "equal"),
        "latex": ("math500_0", "equal"),
        "capitals": ("math500_0", "equal"),
        "addition": ("math500_0", "similar"),
        "beginning": ("math500_0", "similar"),
    }
    assert found["addition"].share == 1


def test_other_numbers_and_signs_are_another_question():
    question = Text("b", "b_0", "What is $12 + 7$?")
    asked = {
        "same": "What is 12+7 ?",
        "number": "What is $12 + 8$?",
        "sign": "What is $12 - 7$?",
        "whole": "What is 127?",
    }
    assert [match.problem for match in matches(asked.items(), [question])] == ["same"]


def test_half_of_the_sequences_of_the_shorter_text_is_the_limit():
    # 24 words have 12 sequences of 13; a text that has the first 18 of them shares 6, one that has 17 shares 5.
    base = [f"w{chr(97 + i)}" for i in range(24)]
    question = Text("b", "b_0", " ".join(base))
    others = [f"x{chr(97 + i)}" for i in range(30)]
    problems = {str(kept): " ".join([*base[:kept], *others]) for kept in (LENGTH - 1, LENGTH, 17, 18, 24)}
    assert matches(problems.items(), [question]) == [
        Match("18", "b", "b_0", "similar", 0.5),
        Match("24", "b", "b_0", "similar", 1.0),
    ]


def test_a_long_frame_around_a_short_question_does_not_hide_it():
    question = Text("b", "b_0", " ".join(f"q{chr(97 + i)}" for i in range(LENGTH)))
    frame = " ".join(f"f{chr(97 + i)}" for i in range(26))
    assert matches([("t", f"{frame} {question.text} {frame}")], [question])[0].share == 1


def test_a_text_may_stand_in_several_benchmarks():
    texts = [Text("one", "one_0", "How many apples?"), Text("two", "two_5", "How many apples")]
    assert [(match.benchmark, match.case) for match in matches([("t", "how many apples")], texts)] == [
        ("one", "one_0"), ("two", "two_5"),
    ]  # fmt: skip


@given(st.lists(st.text(alphabet="abc 12+$\\", max_size=80), max_size=6))
def test_every_text_equals_itself_and_order_does_not_matter(texts):
    questions = [Text("b", str(i), text) for i, text in enumerate(texts)]
    problems = [(str(i), text) for i, text in enumerate(texts)]
    found = matches(problems, questions)
    assert {(match.problem, match.case) for match in found} >= {(str(i), str(i)) for i in range(len(texts))}
    backwards = matches(problems[::-1], questions[::-1])
    assert {(m.problem, m.case, m.rule, m.share) for m in backwards} == {
        (m.problem, m.case, m.rule, m.share) for m in found
    }


def test_words():
    assert words(r"Find $\dfrac{1}{2}+x$.") == ["find", "frac", "1", "2", "+", "x"]
    assert words(r"$\left( 3, \frac{\pi}{2} \right)$") == ["3", "frac", "pi", "2"]
    assert words("Zoë's 3rd try: x_1 < 2") == ["zoë", "s", "3", "rd", "try", "x", "_", "1", "<", "2"]
    assert words("  ") == []
