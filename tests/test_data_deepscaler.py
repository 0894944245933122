"""DeepScaleR as the authors split it: rows in their format, their filters, and what also stands in a benchmark."""

import csv
import json

import pytest

from dara.data.prepare import files_of, prepare
from dara.data.public import deepscaler
from dara.specs import HubData
from hub_fakes import fetch_settings

SPEC = HubData(
    source="deepscaler",
    revision="0123456789",
    max_prompt_tokens=100_000,
    validation_rows=20,
    tokenizer="owner/model@" + "0" * 40,
)
SETS = {"math500": 500, "aime24": 30, "amc": 83, "minerva": 272, "olympiadbench": 674}
SUFFIX = " Let's think step by step and output the final answer within \\boxed{}."
INSTRUCTION = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


def row(problem: str, answer: str, split: str = "train", index: int = 0) -> dict:
    """A row as verl's preparation writes it."""
    return {
        "data_source": "deepscaler",
        "prompt": [{"role": "user", "content": problem + INSTRUCTION}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": split, "index": index},
    }


def write(path, rows):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def problems(real_rows):
    return [(one["problem"].removesuffix(SUFFIX), one["answer"]) for one in real_rows("deepscaler_200.jsonl")]


@pytest.fixture
def settings(tmp_path, problems, real_rows):
    """187 training rows: 180 real ones, six without an answer, a problem of MATH-500; 20 of validation; real benchmarks."""
    in_benchmark = (real_rows("math500.jsonl")[7]["problem"] + "\n", "1")
    train = [*problems[20:], *((problem, "") for problem, _ in problems[20:26]), in_benchmark]
    local = {
        "deepscaler_train": write(tmp_path / "train.parquet", [row(*one) for one in train]),
        "deepscaler_validation": write(tmp_path / "test.parquet", [row(*one, "test") for one in problems[:20]]),
    }
    files = {"olympiadbench": "olympiadbench_675.jsonl"}
    for name, count in SETS.items():
        local[name] = tmp_path / f"{name}.jsonl"
        lines = [json.dumps(one) for one in real_rows(files.get(name, f"{name}.jsonl"))[:count]]
        local[name].write_text("\n".join(lines))
    return fetch_settings(tmp_path, {"deepscaler_train": 187, "deepscaler_validation": 20, **SETS}, local)


def prepared(settings, out, **changes):
    prepare(SPEC.model_copy(update=changes), out, fetch=settings)
    train = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    validation = [json.loads(line) for line in (out / "validation" / "problems.jsonl").read_text().splitlines()]
    return train, validation, json.loads((out / "manifest.json").read_text())


def test_both_files_are_taken_as_they_are_and_filters_are_counted_and_listed(settings, problems, tmp_path):
    train, validation, manifest = prepared(settings, tmp_path / "out")
    assert manifest["rows"] == {"train.jsonl": 181, "validation/problems.jsonl": 20}
    assert manifest["excluded"] == {"no_answer": 6}
    assert set(manifest["sources"]) == {"deepscaler_train", "deepscaler_validation"}
    listed = list(csv.DictReader((tmp_path / "out" / "excluded.csv").open()))
    assert [one["id"] for one in listed] == [f"train_{i}" for i in range(180, 186)]
    assert [one["id"] for one in train] == [*(f"train_{i}" for i in range(180)), "train_186"]
    problem, answer = problems[20]
    assert train[0]["prompt"] == f"<user>{problem}{INSTRUCTION}</user><assistant>"
    assert train[0]["reference"] == answer
    assert [one["id"] for one in validation] == [f"validation_{i}" for i in range(20)]
    assert validation[0]["messages"] == [{"role": "user", "content": problems[0][0] + INSTRUCTION}]
    assert (validation[0]["category"], validation[0]["reference"]) == ("deepscaler", r"\frac{3}{7}")


def test_an_answer_is_compared_as_the_authors_wrote_it(settings):
    write(settings.data_local["deepscaler_train"], [row("x", "$\\frac{1}{2}$")] * 187)
    assert deepscaler(settings)[0][0].reference == "$\\frac{1}{2}$"


def test_long_prompts_are_dropped_from_training_and_counted(settings, tmp_path):
    train, validation, manifest = prepared(settings, tmp_path / "out", max_prompt_tokens=400)
    dropped = manifest["excluded"]["too_long"]
    assert 0 < dropped < 181
    assert (len(train), len(validation)) == (181 - dropped, 20)
    listed = [one for one in csv.DictReader((tmp_path / "out" / "excluded.csv").open()) if one["reason"] == "too_long"]
    assert len(listed) == dropped
    assert all(int(one["detail"]) > 400 for one in listed)


def test_copies_of_validation_problems_are_not_trained(settings, problems, tmp_path):
    rows = [row(*one) for one in problems[20:]] + [row(problems[3][0].replace("$", " $ ").upper(), "1")] * 7
    write(settings.data_local["deepscaler_train"], rows)
    train, validation, manifest = prepared(settings, tmp_path / "out")
    assert manifest["excluded"] == {"copy_of_validation": 7}
    assert (len(train), len(validation)) == (180, 20)
    listed = list(csv.DictReader((tmp_path / "out" / "excluded.csv").open()))
    assert {(one["id"], one["detail"]) for one in listed} == {(f"train_{i}", "validation_3") for i in range(180, 187)}


@pytest.mark.parametrize(("decontaminate", "kept"), [(False, 181), (True, 180)])
def test_problems_of_a_benchmark_are_listed_and_removed_by_option(settings, tmp_path, decontaminate, kept):
    train, _, manifest = prepared(settings, tmp_path / "out", decontaminate=decontaminate)
    assert len(train) == kept
    assert manifest["contamination"]["training_problems"] == {name: int(name == "math500") for name in SETS}
    assert manifest["contamination"]["removed"] is decontaminate
    listed = list(csv.DictReader((tmp_path / "out" / "contamination.csv").open()))
    expected = {"problem": "train_186", "benchmark": "math500", "case": "math500_7", "rule": "equal", "share": "1.000"}
    assert listed == [expected]
    assert manifest["excluded"].get("in_benchmark", 0) == int(decontaminate)


def test_another_number_of_validation_rows_is_an_error(settings, tmp_path):
    with pytest.raises(ValueError, match=r"data.validation_rows: 30, but deepscaler has 20 validation rows; set that"):
        prepared(settings, tmp_path / "out", validation_rows=30)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "1+1"}]},
        {"prompt": "1+1"},
        {"reward_model": {"style": "rule"}},
    ],
)
def test_a_malformed_row_is_named(settings, spoilt):
    rows = [row("1+1", "2")] * 19 + [row("1+1", "2") | spoilt]
    path = settings.data_local["deepscaler_validation"].with_suffix(".json")
    path.write_text(json.dumps(rows))
    settings.data_local["deepscaler_validation"] = path
    message = r"deepscaler_validation, row 20: needs a prompt of a user message, and reward_model.ground_truth"
    with pytest.raises(ValueError, match=message):
        deepscaler(settings)


def test_the_data_sets_that_are_needed():
    assert files_of(SPEC) == ("deepscaler_train", "deepscaler_validation", *SETS)
