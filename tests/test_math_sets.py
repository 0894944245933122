"""The five math benchmarks: real rows, counts, references, gold answers against themselves, and the averages."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from dara.data.prepare import prepare_benchmark
from dara.data.public import INSTRUCTION, SETS, gold_answer, read_set
from dara.evaluation import bfcl_v4, math
from dara.evaluation.sandbox import Sandbox, ScorerSpec
from hub_fakes import fetch_settings

FILES = {name: f"{name}.jsonl" for name in SETS} | {"olympiadbench": "olympiadbench_675.jsonl"}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def settings(tmp_path, real_rows):
    """The real rows as local files; of the 675 rows of OlympiadBench the first 674 stand in for the full set."""
    counts = {name: one.questions for name, one in SETS.items()}
    local = {name: write_rows(tmp_path / f"{name}.jsonl", real_rows(FILES[name])[: counts[name]]) for name in SETS}
    return fetch_settings(tmp_path, counts, local)


def test_the_sets_have_1559_questions():
    assert {name: one.questions for name, one in SETS.items()} == {
        "math500": 500, "aime24": 30, "amc": 83, "minerva": 272, "olympiadbench": 674,
    }  # fmt: skip
    assert sum(one.questions for one in SETS.values()) == 1559
    assert math.MATH_FIVE.data_files == tuple(SETS)


def test_the_prepared_benchmark(settings, tmp_path):
    prepare_benchmark("math_five", tmp_path / "out", fetch=settings)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["benchmark"] == "math_five"
    assert manifest["rows"] == {"benchmark/problems.jsonl": 1559}
    assert set(manifest["sources"]) == set(SETS)
    assert set(manifest["sha256"]) == {"benchmark/problems.jsonl"}
    cases = math.load_cases(tmp_path / "out" / "benchmark")
    assert Counter(case.category for case in cases) == {name: one.questions for name, one in SETS.items()}
    assert len({case.id for case in cases}) == 1559
    assert set(cases[0].question) == {"id", "category", "problem", "answer"}
    (message,) = math.prompt(cases[0])
    assert message == {"role": "user", "content": f"{cases[0].question['problem']}\n\n{INSTRUCTION}"}
    problems = [(case, case.question["problem"]) for case in cases]
    around = [(case, problem) for case, problem in problems if problem != problem.strip()]  # blanks and ends of lines
    assert Counter(case.category for case, _ in around) == {"amc": 5, "olympiadbench": 1}
    for case, problem in around:
        assert math.prompt(case)[0]["content"] == f"{problem.strip()}\n\n{INSTRUCTION}"
    golds = {case.id: case.gold["answer"] for case in cases}
    assert (golds["aime24_1"], golds["amc_0"], golds["minerva_0"]) == ("025", "142", "9.6")
    assert golds["olympiadbench_1"] == r"\frac{1}{2 n+2}"


def test_the_cases_of_bfcl_are_those_of_the_package(tmp_path):
    prepare_benchmark("bfcl_v4", tmp_path, fetch=None)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["cases"], manifest["versions"]) == (3301, {"bfcl-eval": "2026.3.23"})
    files = bfcl_v4.case_files(tmp_path / "benchmark")
    assert set(manifest["sha256"]) == {str(path.relative_to(tmp_path)) for path in files}
    for path in files:
        source = bfcl_v4.data_directory() / path.relative_to(tmp_path / "benchmark")
        assert path.read_bytes() == source.read_bytes()


def test_a_set_with_another_number_of_rows_is_refused_by_name(settings, tmp_path, real_rows):
    path = write_rows(tmp_path / "copy.jsonl", real_rows("olympiadbench_675.jsonl"))
    with pytest.raises(
        ValueError, match=r"copy.jsonl: has 675 rows, but olympiadbench has 674 questions; get the full set"
    ):
        read_set("olympiadbench", path)
    settings.data_local["olympiadbench"] = path
    with pytest.raises(ValueError, match=r"has 675 rows, but olympiadbench has 674 questions"):
        prepare_benchmark("math_five", tmp_path / "out", fetch=settings)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_columns_of_the_published_files(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = {
        "amc": {"id": 1, "problem": "p", "answer": 142.0, "url": "u"},
        "minerva": {"question": "p", "answer": r"8.7 \times 10^{8}"},
        "olympiadbench": {"id": 1, "question": "p", "solution": ["s"], "final_answer": ["$2^{1009}$"], "unit": None},
        "aime24": {"id": 60, "problem": "p", "solution": "s", "answer": "025", "url": "u", "year": "2024"},
    }
    expected = {"amc": "142", "minerva": r"8.7 \times 10^{8}", "olympiadbench": "2^{1009}", "aime24": "025"}
    for name, row in rows.items():
        path = tmp_path / f"{name}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * SETS[name].questions), path)
        first = read_set(name, path)[0]
        assert first == {"id": f"{name}_0", "category": name, "problem": "p", "answer": expected[name]}


def test_a_wrong_row_is_named(tmp_path):
    rows = [{"problem": "p", "answer": "1"}] * 30
    with pytest.raises(
        ValueError, match=r"aime24, .*rows.jsonl, row 3: needs a problem and an answer; it has 'p' and ''"
    ):
        read_set("aime24", write_rows(tmp_path / "rows.jsonl", [*rows[:2], {"problem": "p", "answer": []}, *rows[3:]]))
    with pytest.raises(ValueError, match=r"row 1: has no answer; its columns are problem, solution"):
        read_set("aime24", write_rows(tmp_path / "rows.jsonl", [{"problem": "p", "solution": "1"}] * 30))
    write_rows(tmp_path / "problems.jsonl", [{"id": "a", "category": "gsm8k", "problem": "p", "answer": "1"}])
    with pytest.raises(
        ValueError, match=r"problems.jsonl, row 1: category 'gsm8k' is no set; they are math500, aime24"
    ):
        math.load_cases(tmp_path)
    with pytest.raises(ValueError, match=r"benchmark 'math_six' is not prepared here; these are: bfcl_v4, math_five"):
        prepare_benchmark("math_six", tmp_path / "out", fetch=None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (["9.6", "7"], "9.6"),
        (142.0, "142"),
        (0.5, "0.5"),
        (-3.0, "-3"),
        (7, "7"),
        ("025", "025"),
        ("142.0", "142.0"),  # a text stays as it is
        ([142.0], "142"),
        ("$x$", "x"),
        ("$$x$$", "x"),
        (r"\[x\]", "x"),
        (r"\(x\)", "x"),
        (r" $\( x \)$ ", "x"),
        (r"$\[\(x\)\]$", "x"),
        (r"\[\($$x$$\)\]", "x"),
        (r"$\$18$", r"\$18"),
        ("$69$,$84$", "$69$,$84$"),  # no delimiters around the whole
        ("$(0,1)$, $(1,0)$", "$(0,1)$, $(1,0)$"),
        (r"\$5", r"\$5"),
        ("$", "$"),
        ("$$", "$$"),
        (None, ""),
        ([], ""),
        ("  ", ""),
    ],
)
def test_references(answer, expected):
    assert gold_answer(answer) == expected


@pytest.fixture(scope="module")
def box():
    with Sandbox(ScorerSpec(math.MATH_FIVE.scorer, {}, 10.0)) as sandbox:
        yield sandbox


# set -> how many gold answers, boxed, each grade accepts as themselves
GOLD = {
    "math500": (500, 500, 500),
    "aime24": (30, 30, 30),
    "amc": (83, 83, 83),
    "minerva": (272, 272, 272),
    "olympiadbench": (675, 675, 675),
}


@pytest.mark.parametrize("name", SETS)
def test_gold_answers_against_themselves(name, real_rows, box):
    columns = SETS[name].answer
    golds = [gold_answer(next(row[key] for key in columns if key in row)) for row in real_rows(FILES[name])]
    outcomes = box.score([{"response": f"So it is $\\boxed{{{gold}}}$.", "answer": gold} for gold in golds])
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    assert tuple(sum(outcome.scores[grade] for outcome in outcomes) for grade in math.GRADES) == GOLD[name]


@pytest.mark.parametrize(
    ("response", "answer", "verdict"),
    [
        (r"$\frac{1}{2006!}$", r"\frac{1}{2004!}", 1),  # wrong: they differ
        (r"$4\sqrt(2)$", "4", 1),  # wrong: they differ
        (r"$\sqrt{1/n}$", r"1/\sqrt n", 0),  # wrong: they are equal for positive n
        (
            r"$1-\frac{1}{\mathrm e}$",
            r"1+\frac{1}{\mathrm e}",
            0,
        ),  # with the gold answer in a box; in $...$ it is accepted
        ("3x+4y+14=0", "3*x-1*y+13=0", 0),  # with the gold answer in a box; as a bare text it is accepted
        (r"\boxed{4} \boxed{5}", "5", 0),  # two near boxes are a set
        (r"<think>\boxed{5}</think> It is four.", "5", 1),  # a box in the thoughts counts where none follows
        (r"\boxed{0.5}", r"\frac{1}{2}", 1),
        (r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", 1),
        (r"\boxed{6}", "5", 0),
    ],
)
def test_known_verdicts_of_math_verify(box, response, answer, verdict):
    # Why it never is the only grader. A change here means that another version grades.
    (outcome,) = box.score([{"response": response, "answer": answer}])
    assert outcome.scores["math_verify"] == verdict


def frame_of(sets, samples=2):
    """Score rows of two questions a set; `sets`: set -> grades (strict, numeric, verify) of each sample of each question."""
    rows = []
    for name, questions in sets.items():
        for number, answers in enumerate(questions):
            for sample, (strict, numeric, verify) in enumerate(answers):
                rows.append(
                    {
                        "case": f"{name}_{number}", "category": name, "sample": sample, "strict": strict,
                        "strict_or_numeric": numeric, "math_verify": verify, "exceed": 0, "joint": numeric,
                        "truncated": 0, "n_tokens": 5, "outcome": "ok",
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


RIGHT, WRONG, NUMBER, VERIFIED, STRICT = (1, 1, 1), (0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)
FIVE = {
    "math500": [[RIGHT, RIGHT], [RIGHT, WRONG], [WRONG, WRONG], [WRONG, WRONG]],
    "aime24": [[WRONG, WRONG]],
    "amc": [[NUMBER, NUMBER]],
    "minerva": [[VERIFIED, WRONG]],
    "olympiadbench": [[STRICT, RIGHT], [WRONG, WRONG]],
}


def test_each_set_counts_alike_in_the_macro_average():
    metrics = math.summarise_sets(frame_of(FIVE))
    each = {"math500": 0.375, "aime24": 0.0, "amc": 1.0, "minerva": 0.0, "olympiadbench": 0.5}
    assert {name: metrics[f"acc/{name}"].score for name in each} == each
    assert metrics["acc"].score == pytest.approx(sum(each.values()) / 5)
    assert metrics["math_verify"].score == pytest.approx((0.375 + 0 + 0 + 0.5 + 0.25) / 5)
    assert metrics["strict"].score == pytest.approx((0.375 + 0 + 0 + 0 + 0.5) / 5)
    assert metrics["only_numeric"].score == pytest.approx(1 / 5)
    assert metrics["only_math_verify/minerva"].score == 0.5
    assert metrics["joint"].score == metrics["acc"].score
    assert metrics["truncated_rate"].score == metrics["exceed"].score == 0


def test_the_macro_average_can_be_bootstrapped_within_each_set():
    metric = math.summarise_sets(frame_of(FIVE))["acc"]
    assert np.sum(metric.weights) == pytest.approx(1)
    for name, questions in FIVE.items():
        chosen = metric.weights[metric.strata == name]
        assert chosen.tolist() == pytest.approx([1 / 5 / len(questions)] * len(questions))


def test_part_of_the_sets_has_no_macro_average():
    metrics = math.summarise_sets(frame_of({"math500": FIVE["math500"]}))
    assert set(metrics) == {f"{name}/math500" for name in [*math.METRICS, *math.LONE]}
