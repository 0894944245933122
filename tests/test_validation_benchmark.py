"""Held-out validation: the training rewards on ToolRL's and DeepScaleR's validation rows."""

import json

import pandas as pd
import pytest

from dara.evaluation.generate import generate_checkpoints
from dara.evaluation.grading import read_scores, score_checkpoints, summarise
from dara.evaluation.records import Response
from dara.evaluation.sandbox import Sandbox, ScorerSpec
from dara.evaluation.validation import DEEPSCALER_VALIDATION, TOOLRL_VALIDATION
from dara.registries import BenchmarkDefinition
from dara.rewards import score
from evaluation_fakes import FakeSampler, benchmark, write_checkpoints

CALL = '<think>use it</think>\n<tool_call>\n{"name": "f", "parameters": {"x": 1}}\n</tool_call>'


@pytest.fixture
def tool_scorer():
    with Sandbox(ScorerSpec(TOOLRL_VALIDATION.scorer, {}, 10.0)) as sandbox:
        yield sandbox


@pytest.fixture
def math_scorer():
    with Sandbox(ScorerSpec(DEEPSCALER_VALIDATION.scorer, {}, 10.0)) as sandbox:
        yield sandbox


def rewards(
    benchmark: BenchmarkDefinition,
    sandbox: Sandbox,
    responses: list[Response],
    references: list[str],
    limit: int | None,
) -> list[dict]:
    items = [{"response": one.text, "reference": gold} for one, gold in zip(responses, references, strict=True)]
    outcomes = sandbox.score(items)
    return [benchmark.score_row(one, outcome.scores, limit) for one, outcome in zip(responses, outcomes, strict=True)]


def test_tool_rewards_are_those_of_training(tool_scorer):
    texts = [
        CALL, CALL.replace("1", "2"), CALL.replace('"f"', '"g"'), CALL.replace("\n<tool", " <tool"), "f(1)", "",
        CALL + "<|im_end|>", "<think>" + "word " * 17 + CALL.removeprefix("<think>use it"), "{" * 20_000,
    ]  # fmt: skip
    responses = [Response(text, 9, True) for text in texts]
    found = rewards(TOOLRL_VALIDATION, tool_scorer, responses, [CALL] * len(texts), None)
    for text, row in zip(texts, found, strict=True):
        names = ("correctness", "format", "length")
        expected = score("tool_calling", names, response=text, reference=CALL, n_tokens=9, params={})
        assert [row[name] for name in names] == expected
    assert [row["correctness"] for row in found[:3]] == [3.0, 1.0, -3.0]
    assert [row["length"] for row in found] == [1, 1, 1, 1, 0, 0, 1, 0, 0]
    assert {row["truncated"] for row in found} == {0}


def test_gold_turns_of_the_real_rows(tool_scorer, real_rows):
    golds = [row["reward_model"]["ground_truth"] for row in real_rows("toolrl_rlla_4k_val80.jsonl")]
    found = rewards(TOOLRL_VALIDATION, tool_scorer, [Response(gold, 50, True) for gold in golds], golds, 16)
    assert len(found) == 80
    assert all(row["format"] == 1 for row in found)
    # Nine rows have no call; the reward of the others is at its maximum.
    assert [row["correctness"] for row in found].count(3.0) == 71
    assert [row["correctness"] for row in found].count(0.0) == 9


def test_math_rewards_are_those_of_training_truncated_or_not(math_scorer):
    responses = [
        Response(r"\boxed{\frac12}", 4000, True), Response(r"\boxed{0.5} and", 4001, False), Response("0.5", 4, True),
        Response("", 0, False),
    ]  # fmt: skip
    found = rewards(DEEPSCALER_VALIDATION, math_scorer, responses, ["0.5"] * 4, 4000)
    assert [(row["correctness"], row["length"], row["truncated"]) for row in found] == [
        (1, 1, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1),
    ]  # fmt: skip


def test_what_was_not_scored_in_time_has_the_lowest_rewards():
    response = Response(CALL, 9, True)
    row = TOOLRL_VALIDATION.score_row(response, {}, 16)
    assert (row["correctness"], row["format"]) == (-3.0, 0)
    assert DEEPSCALER_VALIDATION.score_row(response, {}, 4000)["correctness"] == 0


def test_math_needs_its_limit():
    for name in ("deepscaler_validation", "math_five"):
        with pytest.raises(ValueError, match=r"length_limit is missing; .* needs it, in tokens"):
            benchmark(name, length_limit=None)


@pytest.mark.parametrize("one", [TOOLRL_VALIDATION, DEEPSCALER_VALIDATION])
def test_rows_fill_the_columns(one):
    row = one.score_row(Response(CALL, 9, True), {}, 16)
    place = {"case", "category", "sample", "n_tokens", "outcome"}
    assert set(one.columns) == place | set(row)


def test_cases_are_the_prepared_rows(tmp_path):
    messages = [{"role": "user", "content": "1+1?"}]
    rows = [{"id": "train_7", "category": "deepscaler", "messages": messages, "reference": "2"}]
    path = tmp_path / DEEPSCALER_VALIDATION.cases_folder / "problems.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(rows[0]) + "\n")
    (case,) = DEEPSCALER_VALIDATION.load_cases(path.parent)
    assert (case.id, case.category, case.gold) == ("train_7", "deepscaler", {"reference": "2"})
    assert DEEPSCALER_VALIDATION.prompt(case) == messages
    assert DEEPSCALER_VALIDATION.case_files(path.parent) == [path]
    path.write_text('{"id": "a"}\n')
    with pytest.raises(
        ValueError, match=r"problems.jsonl, row 1: must be an object with id, category, messages, reference"
    ):
        DEEPSCALER_VALIDATION.load_cases(path.parent)


def test_means_of_the_rewards():
    tools = pd.DataFrame(
        {
            "case": ["a", "a", "b", "b"], "category": ["tool_call", "tool_call", "response", "response"],
            "sample": [0, 1, 0, 1], "correctness": [3.0, -3.0, 0.0, 0.0], "format": [1, 0, 1, 1],
            "length": [1, 1, 0, 0], "truncated": [0, 0, 1, 0],
        }
    )  # fmt: skip
    metrics = TOOLRL_VALIDATION.summarise(tools)
    assert {name: metric.score for name, metric in metrics.items()} == {
        "correctness": 0.0, "format": 0.75, "length": 0.5, "truncated_rate": 0.25,
    }  # fmt: skip
    assert metrics["correctness"].values.tolist() == [0.0, 0.0]
    metrics = DEEPSCALER_VALIDATION.summarise(tools.drop(columns="format"))
    assert set(metrics) == {"correctness", "length", "truncated_rate"}


@pytest.mark.parametrize(
    ("name", "reference", "says", "expected"),
    [
        ("toolrl_validation", CALL, CALL, {"correctness": 3.0, "format": 1.0, "length": 1.0, "truncated_rate": 0.0}),
        ("toolrl_validation", CALL, "f(1)", {"correctness": -3.0, "format": 0.0, "length": 0.0, "truncated_rate": 0.0}),
        ("deepscaler_validation", "2", r"\boxed{2}", {"correctness": 1.0, "length": 1.0, "truncated_rate": 0.0}),
        ("math_five", "2", r"\boxed{2}", {"acc/math500": 1.0, "joint/math500": 1.0, "only_numeric/math500": 0.0}),
        ("math_five", "2", r"\boxed{2.0}", {"acc/math500": 1.0, "strict/math500": 0.0, "math_verify/math500": 1.0}),
    ],
)
def test_from_the_cases_to_the_means(tmp_path, name, reference, says, expected):
    messages = [{"role": "user", "content": "question"}]
    shared = {"messages": messages, "reference": reference, "problem": "1+1", "answer": reference}
    rows = [{"id": f"case_{i}", "category": "math500", **shared} for i in range(3)]
    cases, out = tmp_path / "cases", tmp_path / "scores" / "run" / name
    cases.mkdir()
    (cases / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = benchmark(name, samples=2, length_limit=4000)
    checkpoints = write_checkpoints(tmp_path, [10])
    generate_checkpoints(checkpoints, spec, cases, out, make_sampler=FakeSampler(lambda text: says))
    score_checkpoints(out, [10], spec, cases)
    frame = read_scores(out, name, 10)
    assert len(frame) == 6
    metrics = {metric: value.score for metric, value in summarise(frame, name).items()}
    assert {metric: metrics[metric] for metric in expected} == expected
