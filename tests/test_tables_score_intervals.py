"""The table of scores with intervals over seeds and questions: its cells, order, notes and errors."""

from __future__ import annotations

import pandas as pd
import pytest

from dara.analysis.frames import rows_to_frame
from dara.analysis.tables import TABLES
from dara.analysis.tables.render import render_table
from synthetic import experiment, simulate, view

PAIR = ("gdpo", "dara_sym")
build = TABLES["score_intervals"].build


def frames(**changes: object) -> dict[str, pd.DataFrame]:
    """Two methods on tool calling, with intervals that are easy to read."""
    made = simulate(seeds=(100, 101, 102), steps=40, methods=PAIR, **changes)
    row = {"experiment": "tool_main", "model": "laptop-base", "group_size": 4, "engine": "trl", "step": 40}
    row |= {"benchmark": "laptop_tools", "metric": "average_accuracy", "n_seeds": 3, "n_questions": 200}
    wide, narrow = {"t_low": 0.1, "t_high": 0.7}, {"low": 0.3, "high": 0.5}
    rows = [
        row | {"method": "gdpo", "value": 0.4} | wide | narrow,
        row | {"method": "dara_sym", "value": 0.45, "n_seeds": 1, "low": 0.38, "high": 0.52},
        row | {"method": "dara_sym", "baseline": "gdpo", "value": 0.05, "t_low": -0.06, "t_high": 0.16} | {
            "low": 0.01, "high": 0.09},
    ]  # fmt: skip
    return made | {"score_intervals": rows_to_frame(rows, "score_intervals")}


def test_both_intervals_and_both_counts_stand_beside_the_mean():
    table = build(view(frames(), experiment(methods=PAIR)))
    assert table.display == [
        *("Step", "Score", "Method", "Seeds", "Questions", "Mean (%)", "t over seeds", "seeds and questions")
    ]
    assert table.frame[table.display].to_numpy().tolist() == [
        ["40", "Average Accuracy", "GDPO", "3", "200", "40.0", "[10.0, 70.0]", "[30.0, 50.0]"],
        ["40", "Average Accuracy", "DARA-Sym", "1", "200", "45.0", "–", "[38.0, 52.0]"],
        ["40", "Average Accuracy", "DARA-Sym − GDPO", "3", "200", "+5.0", "[−6.0, 16.0]", "[1.0, 9.0]"],
    ]
    assert table.frame["low"].tolist()[0] == 0.3
    assert table.frame["baseline"].tolist() == ["", "", "gdpo"]
    assert table.notes[0].startswith("At the last step of which all completed runs have scores.")
    assert any("hierarchical bootstrap, 2,000 resamples of seeds, then of questions" in note for note in table.notes)
    assert "Missing: none." in table.notes


def test_settings_have_columns_and_methods_keep_their_order(tmp_path):
    settings = (("small", 4), ("small", 8))
    made = simulate(methods=PAIR, seeds=(100, 101), steps=40, settings=settings)
    table = build(view(made, experiment(methods=("dara_sym", "gdpo"))))
    assert table.display[:2] == ["G", "Step"]
    steps = [step for step in ("10", "20", "30", "40") for _ in range(6)]  # two scores of two methods, and a difference
    assert table.frame[["G", "Step"]].to_numpy().tolist() == [[size, step] for size in "48" for step in steps]
    assert table.frame["Method"].tolist()[:3] == ["DARA-Sym", "GDPO", "DARA-Sym − GDPO"]
    shuffled = {name: frame.sample(frac=1, random_state=3) for name, frame in made.items()}
    first = render_table(table, tmp_path / "a")
    second = render_table(build(view(shuffled, experiment(methods=("dara_sym", "gdpo")))), tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("task", ["tool_calling", "math"])
def test_one_seed_has_no_interval_over_seeds(task, recwarn):
    table = build(view(simulate(task, steps=6, seeds=(100,), methods=PAIR), experiment(task, PAIR)))
    assert set(table.frame["t over seeds"]) == {"–"}
    assert set(table.frame["Seeds"]) == {"1"}
    assert not recwarn.list


def test_nothing_scored_is_an_error_and_what_is_missing_is_named():
    gone = simulate(seeds=(100,), steps=6, methods=PAIR, missing=(("gdpo", 100), ("dara_sym", 100)))
    with pytest.raises(ValueError, match=r"experiment tool_main: no score .* 0 finished of 2 planned runs"):
        build(view(gone, experiment(methods=PAIR)))
    some = simulate(seeds=(100,), steps=6, methods=PAIR, missing=(("gdpo", 100),))
    table = build(view(some, experiment(methods=PAIR)))
    assert table.frame["Method"].unique().tolist() == ["DARA-Sym"]
    assert "Missing: GDPO seed 100." in table.notes
