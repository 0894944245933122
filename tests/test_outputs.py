"""Which tables and figures a preset plans: what it does not evaluate is absent, not a job that must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from dara.analysis.figures import FIGURES
from dara.loading import ConfigurationError, load_preset
from dara.outputs import CURVES, Outputs
from dara.table_options import ScoreTable, table_name
from project import ROOT


def outputs(preset: str) -> Outputs:
    return Outputs.of_preset(load_preset(ROOT, ROOT / f"config/presets/{preset}.yaml"), ROOT, Path("results") / preset)


def test_only_presets_with_validation_rows_have_their_curves_and_only_the_five_sets_a_table_of_sets():
    paper, laptop = outputs("paper"), outputs("laptop")
    assert {"validation", "math_validation"} <= set(paper.ids("figures"))
    assert "math_step50_sets" in paper.ids("tables")
    assert not {"validation", "math_validation"} & set(laptop.ids("figures"))
    assert "math_step50_sets" not in laptop.ids("tables")
    assert {"tool_rates", "math_rates"} <= set(paper.ids("tables")) & set(laptop.ids("tables"))
    assert "results/paper/figures/math_validation.svg" in paper.files
    assert not [file for file in laptop.files if "validation" in file]
    with pytest.raises(ConfigurationError, match=r"preset laptop has no figures\.validation; it has overview"):
        laptop.owner("figures", "validation")
    assert "validation" in Outputs.of_published(ROOT, Path("results/published")).ids("figures")


def test_the_paper_preset_draws_every_published_table_and_a_shared_id_is_one_module():
    ours, published = outputs("paper").experiments, Outputs.of_published(ROOT, Path("results/published")).experiments
    assert set(ours) == set(published)
    for name, theirs in published.items():
        assert {*map(table_name, theirs.tables.values())} <= {*map(table_name, ours[name].tables.values())}, name
        assert [id for id, made in theirs.figures.items() if ours[name].figures.get(id, made) != made] == []
        for output, made in theirs.tables.items():
            drawn = ours[name].tables.get(output, made)
            assert table_name(drawn) == table_name(made)
            if isinstance(made, ScoreTable):
                assert drawn.title == made.title
                assert made.metrics == {metric: drawn.metrics[metric] for metric in made.metrics}


def test_a_published_crossing_of_a_reward_has_a_threshold_of_ours():
    ours, published = outputs("paper").experiments, Outputs.of_published(ROOT, Path("results/published")).experiments
    assert ours["math_main"].thresholds == {"length": (0.8, 0.9, 0.95, 0.97, 0.98, 0.99)}
    for name, theirs in published.items():
        for reward, levels in theirs.thresholds.items():
            assert set(levels) <= set(ours[name].thresholds[reward]), (name, reward)


def test_what_needs_something_of_a_preset_is_a_figure():
    assert set(CURVES) <= {*FIGURES}
