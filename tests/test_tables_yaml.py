"""A table of scores that a user writes in YAML alone, and what is said of a mistake in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from dara.analysis.tables import build_table, render_table
from dara.loading import ConfigurationError, load_preset
from dara.table_options import ScoreTable
from project import ROOT
from scored_frames import entry
from synthetic import experiment, simulate, view

MINE = """
table: scores
title: Format at {step}
note: Format alone.
step: best of average_format
spread: hierarchical
metrics:
  average_format: {title: Format, best: highest, decimals: 3}
  reward/format/mean: {title: Reward, unit: plain, decimals: 2, window: 5}
"""


def tool_main(directory: Path) -> Path:
    """The file of an experiment in a copy of config/."""
    shutil.copytree(ROOT / "config", directory / "config")
    return directory / "config/experiments/tool_main.yaml"


def test_a_table_of_scores_needs_no_code(tmp_path):
    mine = ScoreTable.model_validate(yaml.safe_load(MINE))
    made = view(simulate(), experiment())
    table = build_table(mine, made)
    assert table.title == f"Format at the best of average_format step (tool_main, laptop-base, {made.source})"
    assert table.display == ["Method", "n", "Format", "Reward"]
    setting = made.settings[0]
    for method in ("gdpo", "dara_sym"):
        curve = {step: made.score("average_format", method, setting, step).value for step in range(10, 81, 10)}
        row = table.frame[table.frame["method"] == method].iloc[0]
        assert row["step"] == max(curve, key=lambda step: (curve[step], -step))
        assert row["Format"].startswith(f"{100 * max(curve.values()):.3f}")
    render_table(table, tmp_path / "mine")
    path = tool_main(tmp_path)
    path.write_text(
        path.read_text().replace("  runs: runs\n", f"  runs: runs\n  mine: {json.dumps(yaml.safe_load(MINE))}\n")
    )
    assert (
        load_preset(tmp_path, tmp_path / "config/presets/laptop.yaml").experiments["tool_main"].tables["mine"] == mine
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spred": "sd"}, "tables.mine.spred: unknown key; did you mean 'spread'?"),
        ({"spread": "range"}, "tables.mine.spread: input should be 'sd', 'seeds'"),
        ({"step": "first"}, "tables.mine.step: must be a step of the authors' training, last, each, unstated or"),
        (
            {"step": "best of acc"},
            "tables.mine: step: 'best of acc' needs that metric among metrics, with its key best",
        ),
        ({"step": "each", "spread": "sd"}, "tables.mine: step: each has both intervals: it goes with spread"),
        ({"sets": {"live": "Live"}, "differences": {"grpo": "gdpo"}}, "tables.mine: a table has only one of sets"),
        ({"metrics": {}}, "tables.mine.metrics: dictionary should have at least 1 item"),
        ({"metrics": {"acc": {"titel": "A"}}}, "tables.mine.metrics.acc.titel: unknown key; did you mean 'title'?"),
        ({"metrics": {"acc": 3}}, "tables.mine.metrics.acc: input should be a valid dictionary"),
        ({"table": "score"}, "tables.mine: must be the name of a table, or a mapping with `table: scores`"),
    ],
)
def test_a_mistake_in_a_table_of_scores_is_named_with_file_and_key(tmp_path, change, message):
    path = tool_main(tmp_path)
    content = yaml.safe_load(path.read_text())
    content["tables"]["mine"] = yaml.safe_load(MINE) | change
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigurationError) as error:
        load_preset(tmp_path, tmp_path / "config/presets/laptop.yaml")
    assert f"{path}: {message}" in str(error.value)
    with pytest.raises(ValidationError):
        ScoreTable.model_validate(yaml.safe_load(MINE) | change)


def test_a_table_of_scores_is_no_name(tmp_path):
    assert entry("tool_step100").step == 100
    path = tool_main(tmp_path)
    path.write_text(path.read_text().replace("  runs: runs\n", "  runs: scores\n"))
    with pytest.raises(ConfigurationError, match=r"tables\.runs: a table of scores is a mapping"):
        load_preset(tmp_path, tmp_path / "config/presets/laptop.yaml")
