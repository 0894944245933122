"""The authors' numbers: every file obeys the schema, and what can be recomputed from single runs agrees with what was printed."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dara.analysis.crossing import first_crossing
from dara.analysis.frames import FrameError
from dara.analysis.view_published import PublishedRow, read_published
from dara.analysis.view_runs import curve_over_runs
from project import ROOT

DATA = ROOT / "results/published/data"
SMALL, LARGE = "Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct"
R1_SMALL, QWEN3, R1_LARGE = "DeepSeek-R1-Distill-Qwen-1.5B", "Qwen3-4B-Instruct-2507", "DeepSeek-R1-Distill-Qwen-7B"
FIRST_STEP = "first_step/format/0.8"
SIX_DECIMALS_OF_PERCENT = 1.01e-8  # a mean of values rounded to 1e-6 %, rounded again
TWO_DECIMALS_OF_PERCENT = 0.5001e-4
FIRST_STEPS = {  # by seed 0, 1, 2, 4, 5
    "grpo": [37, 43, 34, 31, 31],
    "gdpo": [18, 19, 75, 16, 65],
    "dara_sym": [14, 16, 15, 13, 29],
    "dara_asym": [15, 14, 13, 13, 16],
}


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return read_published(DATA)


def rows(frame: pd.DataFrame, **equal) -> pd.DataFrame:
    for column, value in equal.items():
        frame = frame[frame[column].eq(value).fillna(False)]
    assert len(frame), equal
    return frame


def number(frame: pd.DataFrame, **equal) -> float:
    chosen = rows(frame, **equal)
    assert len(chosen) == 1, chosen
    return float(chosen["value"].iloc[0])


def over_seeds(frame: pd.DataFrame, file: str, **equal) -> pd.DataFrame:
    """The rows over seeds, and those of base models, which have one evaluation and no seed."""
    return frame[frame["seed"].isna()].pipe(rows, file=file, **equal)


def beside(shown: pd.DataFrame, stored: pd.DataFrame, *by: str, tolerance: float = 0.0) -> pd.DataFrame:
    """The rows of one file that the other has too, as `*_stored`, and in `unlike` whether the numbers differ."""
    both = shown.merge(stored, on=["method", "metric", *by], suffixes=("", "_stored"), validate="many_to_one")
    return both.assign(unlike=(both["value"] - both["value_stored"]).abs() > tolerance)


# The files


def test_every_file_contradiction_and_metric_is_described(published):
    page = (ROOT / "docs/published.md").read_text()
    files = {path.stem for path in DATA.iterdir()}
    assert set(published["file"]) == files == set(re.findall(r"^\| `(\w+)\.csv` \|", page, re.MULTILINE))
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 1.5e6
    assert len(published) > 7000
    listed = [int(n) for n in re.findall(r"^\*\*(\d+)\. ", page, re.MULTILINE)]
    noted = {int(n) for note in published["note"] for n in re.findall(r"Contradiction (\d+)", note)}
    assert listed == list(range(1, 16))
    assert noted == set(listed) - {8}  # how many models there are is no number in a file
    named = published.loc[published["unit"] != "setting", "metric"]
    for metric in {re.sub(r"/0\.\d+", "/<threshold>", name) for name in named.unique()}:
        quantity, _, statistic = metric.partition(":")
        assert f"`{quantity}`" in page, metric
        assert not statistic or f"`:{statistic}`" in page, metric


# Tool calling: groups to the average, runs to the aggregates


@pytest.mark.parametrize("file", ["tool_step60", "tool_step100"])
def test_the_average_is_the_mean_of_the_three_groups(published, file):
    wide = rows(published, file=file).pivot(
        index=["model", "method", "step", "seed", "n_seeds"], columns="metric", values="value"
    )
    for kind in ("accuracy", "format"):
        groups = wide[[f"{kind}/{group}" for group in ("live", "non_live", "multi_turn")]].mean(axis=1, skipna=False)
        assert groups.notna().sum() == {"tool_step60": 23, "tool_step100": 65}[file]
        known = groups.dropna()
        np.testing.assert_allclose(known, wide.loc[known.index, f"average_{kind}"], atol=SIX_DECIMALS_OF_PERCENT)


@pytest.mark.parametrize(("file", "count"), [("tool_step60", 56), ("tool_step100", 96)])
def test_mean_and_sd_over_runs_are_the_published_aggregates(published, file, count):
    runs, aggregates = rows(published, file=file), over_seeds(published, file)
    runs, aggregates = runs[runs["seed"].notna()], aggregates[aggregates["method"] != "base"]
    if file == "tool_step60":  # of DARA-Asym only two averages of the project page are published, and no run
        aggregates = aggregates[aggregates["method"] != "dara_asym"]
    assert len(aggregates) == count
    place = ["model", "method", "metric"]
    found = runs.sort_values("seed").groupby(place)
    found = found.agg(value=("value", "mean"), sd=("value", "std"), seeds=("seed", lambda all: " ".join(map(str, all))))
    found, stored = found.loc[pd.MultiIndex.from_frame(aggregates[place])], aggregates.set_index(place)
    assert found["seeds"].tolist() == stored["seeds"].tolist()
    columns = ["value", "sd"]  # one run has no SD
    np.testing.assert_allclose(found[columns], stored[columns], rtol=0, atol=SIX_DECIMALS_OF_PERCENT)


def test_the_page_prints_the_aggregates_but_for_gd2po_hard(published):
    """Contradiction 2 is the only place where the page's step-100 table is not a rounded aggregate of stored runs."""
    page = rows(published, file="tool_step100_page")
    both = beside(page, over_seeds(published, "tool_step100"), "model", tolerance=TWO_DECIMALS_OF_PERCENT)
    assert len(both) == len(page)
    unlike, same = both[both["unlike"]], both[~both["unlike"]]
    assert unlike["note"].str.contains("Contradiction 2").all()
    assert (
        same[["n_seeds", "seeds"]].to_numpy().tolist() == same[["n_seeds_stored", "seeds_stored"]].to_numpy().tolist()
    )
    assert unlike[["model", "method", "metric", "value", "value_stored"]].round(4).sort_values(
        "metric"
    ).to_numpy().tolist() == [
        [SMALL, "gd2po_hard", "average_accuracy", 0.5013, 0.507],
        [SMALL, "gd2po_hard", "average_format", 0.9552, 0.9635],
    ]


def test_a_table_over_five_seeds_rests_on_fewer_where_the_note_says_so(published):
    table = over_seeds(published, "tool_step100", metric="average_format")
    table = table[(table["n_seeds"] < 5) & (table["method"] != "base")]
    assert dict(zip(zip(table["model"], table["method"], strict=True), table["seeds"], strict=True)) == {
        (SMALL, "dvao"): "0 2 4",
        (SMALL, "gd2po_hard"): "0 1 4",
        (LARGE, "dvao"): "0 1 2",
        (LARGE, "gd2po_hard"): "0 1 2",
        (LARGE, "dara_asym"): "0 1 2 4",
    }
    assert table["note"].str.startswith("Contradiction 1").all()


@pytest.mark.parametrize(
    ("method", "kept", "mean", "sd", "left_out"),
    [("dvao", [0, 2], 0.6902, 0.4442, 0.178), ("gd2po_hard", [0, 1], 0.6798, 0.4858, 0.119)],
)
def test_the_unfiltered_means_contain_the_run_that_the_table_leaves_out(published, method, kept, mean, sd, left_out):
    """The mean over three seeds and two of them give the third; the printed SD is then that of all three."""
    runs = rows(published, file="tool_step100", model=SMALL, method=method, metric="average_format")
    two = runs[runs["seed"].isin(kept)]["value"].tolist()
    unfiltered = rows(published, file="tool_step100_all_seeds", method=method, metric="average_format").iloc[0]
    assert (unfiltered["value"], unfiltered["sd"], unfiltered["seeds"]) == (mean, sd, "0 1 2")
    third = 3 * mean - sum(two)
    assert third == pytest.approx(left_out, abs=1e-3)
    assert np.std([*two, third], ddof=1) == pytest.approx(sd, abs=2e-4)  # the rounding of the mean counts three times


def test_the_curves_of_the_page_are_the_reruns_but_for_gd2po_hard_and_step_100(published):
    reruns, page = (rows(published, file=file) for file in ("tool_checkpoints_reruns", "tool_checkpoints"))
    both = beside(page, reruns, "step", tolerance=TWO_DECIMALS_OF_PERCENT)
    assert set(both.loc[both["unlike"], ["method", "step"]].itertuples(index=False, name=None)) == {
        *(("gd2po_hard", step) for step in range(10, 101, 10)),
        *((method, 100) for method in ("grpo", "gdpo", "dvao", "dara_sym")),
    }


def test_the_selected_run_of_gd2po_hard_is_also_in_the_step_100_table(published):
    selected = rows(published, file="tool_checkpoints_reruns", method="gd2po_hard", step=100)
    both = beside(selected, rows(published, file="tool_step100", model=SMALL, seed=4))
    assert both["unlike"].tolist() == [False] * 3


def test_step_100_of_the_curves_is_the_table_and_step_60_the_step_60_runs(published):
    curves = rows(published, file="tool_checkpoints")
    last, early = rows(curves, step=100), rows(curves, step=60)
    both = beside(last, rows(published, file="tool_step100_page", model=SMALL))
    assert (len(both), both["unlike"].any()) == (len(last), False)
    both = beside(early, over_seeds(published, "tool_step60", model=SMALL), tolerance=TWO_DECIMALS_OF_PERCENT)
    assert len(both) == len(early)
    unlike = both.loc[both["unlike"], ["method", "metric"]].to_numpy().tolist()
    assert sorted(unlike) == [["gd2po_hard", "average_accuracy"], ["gd2po_hard", "average_format"]]
    baselines = early[~early["method"].str.startswith("dara")]
    assert baselines.groupby("metric")["value"].max().to_dict() == {"average_accuracy": 0.505, "average_format": 0.9011}


def test_two_of_three_rewards_are_the_step_100_table(published):
    two = rows(published, file="three_rewards", experiment="tool_main")
    both = beside(two, over_seeds(published, "tool_step100", model=SMALL), tolerance=TWO_DECIMALS_OF_PERCENT)
    assert both["unlike"].tolist() == [False] * len(two) == [False] * 6
    three = rows(published, file="three_rewards", experiment="three_rewards")
    assert number(three, method="dara_sym", metric="format/multi_turn") == 0.923
    assert number(three, method="gdpo", metric="average_accuracy:low") == 0.5046


# Training curves and first steps


def test_the_median_curves_of_gdpo_and_dara_asym_reach_point_8_at_19_and_14(published):
    """From the series of the single runs, all five seeds; the last three steps lack one value."""
    series = rows(published, file="training_rewards", metric="reward/format/mean")
    series = series[series["step"] < 98].astype({"step": int})
    curves = {method: curve_over_runs(runs.assign(run_id=runs["seeds"])) for method, runs in series.groupby("method")}
    assert all((curve["n"] == 5).all() for curve in curves.values())
    first = {method: first_crossing(curve["middle"], 0.8) for method, curve in curves.items()}
    assert first == {"gdpo": 19, "dara_asym": 14}
    assert round(1 - 14 / 19, 2) == 0.26
    stated = rows(published, file="first_steps", metric=f"{FIRST_STEP}:median_curve").set_index("method")["value"]
    assert stated.to_dict() == {"grpo": 34, "gdpo": 19, "dara_sym": 15, "dara_asym": 14}


def test_medians_and_quartiles_of_the_page_are_those_of_the_runs(published):
    curves = rows(published, file="training_rewards")
    for method in ("gdpo", "dara_asym"):
        own = rows(curves, method=method, metric="reward/format/mean")
        by_step = own.pivot(index="step", columns="seed", values="value").dropna()
        assert len(by_step) == {"gdpo": 100, "dara_asym": 99}[method]
        assert np.array_equal(by_step * 2048, (by_step * 2048).round())  # shares of 2,048 responses
        for name, quantile in (("median", 0.5), ("q25", 0.25), ("q75", 0.75)):
            drawn = rows(curves, method=method, metric=f"reward/format/mean:{name}").set_index("step")["value"]
            np.testing.assert_allclose(by_step.quantile(quantile, axis=1), drawn[by_step.index], atol=0.50001e-4)


def test_first_steps_by_seed(published):
    """The published first steps, and for the two methods with published series the same ones from the series."""
    stated = rows(published, file="first_steps", model=SMALL, metric=FIRST_STEP).sort_values("seed")
    for method, steps in FIRST_STEPS.items():
        assert rows(stated, method=method)["value"].tolist() == steps
    curves = rows(published, file="training_rewards", metric="reward/format/mean")
    for method in ("gdpo", "dara_asym"):
        runs = rows(curves, method=method).dropna(subset=["value"]).sort_values("step").groupby("seed")["value"]
        assert [first_crossing(series, 0.8) for _, series in runs] == FIRST_STEPS[method]
    means = {method: float(np.mean(steps)) for method, steps in FIRST_STEPS.items()}
    assert means == {"grpo": 35.2, "gdpo": 38.6, "dara_sym": 17.4, "dara_asym": 14.2}


def test_runs_that_never_got_there_have_no_first_step(published):
    never = rows(published, file="first_steps")
    never = never[never["value"].isna()]
    assert set(zip(never["method"], never["seed"], strict=True)) == {("dvao", 1), ("dvao", 2), ("gd2po_hard", 2)}
    assert never["note"].str.contains("not reached within 100 steps").all()


def test_final_formats_agree_with_the_series_and_the_step_100_runs(published):
    final = rows(published, file="final_formats")
    last = rows(published, file="training_rewards", metric="reward/format/mean", step=100, method="gdpo")
    both = beside(last, rows(final, model=SMALL), "seed")
    assert (len(both), both["unlike"].any()) == (len(last), False)
    runs = rows(published, file="tool_step100").merge(final, on=list(PublishedRow.key), suffixes=("", "_final"))
    assert len(runs) == 2 * 43
    np.testing.assert_allclose(runs["value"], runs["value_final"], atol=0.50001e-6)
    dvao = rows(final, model=SMALL, method="dvao", seed=2).set_index("metric")["value"]
    assert dvao.to_dict() == {"reward/format/mean": 0.392578125, "validation/format": 0.9625}


def test_three_medians_of_densities_need_an_even_number_of_runs(published):
    medians = rows(published, file="training_densities", metric="density/format:median")
    groups = medians["value"] * 512
    half = medians[(groups - groups.round()).abs() > 0.4]
    assert len(half) == 3
    assert set(half["method"]) == {"grpo", "gdpo"}
    assert half["note"].str.contains("Contradiction 12").all()


# Group size


def test_group_size_crossings_are_the_first_steps_at_4_and_not_monotone(published):
    crossings = rows(published, file="group_size_crossings").sort_values("seed")
    by_cell = {
        cell: [None if np.isnan(value) else int(value) for value in one["value"]]
        for cell, one in crossings.groupby(["method", "group_size"])
    }
    assert {method: by_cell[method, 4] for method in FIRST_STEPS} == {m: steps[:3] for m, steps in FIRST_STEPS.items()}
    assert by_cell["grpo", 8] == [57, 41, None]
    assert by_cell["gdpo", 8] == [90, 29, None]
    assert by_cell["dara_sym", 32] == [13, 12]
    late = {cell: np.median([101 if step is None else step for step in steps]) for cell, steps in by_cell.items()}
    assert [late["grpo", size] for size in (4, 8, 16, 32)] == [37, 57, 34, 50]
    assert [late["gdpo", size] for size in (4, 8, 16, 32)] == [19, 90, 17, 14]


def test_group_size_densities_are_counts_of_groups_and_halves_only_where_two_runs_are(published):
    densities = rows(published, file="group_size_densities")
    settings = rows(published, file="hyperparameters", experiment="group_size", metric="prompts_per_step")
    prompts = dict(zip(settings["group_size"], settings["value"], strict=True))
    twice = 2 * densities["value"] * densities["group_size"].map(prompts)
    np.testing.assert_allclose(twice, twice.round(), atol=1.1e-3)
    half = twice.round() % 2 == 1
    assert set(densities.loc[half, "n_seeds"]) == {2}
    assert half.sum() == 44
    assert set(densities.loc[densities["n_seeds"] == 2, "method"]) == {"dara_asym", "dara_sym"}
    assert {size * int(count) for size, count in prompts.items()} == {2048}


# Weights and energies


def test_weights_are_min_of_5_and_the_root_of_the_density_ratio(published):
    wide = rows(published, file="weights").pivot(index=["seed", "step"], columns="metric", values="value")
    assert len(wide) == 40
    active = wide[["active_groups/correctness", "active_groups/format"]].to_numpy()
    expected = np.minimum(5, np.sqrt(active.max(axis=1, keepdims=True) / active))
    np.testing.assert_allclose(wide[["weight/correctness", "weight/format"]], expected, rtol=0, atol=1e-9)
    assert (expected == 5).sum() == 5
    assert (expected[:, 0] > 1).sum() == 3  # steps at which format is the denser reward


@pytest.mark.parametrize(
    ("model", "at_40", "cap", "largest", "middle"),
    [(R1_SMALL, 0.448, 59, 0.0397, 0.392), (QWEN3, 0.457, 62, 0.0335, 0.492), (R1_LARGE, 0.311, 48, 0.0336, 0.492)],
)
def test_energy_ratios(published, model, at_40, cap, largest, middle):
    energy = rows(published, file="energy_ratios", model=model)
    steps = energy[energy["step"].notna() & (energy["unit"] != "step")]
    wide = steps.pivot(index="step", columns=["method", "metric"], values="value")
    assert len(wide) == 100
    correctness, length = (wide["dara_sym", f"density/{reward}"] for reward in ("correctness", "length"))
    densest = np.maximum(correctness, length)
    of_correctness, of_length = (np.minimum(5, np.sqrt(densest / density)) for density in (correctness, length))
    np.testing.assert_allclose(wide["gdpo", "energy_ratio"], length / correctness, atol=2e-6)
    np.testing.assert_allclose(wide["dara_sym", "weight/length"], of_length, atol=2e-5)
    expected = of_length**2 * length / (of_correctness**2 * correctness)
    np.testing.assert_allclose(wide["dara_sym", "energy_ratio"], expected, atol=2e-5)
    assert round(wide.loc[40, ("gdpo", "energy_ratio")], 3) == at_40
    assert wide.loc[40, ("dara_sym", "energy_ratio")] == 1
    bound = wide.index[wide["dara_sym", "weight/length"] == 5]
    assert bound.tolist() == list(range(cap, 101))
    assert number(energy, metric="first_step/cap") == cap
    assert number(energy, metric="energy_ratio:max_after_cap") == largest
    assert wide.loc[bound, ("gdpo", "energy_ratio")].max() == pytest.approx(largest, abs=0.501e-4)
    assert round(wide.loc[bound, ("dara_sym", "energy_ratio")].median(), 3) == middle
    assert number(energy, metric="energy_ratio:median_after_cap") == pytest.approx(middle, abs=0.501e-3)


# Math


def test_stable_crossings_of_higher_thresholds_are_later(published):
    """The 41 to 65 percent themselves are in the table of thresholds (test_tables.py)."""
    crossings = rows(published, file="thresholds")
    assert len(crossings) == 72
    for _, one in crossings.groupby(["model", "method"]):
        assert one.sort_values("metric")["value"].is_monotonic_increasing


def test_the_held_out_figure_is_the_step_50_table_but_for_two_swapped_accuracies(published):
    figure, table = rows(published, file="heldout"), rows(published, file="math_step50", model=R1_LARGE)
    both = beside(figure, table, "step")
    assert len(both) == 2 * 7
    unlike = both[both["unlike"]].set_index(["method", "metric"])
    assert unlike["note"].str.contains("Contradiction 15").all()
    assert unlike["value"].to_dict() == {("dvao", "acc"): 0.5831, ("dara_asym", "acc"): 0.5815}
    assert unlike["value_stored"].to_dict() == {("dvao", "acc"): 0.5815, ("dara_asym", "acc"): 0.5831}


def test_first_checkpoints_below_five_percent(published):
    exceed = rows(published, file="heldout", metric="exceed")
    low = exceed[exceed["value"] <= 0.05].groupby("method")["step"].min().to_dict()
    assert low == {"dara_asym": 50, "dara_sym": 50, "gdpo": 70, "gd2po_hard": 70}
    for row in rows(published, file="heldout", metric="first_checkpoint/exceed/0.05").itertuples():
        assert row.value == low[row.method]
    gdpo = rows(exceed, method="gdpo").sort_values("step")["value"].tolist()
    assert gdpo == [0.3188, 0.2122, 0.1423, 0.1004, 0.0682, 0.0522, 0.0388, 0.0446, 0.0538, 0.0535]


def test_math_tables(published):
    table = rows(published, file="math_step50")
    assert len(table) == 3 * 7 * 3
    wide = table.pivot(index=["model", "method"], columns="metric", values="value")
    assert (wide["joint"] <= np.minimum(wide["acc"], 1 - wide["exceed"])).all()
    fixed = rows(published, file="fixed_weights")
    assert number(fixed, method="static_sym", metric="exceed") == 0.0087
    assert fixed["step"].isna().all()
    other = rows(table, model=R1_SMALL)
    assert number(fixed, method="dara_sym", metric="acc") != number(other, method="dara_sym", metric="acc")
    extended = rows(published, file="extended")
    assert number(extended, model="Qwen3-4B-Thinking-2507", method="grpo", metric="exceed") == 0.0186


def test_hyperparameters(published):
    settings = rows(published, file="hyperparameters")
    for experiment, found in {
        "tool_main": {"learning_rate": 1e-6, "prompts_per_step": 512},
        "math_main": {"clip_high": 0.28, "group_size": 16, "evaluation/questions": 1559},
        "three_rewards": {"length_limit_words": 16},
    }.items():
        assert {name: number(settings, experiment=experiment, metric=name) for name in found} == found
    assert number(settings, experiment="tool_main", metric="zero_density_weight", method="dara_sym") == 5
    assert number(settings, experiment="math_main", metric="zero_density_weight", method="dara_sym") == 1


# Bad input

GOOD = {"experiment": "tool_main", "model": SMALL, "method": "gdpo", "seed": "0", "group_size": "4", "step": "100",
        "metric": "average_format", "unit": "fraction", "value": "0.97", "sd": "", "n_seeds": "1", "seeds": "0",
        "source": "project page, index.html", "note": ""}  # fmt: skip
OVER_SEEDS = {"seed": "", "n_seeds": "2", "seeds": "0 1"}
A_STEP = {"metric": FIRST_STEP, "unit": "step", "value": "37", "step": "37"}


def written(tmp_path: Path, *records: dict[str, str], header: list[str] | None = None) -> Path:
    header = header or list(PublishedRow.model_fields)
    path = tmp_path / "numbers.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *([record.get(name, "") for name in header] for record in records)])
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        {},
        OVER_SEEDS | {"sd": "0.01"},
        OVER_SEEDS | {"n_seeds": "", "seeds": "", "note": "runs not known"},
        A_STEP,
        A_STEP | {"value": "", "step": "", "note": "not reached within 100 steps"},
        {"value": "1"},
        {"unit": "reward", "metric": "validation/correctness", "value": "-2.5"},
        {"unit": "setting", "metric": "lr_schedule", "step": "", "value": "", "note": "constant"} | OVER_SEEDS,
    ],
)
def test_good_rows(tmp_path, change):
    assert len(read_published(written(tmp_path, GOOD | change))) == 1


def test_types_and_order(tmp_path):
    other = GOOD | {"seed": "3", "seeds": "3"}
    frame = read_published(written(tmp_path, other, GOOD))
    assert frame["seed"].tolist() == [3, 0]
    assert [*map(str, frame.dtypes[["note", "step", "value", "sd"]])] == ["str", "Int64", "float64", "float64"]
    assert frame["note"].tolist() == ["", ""]
    assert frame.columns.tolist() == ["file", *PublishedRow.model_fields]
    assert frame["file"].tolist() == ["numbers", "numbers"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experiment": "tool"}, "column experiment: 'tool' is not one of tool_main, group_size"),
        ({"method": "GDPO"}, "column method: 'GDPO' is not one of base, grpo"),
        ({"model": "Qwen"}, "column model: 'Qwen' is not one of"),
        ({"unit": "percent"}, "column unit: 'percent' is not one of fraction, step"),
        ({"metric": ""}, "column metric: empty or NaN; it needs a value"),
        ({"metric": "Average Format"}, "column metric: 'Average Format' is not a metric such as"),
        ({"source": ""}, "column source: empty or NaN; it needs a value"),
        ({"value": "97.11"}, r"column value: 97.11 is not a share in \[0, 1\]"),
        ({"value": "-0.1"}, r"column value: -0.1 is not a share in \[0, 1\]"),
        ({"value": "nan"}, "column value: nan is not a finite number"),
        ({"value": "inf"}, "column value: inf is not a finite number"),
        ({"value": ""}, "column value: empty, and the note does not say why"),
        ({"value": "many"}, "column value: 'many' is not a number"),
        ({"unit": "count", "value": "1.5"}, "column value: 1.5 is not a whole number"),
        ({"unit": "ratio", "value": "-1"}, "column value: -1.0 is not a quotient or a weight, at least 0"),
        ({"step": ""}, "column step: empty, and the note does not say why"),
        ({"step": "10.5"}, "column step: '10.5' is not an integer"),
        ({"step": "-1"}, "column step: -1 is less than 0"),
        ({"group_size": "0"}, "column group_size: 0 is less than 1"),
        ({"sd": "-0.1"}, "column sd: -0.1 is less than 0"),
        (A_STEP | {"step": "38"}, "column step: 38 does not repeat the value 37.0"),
        ({"unit": "setting"}, r"column step: a setting belongs to no step \(given: 100\)"),
        ({"n_seeds": "5"}, "column seeds: a row of seed 0 has n_seeds 1 and the seeds 0"),
        (OVER_SEEDS | {"n_seeds": "5"}, r"column n_seeds: 5, but seeds lists 2 \(0 1\)"),
        (OVER_SEEDS | {"seeds": "0/1"}, "column seeds: '0/1' is not a list of distinct seeds"),
        (OVER_SEEDS | {"seeds": "1 1"}, "column seeds: '1 1' is not a list of distinct seeds"),
        (OVER_SEEDS | {"n_seeds": ""}, "column n_seeds: empty, and the note does not say why"),
    ],
)
def test_bad_rows_are_named(tmp_path, change, message):
    other = GOOD | {"seed": "1", "seeds": "1"}
    with pytest.raises(FrameError, match=rf"numbers\.csv: row 3, {message}"):
        read_published(written(tmp_path, other, GOOD | change))


@pytest.mark.parametrize("change", [{}, A_STEP])
def test_a_repeated_key(tmp_path, change):
    """Where the value is a step, another step is not another quantity."""
    later = A_STEP | {"value": "40", "step": "40"} if change else {"value": "0.5"}
    with pytest.raises(FrameError, match=r"numbers\.csv: row 3 repeats the key of row 2: .*gdpo"):
        read_published(written(tmp_path, GOOD | change, GOOD | later))


def test_bad_columns(tmp_path):
    names = list(PublishedRow.model_fields)
    for header, message in [
        (names[:-1], "column 'note' is missing; a file of published numbers has the columns experiment, model"),
        ([*names, "note"], "'note' stands twice in a file of published numbers"),
        ([*names, "ci_low"], "'ci_low' is not a column of a file of published numbers"),
    ]:
        with pytest.raises(FrameError, match=rf"numbers\.csv: {message}"):
            read_published(written(tmp_path, GOOD, header=header))


def test_bad_files(tmp_path):
    with pytest.raises(FrameError, match="no published numbers"):
        read_published(tmp_path)
    path = written(tmp_path, GOOD) / "numbers.csv"
    path.write_text(path.read_text() + "tool_main,short\n")
    with pytest.raises(FrameError, match=r"numbers\.csv: row 3 has 2 cells; the header has 14 columns"):
        read_published(tmp_path)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(FrameError, match=r"numbers\.csv: not a CSV file in UTF-8"):
        read_published(tmp_path)
    path.write_text("")
    with pytest.raises(FrameError, match=r"numbers\.csv: column 'experiment' is missing"):
        read_published(tmp_path)
