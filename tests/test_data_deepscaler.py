"""DeepScaleR: real rows, their filters, the held-out problems and what also stands in a benchmark."""

import csv
import json
import re

import pytest

from dara.data.prepare import prepare_hub, sources_of
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


@pytest.fixture
def problems(real_rows):
    return [
        {"problem": row["problem"].removesuffix(SUFFIX), "answer": row["answer"]}
        for row in real_rows("deepscaler_200.jsonl")
    ]


@pytest.fixture
def settings(tmp_path, problems, real_rows):
    """207 rows: 200 real ones, six without an answer, and a problem of MATH-500; and the five real benchmarks."""
    in_benchmark = {"problem": real_rows("math500.jsonl")[7]["problem"] + "\n", "answer": "1"}
    rows = [*problems, *({**row, "answer": ""} for row in problems[:6]), in_benchmark]
    local = {"deepscaler": tmp_path / "deepscaler.json"}
    local["deepscaler"].write_text(json.dumps(rows))
    files = {"olympiadbench": "olympiadbench_675.jsonl"}
    for name, count in SETS.items():
        local[name] = tmp_path / f"{name}.jsonl"
        lines = [json.dumps(row) for row in real_rows(files.get(name, f"{name}.jsonl"))[:count]]
        local[name].write_text("\n".join(lines))
    return fetch_settings(tmp_path, {"deepscaler": len(rows), **SETS}, local)


def prepared(settings, out, **changes):
    prepare_hub(SPEC.model_copy(update=changes), out, fetch=settings)
    read = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    held_out = [json.loads(line) for line in (out / "validation" / "problems.jsonl").read_text().splitlines()]
    return read, held_out, json.loads((out / "manifest.json").read_text())


def test_filters_are_counted_and_listed(settings, problems, tmp_path):
    train, held_out, manifest = prepared(settings, tmp_path / "out")
    assert manifest["rows"] == {"train.jsonl": 181, "validation/problems.jsonl": 20}
    assert manifest["excluded"] == {"no_answer": 6}
    listed = list(csv.DictReader((tmp_path / "out" / "excluded.csv").open()))
    assert [row["id"] for row in listed] == [f"train_{i}" for i in range(200, 206)]
    ids = [row["id"] for row in (*train, *held_out)]
    assert len(set(ids)) == 201
    first = next(row for row in (*train, *held_out) if row["id"] == "train_0")
    text = problems[0]["problem"] + "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert first.get("prompt", f"<user>{text}</user><assistant>") == f"<user>{text}</user><assistant>"
    assert first["reference"] == r"\frac{3}{7}"
    assert held_out[0]["messages"][0]["role"] == "user"
    assert held_out[0]["category"] == "deepscaler"


def test_long_prompts_are_dropped_and_counted(settings, tmp_path):
    _, held_out, _ = prepared(settings, tmp_path / "whole")
    train, validation, manifest = prepared(settings, tmp_path / "out", max_prompt_tokens=400)
    dropped = manifest["excluded"]["too_long"]
    assert 0 < dropped < 201
    assert len(train) + len(validation) == 201 - dropped
    listed = [row for row in csv.DictReader((tmp_path / "out" / "excluded.csv").open()) if row["reason"] == "too_long"]
    assert len(listed) == dropped
    assert all(int(row["detail"]) > 400 for row in listed)
    # What is held out is the same as far as it is left: another model's tokenizer does not draw other problems.
    gone = {row["id"] for row in listed}
    assert {row["id"] for row in held_out} - gone <= {row["id"] for row in validation}


def test_copies_of_held_out_problems_are_not_trained(settings, problems, tmp_path):
    _, held_out, _ = prepared(settings, tmp_path / "whole")
    number = int(re.search(r"\d+", held_out[0]["id"])[0])
    path = settings.data_local["deepscaler"]
    rows = json.loads(path.read_text())
    rows[-1] = {"problem": problems[number]["problem"].replace("$", " $ ").upper(), "answer": "1"}
    path.write_text(json.dumps(rows))
    train, again, manifest = prepared(settings, tmp_path / "out")
    assert [row["id"] for row in again] == [row["id"] for row in held_out]
    assert manifest["excluded"] == {"copy_of_validation": 1, "no_answer": 6}
    assert len(train) == 180


@pytest.mark.parametrize(("decontaminate", "kept"), [(False, 201), (True, 200)])
def test_problems_of_a_benchmark_are_listed_and_removed_by_option(settings, tmp_path, decontaminate, kept):
    train, held_out, manifest = prepared(settings, tmp_path / "out", decontaminate=decontaminate)
    assert len(train) + len(held_out) == kept
    assert manifest["contamination"]["training_problems"] == {name: int(name == "math500") for name in SETS}
    assert manifest["contamination"]["removed"] is decontaminate
    listed = list(csv.DictReader((tmp_path / "out" / "contamination.csv").open()))
    expected = {"problem": "train_206", "benchmark": "math500", "case": "math500_7", "rule": "equal", "share": "1.000"}
    assert listed == [expected]
    assert manifest["excluded"].get("in_benchmark", 0) == int(decontaminate)


def test_too_few_problems_to_hold_out(settings, tmp_path):
    with pytest.raises(ValueError, match=r"data.validation_rows: 300, but only 201 problems are left; hold out fewer"):
        prepared(settings, tmp_path / "out", validation_rows=300)


def test_the_data_sets_that_are_needed():
    assert sources_of(SPEC) == ("deepscaler", *SETS)
