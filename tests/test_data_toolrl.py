"""ToolRL's RL split: the real validation rows, and training rows made of them."""

import csv
import json
from collections import Counter

import pytest

from dara.data import prepare as preparation
from dara.data.prepare import files_of, prepare
from dara.data.public import toolrl
from dara.specs import HubData
from hub_fakes import fetch_settings

SPEC = HubData(
    source="toolrl",
    revision="0123456789ab",
    max_prompt_tokens=100_000,
    validation_rows=80,
    tokenizer="owner/model@" + "0" * 40,
)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def rows(real_rows):
    return real_rows("toolrl_rlla_4k_val80.jsonl")


@pytest.fixture
def settings(tmp_path, rows):
    """The real validation rows, and as training rows the same with two that cannot be used."""
    broken = json.loads(json.dumps(rows[:2]))
    broken[0]["reward_model"]["ground_truth"] = "<think> x </think>\n<tool_call>\nno JSON\n</tool_call>"
    broken[1]["prompt"][1]["content"] = "**Dialogue Records History**\n<user> " + "again " * 3000 + "</user>"
    local = {
        "toolrl_train": write_rows(tmp_path / "train.jsonl", [*rows, *broken]),
        "toolrl_validation": write_rows(tmp_path / "test.jsonl", rows),
    }
    return fetch_settings(tmp_path, {"toolrl_train": 82, "toolrl_validation": 80}, local)


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_files_of_a_prepared_split(settings, rows, tmp_path):
    out = tmp_path / "out"
    limit = 7605  # of the longest real prompt; the tokenizer here spells most words in bytes
    spec = SPEC.model_copy(update={"max_prompt_tokens": limit})
    prepare(spec, out, fetch=settings)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["data"] == spec.model_dump(mode="json")
    assert manifest["rows"] == {"train.jsonl": 80, "validation/problems.jsonl": 80}
    assert manifest["excluded"] == {"too_long": 1, "unusable_reference": 1}
    assert set(manifest["sha256"]) == {"train.jsonl", "validation/problems.jsonl", "excluded.csv", "contamination.csv"}
    assert manifest["sources"]["toolrl_train"]["local"] is True
    excluded = list(csv.DictReader((out / "excluded.csv").open()))
    assert {row["id"]: row["reason"] for row in excluded} == {"train_80": "unusable_reference", "train_81": "too_long"}
    assert "is not JSON" in excluded[0]["detail"]
    assert manifest["contamination"]["training_problems"] == {"bfcl_v4": 0}

    train = read_json_lines(out / "train.jsonl")
    assert [row["id"] for row in train] == [f"train_{i}" for i in range(80)]
    system, user = (message["content"] for message in rows[0]["prompt"])
    assert train[0]["prompt"] == f"<system>{system}</system><user>{user}</user><assistant>"
    assert train[0]["reference"] == rows[0]["reward_model"]["ground_truth"]

    validation = read_json_lines(out / "validation" / "problems.jsonl")
    assert validation[0]["messages"] == [
        {"role": "system", "content": system}, {"role": "user", "content": user},
    ]  # fmt: skip
    categories = [row["category"] for row in validation]
    assert Counter(categories) == {"tool_call": 71, "response": 9}


def test_the_same_specification_gives_the_same_files(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "_questions", lambda *_: [])  # seconds to read
    for name in ("a", "b", "b"):
        prepare(SPEC, tmp_path / name, fetch=settings)
    assert (tmp_path / "a" / "manifest.json").read_bytes() == (tmp_path / "b" / "manifest.json").read_bytes()


def test_other_numbers_of_rows_are_refused(settings, tmp_path, rows, monkeypatch):
    monkeypatch.setattr(preparation, "_questions", lambda *_: [])
    with pytest.raises(ValueError, match=r"data.validation_rows: 79, but toolrl has 80 validation rows; set that"):
        prepare(SPEC.model_copy(update={"validation_rows": 79}), tmp_path / "out", fetch=settings)
    write_rows(tmp_path / "train.jsonl", rows)
    with pytest.raises(ValueError, match=r"train.jsonl: has 80 rows; toolrl_train has 82, so this is another set"):
        toolrl(settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"revision": "fffffff"},
            r"data.revision: fffffff, but .*data.lock.yaml pins toolrl_train at 0123456789abcdef",
        ),
        ({"version": 2}, r"data.version: toolrl is prepared in version 1 here, version 2 was asked for"),
        ({"tokenizer": None}, r"data.tokenizer: None must be ID@REVISION"),
        ({"tokenizer": "owner/model"}, r"data.tokenizer: 'owner/model' must be ID@REVISION"),
    ],
)
def test_a_specification_that_does_not_fit(settings, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        prepare(SPEC.model_copy(update=change), tmp_path / "out", fetch=settings)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_without_a_chat_template(settings, tmp_path):
    from hub_fakes import save_tokenizer

    (settings.models_local["owner/model"] / "chat_template.jinja").unlink(missing_ok=True)
    save_tokenizer(settings.models_local["owner/model"], template=None)
    with pytest.raises(ValueError, match=r"data.tokenizer: owner/model has no chat template"):
        prepare(SPEC, tmp_path / "out", fetch=settings)


def test_what_the_user_says_is_compared_with_benchmarks(settings):
    train, validation, _ = toolrl(settings)
    assert validation[0].text == (
        "Hey, I'm looking to stay current on Azure services. Could you fetch the latest news on that topic for me?"
    )
    assert not any("<tool_call>" in problem.text or "Dialogue Records" in problem.text for problem in train)


def test_a_malformed_row_is_named(tmp_path, rows):
    rows[3]["prompt"] = rows[3]["prompt"][1:]
    local = {name: write_rows(tmp_path / "rows.jsonl", rows) for name in ("toolrl_train", "toolrl_validation")}
    fetch = fetch_settings(tmp_path, dict.fromkeys(local, 80), local)
    with pytest.raises(ValueError, match=r"toolrl_train, row 4: needs a prompt of a system and a user message"):
        toolrl(fetch)


def test_parquet_rows_are_read_as_the_published_file_has_them(tmp_path, rows):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    local = dict.fromkeys(("toolrl_train", "toolrl_validation"), tmp_path / "rows.parquet")
    train, validation, excluded = toolrl(fetch_settings(tmp_path, dict.fromkeys(local, 80), local))
    assert (len(train), len(validation), excluded) == (80, 80, [])
    assert [one.reference for one in validation] == [row["reward_model"]["ground_truth"] for row in rows]


def test_the_data_sets_that_are_needed():
    assert files_of(SPEC) == ("toolrl_train", "toolrl_validation")
