"""Tables of scores, from what config/ or a user says of them: on made-up runs and on published numbers."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from dara.analysis.compare import score_difference
from dara.analysis.frames import rows_to_frame
from dara.analysis.tables import build_table
from dara.analysis.tables.render import markdown
from dara.analysis.tables.rows import clearly_best
from dara.analysis.view import Estimate, Setting
from dara.analysis.view_published import PublishedView, read_published
from dara.analysis.view_runs import RunsView
from dara.config import Configuration, MethodEntry
from dara.loading import ConfigurationError, load_preset, load_published, read_methods
from dara.table_options import ScoreTable
from project import ROOT
from scored_frames import bfcl_v4, build, cell, laptop_tools, math_five, scored, toolrl_validation
from synthetic import METHODS, experiment, simulate, view

PAIR = ("gdpo", "dara_sym")
SHARES = {"base": 0.1, "gdpo": 0.6, "dara_sym": 0.8}
STATIC = {name: MethodEntry(label=label, color="#000000") for name, label in
          (("static_asym", "Static-Asym"), ("static_sym", "Static-Sym"))}  # fmt: skip
SMALL, LARGE = "Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct"
R1 = "DeepSeek-R1-Distill-Qwen-1.5B"


@pytest.fixture(scope="module")
def theirs():
    """The published tables by file name."""
    rows, methods = read_published(ROOT / "results/published/data"), read_methods(ROOT)
    return {
        output: build_table(made, PublishedView(rows, asked, methods))
        for asked in load_published(ROOT).values()
        for output, made in asked.tables.items()
        if isinstance(made, ScoreTable)
    }


def ours(task: str = "tool_calling", methods=("grpo", "gdpo", "dara_sym", "dara_asym"), **made) -> RunsView:
    return RunsView(simulate(task, methods=methods, **made), experiment(task, methods), METHODS | STATIC, "laptop")


# Published


@pytest.mark.parametrize(
    ("table", "model", "method", "shown"),
    [
        ("tool_step100", SMALL, "grpo", {"Acc Avg.": "48.46 ± 0.36", "Format Multi": "43.24 ± 15.52"}),
        ("tool_step100", SMALL, "dara_sym", {"Acc Avg.": "51.17 ± 0.78"}),
        ("tool_step100", SMALL, "dara_asym", {"Format Avg.": "97.90 ± 0.34"}),
        ("tool_step100", SMALL, "dvao", {"n": "3"}),
        ("tool_step100", LARGE, "dara_asym", {"n": "4"}),
        ("tool_step100", LARGE, "base", {"Format Avg.": "32.77"}),
        ("tool_step60", SMALL, "gdpo", {"Acc Avg.": "50.50 ± 0.47"}),
        ("tool_step60", SMALL, "dara_asym", {"Acc Avg.": "50.69", "Acc Live": "–"}),
        ("math_step50", R1, "base", {"Acc": "48.93", "Exceed": "65.23", "Joint": "27.75"}),
        ("math_step50", "Qwen3-4B-Instruct-2507", "dara_sym", {"Acc": "58.76", "Exceed": "1.69", "Joint": "58.52"}),
        ("extended", "Qwen3-4B-Thinking-2507", "dara_asym", {"Exceed": "0.94"}),
        ("extended", "Qwen3-4B-Instruct-2507", "grpo", {"Acc": "62.99"}),
        ("fixed_weight_scores", R1, "dara_asym", {"Joint": "47.76"}),
        ("fixed_weight_scores", R1, "dara_asym-static_asym", {"Acc": "+1.19"}),
        ("fixed_weight_scores", R1, "dara_sym-static_sym", {"Exceed": "+0.02"}),
        ("three_rewards", SMALL, "gdpo", {"Format 2": "97.11 ± 1.00", "Format 3": "94.39", "Multi-Turn 3": "83.17",
                                          "Length 3": "97.96", "Multi-Turn change": "−8.2", "n 2": "5", "n 3": "3"}),
        ("three_rewards", SMALL, "dara_sym", {"Format 2": "97.55 ± 0.64", "Length 3": "98.72"}),
    ],
)  # fmt: skip
def test_published_scores_as_printed(theirs, table, model, method, shown):
    assert {column: cell(theirs[table], column, Model=model, method=method) for column in shown} == shown


def test_published_tables_say_what_is_missing_and_contradicted(theirs):
    final, early = theirs["tool_step100"], theirs["tool_step60"]
    text = "\n".join(final.notes)
    for part in ("Contradiction 1: seeds 1 and 5 left out", "Contradiction 2: the project page", "Seeds: 0, 1, 2"):
        assert part in text
    missing = "Without a score here: GRPO of Qwen2.5-3B-Instruct, GDPO of Qwen2.5-3B-Instruct"
    assert any(note.startswith(missing) for note in early.notes)
    assert (len(final.frame), len(early.frame)) == (14, 10)
    assert "nan" not in markdown(early)
    assert math.isnan(early.frame.loc[early.frame["method"] == "dara_asym", "accuracy/live"].iloc[0])
    maths = theirs["math_step50"]
    assert not maths.bold
    assert sum(note.startswith("Contradiction 15") for note in maths.notes) == 2
    assert theirs["extended"].display == ["Model", "Method", "n", "Acc", "Exceed"]
    assert theirs["fixed_weight_scores"].frame["step"].isna().all()
    three = theirs["three_rewards"]
    assert "50.46 to 50.63 %, one range for all methods" in three.notes[0]
    assert not any("3B" in note for note in three.notes)
    assert "average_accuracy_3" not in three.frame


# Ours


def test_our_scores_are_at_the_same_share_of_training():
    made = ours()
    half, last = build("tool_step60", made), build("tool_step100", made)
    assert set(half.frame["step"]) == {0, 50}  # 48 of 80 steps; checkpoints every 10
    assert set(last.frame["step"]) == {0, 80}
    assert half.title == "Tool-calling scores at 60 % of training (tool_main, laptop-base, laptop)"
    assert last.display == ["Method", "n", "Acc Avg.", "Format Avg."]
    assert any("Step 50 of 80." in note for note in half.notes)
    found = made.score("average_accuracy", "gdpo", made.settings[0], 80)
    assert cell(last, "Acc Avg.", method="gdpo") == f"{100 * found.value:.1f} ± {100 * found.sd:.1f}"
    row = last.frame[last.frame["method"] == "gdpo"].iloc[0]
    assert (row["average_accuracy_low"], row["average_accuracy_n"]) == (found.low, 3)
    assert any(note.startswith("Not measured by the benchmark of these runs: Acc Live, ") for note in last.notes)


def test_missing_and_diverged_runs_are_counted_and_named():
    table = build("tool_step100", ours(missing=(("gdpo", 100),), diverged={("dara_sym", 101): 12}))
    assert [cell(table, "n", method=method) for method in PAIR] == ["2", "2"]
    assert {"Missing: GDPO seed 100.", "Diverged: DARA-Sym seed 101 at step 12."} <= set(table.notes)
    gone = build("tool_step100", ours(missing=tuple(("gdpo", seed) for seed in (100, 101, 102))))
    assert "Without a score here: GDPO (no runs)." in gone.notes
    frames = simulate(methods=PAIR, seeds=(100,), steps=40, diverged={("gdpo", 100): 12, ("dara_sym", 100): 12})
    with pytest.raises(ValueError, match=r"experiment tool_main: no score .* at a step that all completed runs have"):
        build("final_scores", view(frames, experiment(methods=PAIR)))
    with pytest.raises(ValueError, match="laptop: experiment math_main: no score"):
        build("tool_step100", ours("math"))


def test_final_scores_equal_hand_computed_numbers():
    frames = simulate(methods=PAIR)
    scores, curves = frames["checkpoint_scores"], frames["training_curves"]
    last = (scores["step"] == 80) & (scores["metric"] == "average_accuracy") & (scores["method"] == "gdpo")
    scores.loc[last, "value"] = scores.loc[last, "seed"].map({100: 0.5, 101: 0.6, 102: 0.7})
    of_format = curves["metric"] == "reward/format/mean"
    curves.loc[of_format, "value"] = (curves.loc[of_format, "step"] == 80) * 0.5 + 0.5
    table = build("final_scores", view(frames, experiment(methods=PAIR)))
    scores = ["Average Accuracy (%)", "Average Format (%)", "Train correctness", "Train format"]
    assert table.display == ["Method", "n", *scores]
    gdpo = table.frame[table.frame["method"] == "gdpo"].iloc[0]
    assert gdpo["Average Accuracy (%)"] == "60.0 [35.2, 84.8]"  # s .1, t(2) 4.3027: .6 +- .2484
    assert gdpo["average_accuracy_low"] == pytest.approx(0.35159, abs=1e-5)
    assert gdpo["Train format"] == "0.550 [0.550, 0.550]"  # steps 71 to 80: nine times .5 and once 1
    base = table.frame[table.frame["method"] == "base"].iloc[0]
    assert (base["n"], base["step"], base["Train format"]) == ("1", 0, "–")
    maths = build("math_final_scores", view(simulate("math"), experiment("math")))
    scores = ["Acc (%)", "Exceed (%)", "Joint (%)", "strict (%)", "math-verify (%)"]
    assert maths.display == ["Method", "n", *scores, "Train correctness", "Train length"]


def test_best_is_bold_only_where_intervals_do_not_overlap():
    def estimate(value: float, half: float | None) -> Estimate:
        return Estimate(value, *((value - half, value + half) if half is not None else (None, None)))

    apart = {"a": estimate(0.5, 0.1), "b": estimate(0.8, 0.1)}
    assert (clearly_best(apart, "highest"), clearly_best(apart, "lowest")) == ("b", "a")
    for other in (estimate(0.5, 0.25), estimate(0.5, None)):
        assert clearly_best({"a": other, "b": estimate(0.8, 0.1)}, "highest") is None
    assert clearly_best({"a": estimate(0.5, 0.1), "b": None}, "highest") is None
    frames = simulate("math", methods=PAIR)
    scores = frames["checkpoint_scores"]
    seeds = scores["seed"].astype("float64").fillna(0)
    for method, level in (("gdpo", 0.2), ("dara_sym", 0.05)):
        chosen = (scores["step"] == 50) & (scores["metric"] == "exceed") & (scores["method"] == method)
        scores.loc[chosen, "value"] = level + (seeds[chosen] - 101) * 0.001
    table = build("math_step50", RunsView(frames, experiment("math", PAIR), METHODS, "laptop"))
    assert (table.frame.index[table.frame["method"] == "dara_sym"][0], "Exceed") in table.bold
    assert {column for _, column in table.bold} <= {"Acc", "Exceed", "Joint"}
    assert any(note.startswith("Bold: ") for note in table.notes)


def test_differences_are_those_of_the_frame_or_else_over_pairs_of_runs():
    frames = simulate("math", methods=("dara_sym", "gdpo"))
    for frame in frames.values():
        frame["method"] = frame["method"].replace("gdpo", "static_sym")
    intervals = frames["score_intervals"]
    intervals["baseline"] = intervals["baseline"].replace("gdpo", "static_sym")
    of_acc = (intervals["metric"] == "acc") & (intervals["baseline"] == "static_sym")
    intervals.loc[of_acc & (intervals["step"] == 100), ["value", "t_low", "t_high"]] = (0.02, -0.005, 0.045)
    made = RunsView(frames, experiment("math", ("dara_sym", "static_sym")), METHODS | STATIC, "laptop")
    table = build("fixed_weight_scores", made)
    assert cell(table, "Acc", method="dara_sym-static_sym") == "+2.0 [−0.5, 4.5]"
    assert cell(table, "n", method="dara_sym-static_sym") == "3"
    frames["score_intervals"] = intervals.iloc[:0]
    row = build("fixed_weight_scores", made).frame.set_index("method")
    difference = row.loc["dara_sym", "acc"] - row.loc["static_sym", "acc"]
    assert row.loc["dara_sym-static_sym", "acc"] == pytest.approx(difference)
    assert row.loc["dara_sym-static_sym", "acc_low"] < difference < row.loc["dara_sym-static_sym", "acc_high"]


def three_rewards(benchmark: dict) -> RunsView:
    """Runs of two rewards, and as many of three."""
    made = simulate(methods=PAIR, seeds=(100, 101), steps=20)
    three = {name: made[name][made[name]["method"] != "base"].copy() for name in ("runs", "checkpoint_scores")}
    for frame in three.values():
        frame["run_id"] = "three-" + frame["run_id"]
    three["runs"]["experiment"] = "three_rewards"
    frames = made | {name: pd.concat([made[name], three[name]], ignore_index=True) for name in three}
    changes = {"rewards": ("correctness", "format", "length"), "thresholds": {}}
    asked = experiment(methods=PAIR, name="three_rewards").model_copy(update=changes)
    return view(scored(frames, benchmark), asked)


def test_another_experiment_is_beside():
    made = {"bfcl_v4": lambda run: bfcl_v4(format=0.9, think_length=SHARES[run["method"]], accuracy=0.5)}
    table = build("three_rewards", three_rewards(made))
    rows = table.frame.set_index("method")
    assert rows["Length 3"].to_dict() == {"gdpo": "60.0 ± 0.0", "dara_sym": "80.0 ± 0.0"}
    assert rows["average_think_length"].tolist() == pytest.approx([0.6, 0.8])
    assert rows["Format 3"].tolist() == rows["Multi-Turn 3"].tolist() == ["90.0 ± 0.0"] * 2
    assert not [note for note in table.notes if note.startswith("Not measured")]
    made = {"laptop_tools": lambda run: laptop_tools(format=0.9, accuracy=0.5)}
    table = build("three_rewards", three_rewards(made))
    assert "Length 3" not in table.display
    assert "Not measured by the benchmark of these runs: Multi-Turn, Length." in table.notes


def two_benchmarks() -> dict[str, pd.DataFrame]:
    """Two runs of each of two methods that were scored on BFCL-v4 and on the validation rows, one of them truncated."""
    wrong = {"truncated": 0.2, "decode_error": 0.1, "context_overflow": 0.1}
    made = {
        "bfcl_v4": lambda run: bfcl_v4(accuracy=0.5, format=SHARES[run["method"]], **wrong),
        "toolrl_validation": lambda run: toolrl_validation(
            correctness=run["step"] / 10, format=SHARES[run["method"]] / 2, truncated=0.5, length=1
        ),
    }
    return scored(simulate(methods=PAIR, seeds=(100, 101), steps=20), made)


def test_scores_of_two_benchmarks_are_never_pooled():
    made = view(two_benchmarks(), experiment(methods=PAIR))
    (setting,) = made.settings
    found = {name: made.score(name, "gdpo", setting, 20) for name in ("truncated_rate", "validation/truncated_rate")}
    assert {name: (estimate.value, estimate.n) for name, estimate in found.items()} == {
        "truncated_rate": (pytest.approx(0.2), 2), "validation/truncated_rate": (0.5, 2),
    }  # fmt: skip
    assert made.score("truncated_rate", "base", setting, 0).value == pytest.approx(0.2)
    assert made.curve("validation/format", "dara_sym", setting)["middle"].to_dict() == {10: 0.4, 20: 0.4}
    assert made.curve("validation/correctness", "gdpo", setting)["middle"].to_dict() == {10: 1.0, 20: 2.0}
    assert made.curve("correctness", "gdpo", setting).empty
    assert made.curve_note("validation/format") == "median and quartiles over 2 runs"
    assert made.last_step(["validation/format", "average_format"], setting) == 20
    assert cell(build("final_scores", made), "average_format", method="gdpo") == pytest.approx(0.6)
    frames = simulate(methods=PAIR, seeds=(100,), steps=20)
    made = view(scored(frames, {"bfcl_v4": lambda _: bfcl_v4(), "laptop_tools": lambda _: laptop_tools()}))
    with pytest.raises(ValueError, match=r"has average_accuracy of bfcl_v4, laptop_tools; scores of a task come from"):
        made.score("average_accuracy", "gdpo", made.settings[0], 20)


def test_rates_are_those_that_a_benchmark_has():
    table = build("tool_rates", view(two_benchmarks(), experiment(methods=PAIR)))
    shown = ["Decode errors", "Truncated", "Context overflow", "Step limit", "Truncated, validation"]
    assert table.display == ["Method", "n", *shown]
    assert table.frame[shown].iloc[1].tolist() == ["10.0 ± 0.0", "20.0 ± 0.0", "10.0 ± 0.0", "0.0 ± 0.0", "50.0 ± 0.0"]
    assert table.frame[shown].iloc[0].tolist() == ["10.0", "20.0", "10.0", "0.0", "50.0"]
    assert table.frame["step"].tolist() == [0, 20, 20]
    math = simulate("math", methods=PAIR, seeds=(100,), steps=20)
    math = scored(math, {"math_five": lambda _: math_five({"amc": {"truncated": 0.5}})})
    table = build("math_rates", view(math, experiment("math", PAIR)))
    assert table.display == ["Method", "n", "Truncated"]
    assert table.frame["Truncated"].tolist() == ["10.0"] * 3  # one of five sets
    with pytest.raises(
        ValueError, match=r"laptop: experiment tool_main: no score .decode_error_rate, truncated_rate, "
    ):
        build("tool_rates", view(simulate(methods=PAIR, seeds=(100,), steps=20), experiment(methods=PAIR)))


def math_runs(seeds: tuple[int, ...]) -> RunsView:
    """Runs scored on the five math sets: right in as many cases of MATH-500 as SHARES says, and of AIME half of it."""

    def make(run: dict) -> pd.DataFrame:
        share = SHARES[run["method"]] + (0.1 if run["seed"] == 101 else 0)
        columns = ("strict", "strict_or_numeric", "math_verify", "joint")
        sets = {"math500": dict.fromkeys(columns, share), "aime24": dict.fromkeys(columns, share / 2)}
        return math_five({**sets, "minerva": {"exceed": 1.0}})

    frames = simulate("math", methods=PAIR, seeds=seeds, steps=20)
    return view(scored(frames, {"math_five": make}), experiment("math", PAIR))


def test_each_math_set_has_a_column_with_the_interval_over_the_questions_of_a_single_run():
    made = math_runs((100,))
    table = build("math_step50_sets", made)
    sets = ["MATH-500", "AIME 2024", "AMC", "Minerva", "OlympiadBench"]
    assert table.display == ["Score", "Method", "n", *sets, "Mean"]
    assert table.title.startswith("Math scores of each benchmark at 50 % of training (math_main")
    assert table.frame["Score"].tolist() == ["Acc"] * 3 + ["Exceed"] * 3 + ["Joint"] * 3
    row = table.frame[(table.frame["score"] == "acc") & (table.frame["method"] == "gdpo")].iloc[0]
    scores = made.scores[(made.scores["method"] == "gdpo") & (made.scores["step"] == 10)].set_index("metric")
    for name, header, share in (("math500", "MATH-500", 0.6), ("aime24", "AIME 2024", 0.3), ("amc", "AMC", 0.0)):
        ends = scores.loc[f"acc/{name}", ["low", "high"]].tolist()
        assert row[name] == pytest.approx(share)
        assert row[[f"{name}_question_low", f"{name}_question_high"]].tolist() == ends
        assert pd.isna(row[f"{name}_low"])
        assert row[header] == f"{100 * share:.1f} [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"
    assert (row["mean"], row["step"]) == (pytest.approx(0.18), 10)  # (.6 + .3) / 5
    exceed = table.frame[table.frame["score"] == "exceed"]
    assert (set(exceed["Minerva"]), exceed["mean"].tolist()) == ({"100.0 [100.0, 100.0]"}, pytest.approx([0.2] * 3))
    with pytest.raises(ValueError, match=r"laptop: experiment tool_main: no score .acc, exceed"):
        build("math_step50_sets", view(two_benchmarks(), experiment("math", PAIR, "tool_main")))


def test_math_sets_of_several_runs_have_the_interval_over_seeds():
    frame = build("math_step50_sets", math_runs((100, 101))).frame
    row = frame[(frame["score"] == "acc") & (frame["method"] == "gdpo")].iloc[0]
    assert (row["math500"], row["math500_n"]) == (pytest.approx(0.65), 2)
    assert pd.isna(row["math500_question_low"])
    assert row["MATH-500"] == "65.0 [1.5, 128.5]"  # .65 +- 12.706 x .05
    base = frame[(frame["score"] == "acc") & (frame["method"] == "base")].iloc[0]
    assert (base["n"], base["MATH-500"][:5]) == ("1", "10.0 ")


def test_both_intervals_and_both_counts_are_beside_the_mean(tmp_path):
    row = {"experiment": "tool_main", "model": "laptop-base", "group_size": 4, "engine": "trl", "step": 40}
    row |= {"benchmark": "laptop_tools", "metric": "average_accuracy", "n_seeds": 3, "n_questions": 200}
    over_seeds, over_both = {"t_low": 0.1, "t_high": 0.7}, {"low": 0.3, "high": 0.5}
    paired = {"t_low": -0.06, "t_high": 0.16, "low": 0.01, "high": 0.09}
    rows = [
        row | {"method": "gdpo", "value": 0.4} | over_seeds | over_both,
        row | {"method": "dara_sym", "value": 0.45, "n_seeds": 1, "low": 0.38, "high": 0.52},
        row | {"method": "dara_sym", "baseline": "gdpo", "value": 0.05} | paired,
    ]
    frames = simulate(methods=PAIR, steps=40) | {"score_intervals": rows_to_frame(rows, "score_intervals")}
    table = build("score_intervals", view(frames, experiment(methods=PAIR)))
    assert table.frame[table.display].to_numpy().tolist() == [
        ["40", "Average Accuracy", "GDPO", "3", "200", "40.0", "[10.0, 70.0]", "[30.0, 50.0]"],
        ["40", "Average Accuracy", "DARA-Sym", "1", "200", "45.0", "–", "[38.0, 52.0]"],
        ["40", "Average Accuracy", "DARA-Sym − GDPO", "3", "200", "+5.0", "[−6.0, 16.0]", "[1.0, 9.0]"],
    ]
    assert table.frame["baseline"].tolist() == ["", "", "gdpo"]
    assert "Missing: none." in table.notes
    made = simulate(methods=PAIR, seeds=(100, 101), steps=40, settings=(("small", 4), ("small", 8)))
    both = view(made, experiment(methods=("dara_sym", "gdpo")))
    table = build("score_intervals", both)
    steps = [step for step in ("10", "20", "30", "40") for _ in range(6)]  # two scores of two methods, and a difference
    assert table.frame[["G", "Step"]].to_numpy().tolist() == [[size, step] for size in "48" for step in steps]
    assert table.frame["Method"].tolist()[:3] == ["DARA-Sym", "GDPO", "DARA-Sym − GDPO"]
    gone = simulate(seeds=(100,), steps=6, methods=PAIR, missing=(("gdpo", 100), ("dara_sym", 100)))
    with pytest.raises(ValueError, match=r"experiment tool_main: no score .* 0 finished of 2 planned runs"):
        build("score_intervals", view(gone, experiment(methods=PAIR)))


def test_no_table_pools_the_runs_of_two_engines():
    """The runs of two engines with the same seeds are two settings, each with its own rows."""
    made = simulate(methods=PAIR)
    scores = made["checkpoint_scores"][made["checkpoint_scores"]["method"] != "base"]
    for name, frame in (("runs", made["runs"]), ("crossings", made["crossings"]), ("checkpoint_scores", scores),
                        ("training_curves", made["training_curves"])):  # fmt: skip
        more = frame.assign(run_id="openrlhf-" + frame["run_id"])
        more = more.assign(engine="openrlhf") if name == "runs" else more
        more = more.assign(value=0.0) if "value" in more else more
        made[name] = pd.concat([made[name], more], ignore_index=True)
    intervals = made["score_intervals"].assign(engine="openrlhf", value=0.0)
    made["score_intervals"] = pd.concat([made["score_intervals"], intervals], ignore_index=True)
    both, alone = view(made, experiment(methods=PAIR)), view(simulate(methods=PAIR), experiment(methods=PAIR))
    trl, openrlhf = both.settings
    assert both.settings == (Setting("laptop-base", 4, "trl"), Setting("laptop-base", 4, "openrlhf"))
    assert both.setting_label(openrlhf) == "laptop-base, G=4, OpenRLHF"
    for method in PAIR:
        assert both.planned(method, trl) == [100, 101, 102]
        assert both.marks("stable", "format", 0.8, method, trl) == alone.marks("stable", "format", 0.8, method, trl)
        for metric in ("average_format", "reward/format/mean"):
            pd.testing.assert_frame_equal(both.curve(metric, method, trl), alone.curve(metric, method, trl))
            assert both.curve(metric, method, openrlhf)["middle"].max() == 0
        assert both.score("average_format", method, openrlhf, 80).value == 0
        assert both.score("average_format", method, trl, 80) == alone.score("average_format", method, trl, 80)
    for name in ("crossings", "comparisons"):
        found = build(name, both).frame["Setting"].unique().tolist()
        assert found == ["laptop-base, G=4, TRL", "laptop-base, G=4, OpenRLHF"]
    for name in ("tool_step100", "final_scores", "threshold_crossings", "score_intervals"):
        table = build(name, both)
        assert (table.display[0], table.frame["Engine"].unique().tolist()) == ("Engine", ["TRL", "OpenRLHF"])
    step, difference = score_difference(both, "average_format", ("dara_sym", "gdpo"), openrlhf, 100)
    assert (step, difference.value, difference.pairs) == (80, 0.0, 3)
    of_trl = [score_difference(shown, "average_format", ("dara_sym", "gdpo"), trl, 100) for shown in (both, alone)]
    assert of_trl[0] == of_trl[1]
    twice = made["runs"][made["runs"]["seed"] == 101].assign(run_id=lambda frame: "batch-" + frame["run_id"])
    made["runs"] = pd.concat([made["runs"], twice], ignore_index=True)
    with pytest.raises(ValueError, match=r"experiment tool_main: batch-.* and .* are two runs of one method, model"):
        view(made, experiment(methods=PAIR))


# A table of one's own

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


def preset_with(directory: Path, mine: object) -> Configuration:
    """The laptop's preset, in a copy of config/ in which tool_main has a table `mine`."""
    shutil.copytree(ROOT / "config", directory / "config")
    path = directory / "config/experiments/tool_main.yaml"
    content = yaml.safe_load(path.read_text())
    content["tables"]["mine"] = mine
    path.write_text(yaml.safe_dump(content))
    return load_preset(directory, directory / "config/presets/laptop.yaml")


def test_a_table_of_scores_needs_no_code(tmp_path):
    mine = preset_with(tmp_path, yaml.safe_load(MINE)).experiments["tool_main"].tables["mine"]
    made = view(simulate())
    table = build_table(mine, made)
    assert table.title == f"Format at the best of average_format step (tool_main, laptop-base, {made.source})"
    assert table.display == ["Method", "n", "Format", "Reward"]
    for method in PAIR:
        scores = {step: made.score("average_format", method, made.settings[0], step) for step in range(10, 81, 10)}
        curve = {step: score.value for step, score in scores.items()}
        row = table.frame[table.frame["method"] == method].iloc[0]
        assert row["step"] == max(curve, key=lambda step: (curve[step], -step))
        assert row["Format"].startswith(f"{100 * max(curve.values()):.3f}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spred": "sd"}, ".spred: unknown key; did you mean 'spread'?"),
        ({"spread": "range"}, ".spread: input should be 'sd', 'seeds'"),
        ({"step": "first"}, ".step: must be a step of the authors' training, last, each, unstated or"),
        ({"step": "best of acc"}, ": step: 'best of acc' needs that metric among metrics, with its key best"),
        ({"step": "each", "spread": "sd"}, ": step: each has both intervals: it goes with spread"),
        ({"sets": {"live": "Live"}, "differences": {"grpo": "gdpo"}}, ": a table has only one of sets"),
        ({"metrics": {}}, ".metrics: dictionary should have at least 1 item"),
        ({"metrics": {"acc": {"titel": "A"}}}, ".metrics.acc.titel: unknown key; did you mean 'title'?"),
        ({"metrics": {"acc": 3}}, ".metrics.acc: input should be a valid dictionary"),
        ({"table": "score"}, ": must be the name of a table, or a mapping with `table: scores`"),
        ("scores", ": a table of scores is a mapping"),
    ],
)
def test_a_mistake_in_a_table_of_scores_is_named_with_file_and_key(tmp_path, change, message):
    with pytest.raises(ConfigurationError) as error:
        preset_with(tmp_path, yaml.safe_load(MINE) | change if isinstance(change, dict) else change)
    assert f"config/experiments/tool_main.yaml: tables.mine{message}" in str(error.value)
