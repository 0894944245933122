"""A user's own data source: a function of a file, prepared for a model, with its checksum in the data's identity."""

import json
import re
import shutil

import pytest

from dara.data.prepare import prepare
from dara.data.public import own_problems
from dara.loading import ConfigurationError, load_preset
from dara.runs import data_id, plan_runs
from dara.specs import OwnData
from hub_fakes import fetch_settings
from project import ROOT

OWN = "{source: 'my_data.py:problems', max_prompt_tokens: 300}"
FILE = """
def problems(split):
    for number in range(3 if split == "train" else 1):
        question = f"{number} + 1" + " again" * 500 * (number == 2)
        yield {"messages": [{"role": "user", "content": question}], "reference": str(number + 1)}

def wrong(split):
    return [{"messages": "1 + 1", "reference": "2"}]

def none(split):
    return []
"""


@pytest.fixture
def own_preset(tmp_path):
    """A copy of the configuration in which the paper's math task has a user's own data."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "config" / "my_data.py").write_text(FILE)
    preset, paper = tmp_path / "config" / "presets" / "own.yaml", ROOT / "config" / "presets" / "paper.yaml"
    text = re.sub(r"data: {source: deepscaler.*}", f"data: {OWN}", paper.read_text())
    preset.write_text(text.replace("preset: paper", "preset: own"))
    return tmp_path, preset


def planned(own_preset) -> OwnData:
    specs = plan_runs(load_preset(*own_preset)).data.values()
    return next(spec for spec in specs if isinstance(spec, OwnData))


def test_own_rows_are_prepared_for_the_model(own_preset, tmp_path):
    spec = planned(own_preset)
    assert data_id(spec).startswith("problems-")
    fetch = fetch_settings(tmp_path, {}, {})
    spec = spec.model_copy(update={"tokenizer": "owner/model@" + "0" * 40})
    prepare(spec, tmp_path / "out", fetch=fetch, own_files=tmp_path / "config")
    rows = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert rows[1] == {"id": "train_1", "prompt": "<user>1 + 1</user><assistant>", "reference": "2"}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["rows"] == {"train.jsonl": 2, "validation/problems.jsonl": 1}
    assert manifest["excluded"] == {"too_long": 1}
    file = tmp_path / "config" / "my_data.py"
    file.write_text(FILE + "# edited\n")
    with pytest.raises(ValueError, match=r"my_data.py:problems was edited after the data was planned"):
        prepare(spec, tmp_path / "again", fetch=fetch, own_files=tmp_path / "config")
    assert planned(own_preset).source_sha256 != spec.source_sha256


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("my_data.py:wrong", r"row 1 of train: must be {'messages': \[{'role': 'user'.*, not {'messages': '1 \+ 1'"),
        ("my_data.py:none", "'my_data.py:none': gives no row of 'train'"),
        ("my_data.py", r"names no function: write 'my_data.py:problems' \(a file\)"),
    ],
)
def test_wrong_rows_and_functions(tmp_path, function, message):
    (tmp_path / "my_data.py").write_text(FILE)
    with pytest.raises(ValueError, match=message):
        own_problems(function, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("my_data.py:problems", "no_data.py:problems", r"own.yaml: tasks.math.data.source: .*there is no file"),
        ("max_prompt_tokens: 300}", "max_prompt_token: 3}", r"tasks.math.data.max_prompt_token: unknown key"),
        ("my_data.py:problems", "deepscale", r"tasks.math.data: .*deepscaler"),
    ],
)
def test_mistakes_of_the_configuration(own_preset, old, new, message):
    text = own_preset[1].read_text()
    assert old in text
    own_preset[1].write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=message):
        load_preset(*own_preset)
