"""Math grading: three graders, length and truncation."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from dara.evaluation import math
from dara.evaluation.records import Response
from dara.evaluation.sandbox import Sandbox, ScorerSpec


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(ScorerSpec(math.LAPTOP_MATH.scorer, {}, 10.0)) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("response", "answer", "grades"),
    [
        (r"12+3=15;\boxed{15}", "15", (1, 1, 1)),
        (r"\boxed{14}", "15", (0, 0, 0)),
        (r"\boxed{0.50}", "0.5", (0, 1, 1)),  # the same number, another text
        (r"\boxed{4.5\times10^{3}}", "4500", (0, 1, 1)),
        (r"\boxed{x+1}", "1+x", (0, 0, 1)),  # only math-verify sees it
        (r"\boxed{\text{east}}", r"\text{east}", (1, 1, 1)),
        ("15", "15", (0, 0, 1)),  # math-verify reads a bare number too
        (r"\boxed{1} or rather \boxed{15}", "15", (1, 1, 0)),  # math-verify makes a set of two near boxes
        (r"\boxed{15", "15", (0, 0, 0)),
        ("", "15", (0, 0, 0)),
    ],
)
def test_three_graders(box: Sandbox, response: str, answer: str, grades: tuple[int, int, int]) -> None:
    (outcome,) = box.score([{"response": response, "answer": answer}])
    assert tuple(outcome.scores[name] for name in math.GRADES) == grades
    assert outcome.outcome == "ok"


@pytest.mark.parametrize(
    ("response", "answer", "verdict"),
    [
        (r"$\frac{1}{2006!}$", r"\frac{1}{2004!}", 1),  # wrong: they differ
        (r"$4\sqrt(2)$", "4", 1),  # wrong: they differ
        (r"$\sqrt{1/n}$", r"1/\sqrt n", 0),  # wrong: they are equal for positive n
    ],
)
def test_known_mistakes_of_math_verify(box: Sandbox, response: str, answer: str, verdict: int) -> None:
    # Why it never is the only grader. A change here means that another version grades.
    (outcome,) = box.score([{"response": response, "answer": answer}])
    assert outcome.scores["math_verify"] == verdict


def test_a_busy_machine_does_not_change_a_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a step is in processor time: what waits for a core is not refused."""
    from math_verify import grader, parser

    extract, equal = parser.extract_target_from_pred, grader.sympy_expr_eq
    monkeypatch.setattr(math, "STEP_SECONDS", 1)
    monkeypatch.setattr(parser, "extract_target_from_pred", lambda *a, **b: time.sleep(1.5) or extract(*a, **b))
    monkeypatch.setattr(grader, "sympy_expr_eq", lambda *a, **b: time.sleep(1.5) or equal(*a, **b))
    verify = math._load_math_verify()
    assert verify(r"\boxed{0.5}", "0.50") is True
    started = time.process_time()
    assert verify(r"$9^{9^{9^9}}$", "5") is False
    assert time.process_time() - started < 8


def test_a_signal_at_the_very_end_does_not_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come when the work is done and the timer still runs; it once ended the scoring of everything."""
    real, seen = signal.setitimer, []

    def late(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        if seconds == 0:
            seen.append(signal.getsignal(signal.SIGPROF))
            signal.raise_signal(signal.SIGPROF)
        return real(which, seconds, interval)

    before = signal.getsignal(signal.SIGPROF)
    monkeypatch.setattr(signal, "setitimer", late)
    verify = math._load_math_verify()
    assert verify(r"\boxed{0.5}", "0.50") is True
    assert len(seen) == 3
    assert signal.getsignal(signal.SIGPROF) == before


def test_hostile_answers_end_and_the_next_one_is_still_graded(box: Sandbox) -> None:
    hostile = ["$9^{9^{9^9}}$", r"\boxed{9^{9^{9^9}}}", "$1000000!$", "7" * 1_000_000, "{" * 10_000, r"\boxed{" * 3000]
    outcomes = box.score([{"response": text, "answer": "5"} for text in [*hostile, r"\boxed{5}"]])
    assert [outcome.scores.get("strict_or_numeric", 0) for outcome in outcomes] == [0] * len(hostile) + [1]
    assert [outcome.scores.get("math_verify", 0) for outcome in outcomes] == [0] * len(hostile) + [1]


def test_a_right_answer_keeps_its_strict_grade_beside_a_hostile_one(box: Sandbox) -> None:
    (outcome,) = box.score([{"response": r"not $9^{9^{9^9}}$ but \boxed{5}", "answer": "5"}])
    assert outcome.scores["strict"] == 1


RIGHT = {"strict": 0, "strict_or_numeric": 1, "math_verify": 1}


@pytest.mark.parametrize(
    ("n_tokens", "finished", "scores", "expected"),
    [
        (23, True, RIGHT, {"strict_or_numeric": 1, "exceed": 0, "joint": 1, "truncated": 0}),
        (24, True, RIGHT, {"strict_or_numeric": 1, "exceed": 1, "joint": 0, "truncated": 0}),
        (40, False, RIGHT, {"strict_or_numeric": 1, "math_verify": 1, "exceed": 1, "joint": 0, "truncated": 1}),
        (9, False, RIGHT, {"strict_or_numeric": 1, "exceed": 0, "joint": 1, "truncated": 1}),
        (9, True, {}, {"strict": 0, "strict_or_numeric": 0, "math_verify": 0, "exceed": 0, "joint": 0}),
    ],
)
def test_length_and_truncation(n_tokens: int, finished: bool, scores: dict, expected: dict) -> None:
    row = math.score_row(Response("", n_tokens, finished), scores, 23)
    assert {name: row[name] for name in expected} == expected


def test_a_missing_length_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="length_limit is missing"):
        math.score_row(Response("", 5, True), RIGHT, None)


def test_a_wrong_problem_names_file_and_row(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text('{"id": "a", "prompt": "p", "answer": "1"}\nbroken\n')
    with pytest.raises(ValueError, match=r"problems.jsonl, row 2: not valid JSON"):
        math.laptop_cases(tmp_path)


def test_summary_averages_the_samples_of_a_question() -> None:
    frame = pd.DataFrame(
        {
            "case": ["q1", "q1", "q0", "q0"], "category": "laptop_math", "sample": [0, 1, 0, 1],
            "strict": [0, 0, 1, 1], "strict_or_numeric": [1, 0, 1, 1], "math_verify": [1, 1, 1, 1],
            "exceed": [0, 0, 1, 0], "joint": [1, 0, 0, 1], "truncated": [0, 1, 0, 0],
        }
    )  # fmt: skip
    metrics = math.summarise(frame)
    expected = {"acc": 0.75, "strict": 0.5, "math_verify": 1.0, "exceed": 0.25, "joint": 0.5, "truncated_rate": 0.25}
    assert {name: metric.score for name, metric in metrics.items()} == pytest.approx(expected)
    assert metrics["acc"].values.tolist() == [1.0, 0.5]  # q0, q1
    assert set(metrics["acc"].strata) == {"laptop_math"}
