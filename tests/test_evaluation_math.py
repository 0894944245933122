"""Math: the five benchmarks' rows and references, three graders, length and truncation, and the averages."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from dara.data.prepare import prepare_benchmark
from dara.data.public import INSTRUCTION, SETS, gold_answer, read_set
from dara.evaluation import bfcl_v4, math
from dara.evaluation.records import Response
from dara.evaluation.sandbox import Outcome, Sandbox, ScorerSpec
from hub_fakes import fetch_settings

FILES = {name: f"{name}.jsonl" for name in SETS} | {"olympiadbench": "olympiadbench_675.jsonl"}
COUNTS = {"math500": 500, "aime24": 30, "amc": 83, "minerva": 272, "olympiadbench": 674}
RealRows = Callable[[str], list[dict[str, Any]]]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def settings(tmp_path: Path, real_rows: RealRows) -> Any:
    """The real rows as local files; of the 675 rows of OlympiadBench the first 674 stand in for the full set."""
    local = {name: write_rows(tmp_path / f"{name}.jsonl", real_rows(FILES[name])[: COUNTS[name]]) for name in SETS}
    return fetch_settings(tmp_path, COUNTS, local)


def test_the_prepared_benchmark(settings: Any, tmp_path: Path) -> None:
    assert {name: one.questions for name, one in SETS.items()} == COUNTS
    assert math.MATH_FIVE.data_files == tuple(SETS)
    prepare_benchmark("math_five", tmp_path / "out", fetch=settings)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["benchmark"] == "math_five"
    assert manifest["rows"] == {"benchmark/problems.jsonl": 1559}
    assert set(manifest["sources"]) == set(SETS)
    assert set(manifest["sha256"]) == {"benchmark/problems.jsonl"}
    cases = math.load_cases(tmp_path / "out" / "benchmark")
    assert Counter(case.category for case in cases) == COUNTS
    golds = {case.id: case.gold["answer"] for case in cases}
    assert len(golds) == 1559
    assert (golds["aime24_1"], golds["amc_0"], golds["minerva_0"]) == ("025", "142", "9.6")
    assert golds["olympiadbench_1"] == r"\frac{1}{2 n+2}"
    assert set(cases[0].question) == {"id", "category", "problem", "answer"}
    around = []  # with blanks and ends of lines
    for case in cases:
        problem = case.question["problem"]
        assert math.prompt(case) == [{"role": "user", "content": f"{problem.strip()}\n\n{INSTRUCTION}"}]
        around += [case.category] * (problem != problem.strip())
    assert Counter(around) == {"amc": 5, "olympiadbench": 1}


def test_the_cases_of_bfcl_are_those_of_the_package(tmp_path: Path) -> None:
    prepare_benchmark("bfcl_v4", tmp_path, fetch=None)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["cases"], manifest["versions"]) == (3301, {"bfcl-eval": "2026.3.23"})
    files = bfcl_v4.case_files(tmp_path / "benchmark")
    assert set(manifest["sha256"]) == {str(path.relative_to(tmp_path)) for path in files}
    for path in files:
        source = bfcl_v4.data_directory() / path.relative_to(tmp_path / "benchmark")
        assert path.read_bytes() == source.read_bytes()


def test_a_set_with_another_number_of_rows_is_refused_by_name(
    settings: Any, tmp_path: Path, real_rows: RealRows
) -> None:
    path = write_rows(tmp_path / "copy.jsonl", real_rows("olympiadbench_675.jsonl"))
    settings.data_local["olympiadbench"] = path
    message = r"copy.jsonl: has 675 rows, but olympiadbench has 674 questions; get the full set"
    with pytest.raises(ValueError, match=message):
        prepare_benchmark("math_five", tmp_path / "out", fetch=settings)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_columns_of_the_published_files(tmp_path: Path) -> None:
    rows = {
        "amc": ("142", {"id": 1, "problem": "p", "answer": 142.0, "url": "u"}),
        "minerva": (r"8.7 \times 10^{8}", {"question": "p", "answer": r"8.7 \times 10^{8}"}),
        "olympiadbench": (
            "2^{1009}",
            {"id": 1, "question": "p", "solution": ["s"], "final_answer": ["$2^{1009}$"], "unit": None},
        ),
        "aime24": ("025", {"id": 60, "problem": "p", "solution": "s", "answer": "025", "url": "u", "year": "2024"}),
    }
    for name, (answer, row) in rows.items():
        path = tmp_path / f"{name}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * COUNTS[name]), path)
        assert read_set(name, path)[0] == {"id": f"{name}_0", "category": name, "problem": "p", "answer": answer}


def test_a_wrong_row_is_named(tmp_path: Path) -> None:
    rows, path = [{"problem": "p", "answer": "1"}] * 30, tmp_path / "rows.jsonl"
    write_rows(path, [*rows[:2], {"problem": "p", "answer": []}, *rows[3:]])
    with pytest.raises(ValueError, match=r"aime24, .*row 3: needs a problem and an answer; it has 'p' and ''"):
        read_set("aime24", path)
    write_rows(path, [{"problem": "p", "solution": "1"}] * 30)
    with pytest.raises(ValueError, match=r"row 1: has no answer; its columns are problem, solution"):
        read_set("aime24", path)
    write_rows(tmp_path / "problems.jsonl", [{"id": "a", "category": "gsm8k", "problem": "p", "answer": "1"}])
    with pytest.raises(
        ValueError, match=r"problems.jsonl, row 1: category 'gsm8k' is no set; they are math500, aime24"
    ):
        math.load_cases(tmp_path)
    with pytest.raises(ValueError, match=r"benchmark 'math_six' is not prepared here; these are: bfcl_v4, math_five"):
        prepare_benchmark("math_six", tmp_path / "out", fetch=None)
    (tmp_path / "problems.jsonl").write_text('{"id": "a", "prompt": "p", "answer": "1"}\nbroken\n')
    with pytest.raises(ValueError, match=r"problems.jsonl, row 2: not valid JSON"):
        math.laptop_cases(tmp_path)


@pytest.mark.parametrize(
    ("expected", "answers"),
    [
        ("9.6", [["9.6", "7"]]),
        ("142", [142.0, [142.0]]),
        ("0.5", [0.5]),
        ("-3", [-3.0]),
        ("7", [7]),
        ("x", ["$x$", "$$x$$", r"\[x\]", r"\(x\)", r" $\( x \)$ ", r"$\[\(x\)\]$", r"\[\($$x$$\)\]"]),
        (r"\$18", [r"$\$18$"]),
        ("", [None, [], "  "]),
        # A text without delimiters around the whole stays as it is.
        *((text, [text]) for text in ("025", "142.0", "$69$,$84$", "$(0,1)$, $(1,0)$", r"\$5", "$", "$$")),
    ],
)
def test_references(expected: str, answers: list[Any]) -> None:
    assert {gold_answer(answer) for answer in answers} == {expected}


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(ScorerSpec(math.MATH_FIVE.scorer, {}, 10.0)) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", SETS)
def test_gold_answers_against_themselves(name: str, real_rows: RealRows, box: Sandbox) -> None:
    """Each grade accepts all of them, in a box."""
    columns, rows = SETS[name].answer, real_rows(FILES[name])
    golds = [gold_answer(next(row[key] for key in columns if key in row)) for row in rows]
    outcomes = box.score([{"response": f"So it is $\\boxed{{{gold}}}$.", "answer": gold} for gold in golds])
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    assert [sum(outcome.scores[grade] for outcome in outcomes) for grade in math.GRADES] == [len(rows)] * 3
    assert len(rows) == COUNTS[name] + (name == "olympiadbench")


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
        # Why math-verify never is the only grader. A change here means that another version grades.
        (r"$\frac{1}{2006!}$", r"\frac{1}{2004!}", (1,)),  # wrong: they differ
        (r"$4\sqrt(2)$", "4", (1,)),  # wrong: they differ
        (r"$\sqrt{1/n}$", r"1/\sqrt n", (0,)),  # wrong: they are equal for positive n
        (r"$1-\frac{1}{\mathrm e}$", r"1+\frac{1}{\mathrm e}", (0,)),  # accepted with the gold answer in $...$
        ("3x+4y+14=0", "3*x-1*y+13=0", (0,)),  # accepted with the gold answer as a bare text
        (r"<think>\boxed{5}</think> It is four.", "5", (1,)),  # a box in the thoughts counts where none follows
        (r"\boxed{0.5}", r"\frac{1}{2}", (1,)),
        (r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", (1,)),
    ],
)
def test_three_graders(box: Sandbox, response: str, answer: str, grades: tuple[int, ...]) -> None:
    (outcome,) = box.score([{"response": response, "answer": answer}])
    assert tuple(outcome.scores[name] for name in math.GRADES)[-len(grades) :] == grades
    assert outcome.outcome == "ok"


def test_a_busy_machine_does_not_change_a_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a step is in processor time: what waits for a core is not refused."""
    from math_verify import grader, parser

    extract, equal = parser.extract_target_from_pred, grader.sympy_expr_eq
    monkeypatch.setattr(math, "STEP_SECONDS", 1)
    monkeypatch.setattr(parser, "extract_target_from_pred", lambda *a, **b: time.sleep(1.5) or extract(*a, **b))
    monkeypatch.setattr(grader, "sympy_expr_eq", lambda *a, **b: time.sleep(1.5) or equal(*a, **b))
    assert math.verify(r"\boxed{0.5}", "0.50") is True
    started = time.process_time()
    assert math.verify(r"$9^{9^{9^9}}$", "5") is False
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
    assert math.verify(r"\boxed{0.25}", "0.250") is True
    assert len(seen) == 3
    assert signal.getsignal(signal.SIGPROF) == before


def test_hostile_answers_end_and_the_next_one_is_still_graded(box: Sandbox) -> None:
    braces = r"\boxed{" + "{" * 10_000 + "}" * 10_000 + "}"
    hostile = ["$9^{9^{9^9}}$", r"\boxed{9^{9^{9^9}}}", "$1000000!$", "7" * 1_000_000, "{" * 10_000, r"\boxed{" * 3000]
    texts = [*hostile, braces, r"not $9^{9^{9^9}}$ but \boxed{5}", r"\boxed{5}"]
    *outcomes, beside, last = box.score([{"response": text, "answer": "5"} for text in texts])
    assert not any(value for outcome in outcomes for value in outcome.scores.values())
    assert {outcome.outcome for outcome in [*outcomes, beside]} <= {"ok", "timeout"}
    assert beside.scores["strict"] == 1  # a right answer keeps it beside a hostile one
    assert last == Outcome({"strict": 1, "strict_or_numeric": 1, "math_verify": 1}, "ok")


SCORED = {"strict": 0, "strict_or_numeric": 1, "math_verify": 1}


@pytest.mark.parametrize(
    ("n_tokens", "finished", "scores", "expected"),
    [
        (23, True, SCORED, {"strict_or_numeric": 1, "exceed": 0, "joint": 1, "truncated": 0}),
        (24, True, SCORED, {"strict_or_numeric": 1, "exceed": 1, "joint": 0, "truncated": 0}),
        (40, False, SCORED, {"strict_or_numeric": 1, "math_verify": 1, "exceed": 1, "joint": 0, "truncated": 1}),
        (9, False, SCORED, {"strict_or_numeric": 1, "exceed": 0, "joint": 1, "truncated": 1}),
        (9, True, {}, {"strict": 0, "strict_or_numeric": 0, "math_verify": 0, "exceed": 0, "joint": 0}),
    ],
)
def test_length_and_truncation(n_tokens: int, finished: bool, scores: dict, expected: dict) -> None:
    row = math.score_row(Response("", n_tokens, finished), scores, 23)
    assert {name: row[name] for name in expected} == expected


def test_summary_averages_the_samples_of_a_question() -> None:
    grades = {"strict": [0, 0, 1, 1], "strict_or_numeric": [1, 0, 1, 1], "math_verify": [1, 1, 1, 1]}
    rest = {"exceed": [0, 0, 1, 0], "joint": [1, 0, 0, 1], "truncated": [0, 1, 0, 0], "sample": [0, 1, 0, 1]}
    frame = pd.DataFrame({"case": ["q1", "q1", "q0", "q0"], "category": "laptop_math", **grades, **rest})
    metrics = math.summarise(frame)
    expected = {"acc": 0.75, "strict": 0.5, "math_verify": 1.0, "exceed": 0.25, "joint": 0.5, "truncated_rate": 0.25}
    assert {name: metric.score for name, metric in metrics.items()} == pytest.approx(expected)
    assert metrics["acc"].values.tolist() == [1.0, 0.5]  # q0, q1
    assert set(metrics["acc"].strata) == {"laptop_math"}


RIGHT, WRONG, NUMBER, VERIFIED, STRICT = (1, 1, 1), (0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)
# Set -> question -> grades of each sample.
FIVE = {
    "math500": [[RIGHT, RIGHT], [RIGHT, WRONG], [WRONG, WRONG], [WRONG, WRONG]],
    "aime24": [[WRONG, WRONG]],
    "amc": [[NUMBER, NUMBER]],
    "minerva": [[VERIFIED, WRONG]],
    "olympiadbench": [[STRICT, RIGHT], [WRONG, WRONG]],
}


def frame_of(*names: str) -> pd.DataFrame:
    rows = [
        {"case": f"{name}_{number}", "category": name, "sample": sample, **dict(zip(math.GRADES, grades, strict=True))}
        for name in names
        for number, samples in enumerate(FIVE[name])
        for sample, grades in enumerate(samples)
    ]
    frame = pd.DataFrame(rows).assign(exceed=0, truncated=0, n_tokens=5, outcome="ok")
    return frame.assign(joint=frame["strict_or_numeric"])


def test_each_set_counts_alike_in_the_macro_average() -> None:
    metrics = math.summarise_sets(frame_of(*FIVE))
    each = {"math500": 0.375, "aime24": 0.0, "amc": 1.0, "minerva": 0.0, "olympiadbench": 0.5}
    assert {name: metrics[f"acc/{name}"].score for name in each} == each
    assert metrics["acc"].score == pytest.approx(sum(each.values()) / 5)
    assert metrics["math_verify"].score == pytest.approx((0.375 + 0 + 0 + 0.5 + 0.25) / 5)
    assert metrics["strict"].score == pytest.approx((0.375 + 0 + 0 + 0 + 0.5) / 5)
    assert metrics["only_numeric"].score == pytest.approx(1 / 5)
    assert metrics["only_math_verify/minerva"].score == 0.5
    assert metrics["joint"].score == metrics["acc"].score
    assert metrics["truncated_rate"].score == metrics["exceed"].score == 0
    # It can be bootstrapped within each set.
    assert np.sum(metrics["acc"].weights) == pytest.approx(1)
    for name, questions in FIVE.items():
        chosen = metrics["acc"].weights[metrics["acc"].strata == name]
        assert chosen.tolist() == pytest.approx([1 / 5 / len(questions)] * len(questions))


def test_part_of_the_sets_has_no_macro_average() -> None:
    metrics = math.summarise_sets(frame_of("math500"))
    assert set(metrics) == {f"{name}/math500" for name in [*math.METRICS, *math.LONE]}
