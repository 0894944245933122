"""Tables of the paper's benchmarks, made from what scoring and `summarise` really give."""

from __future__ import annotations

import pandas as pd
import pytest

from dara.analysis.tables import TABLES
from dara.analysis.view_runs import RunsView
from scored_frames import bfcl_v4, laptop_tools, math_five, scored, toolrl_validation
from synthetic import experiment, simulate, view

PAIR = ("gdpo", "dara_sym")
SHARES = {"base": 0.1, "gdpo": 0.6, "dara_sym": 0.8}


def three_rewards() -> pd.DataFrame:
    """Runs of two rewards, and as many of three."""
    made = simulate(methods=PAIR, seeds=(100, 101), steps=20)
    three = {name: made[name][made[name]["method"] != "base"].copy() for name in ("runs", "checkpoint_scores")}
    for frame in three.values():
        frame["run_id"] = "three-" + frame["run_id"]
    three["runs"]["experiment"] = "three_rewards"
    return made | {name: pd.concat([made[name], three[name]], ignore_index=True) for name in three}


def asked_of_three():
    rewards = ("correctness", "format", "length")
    return experiment(methods=PAIR, name="three_rewards").model_copy(update={"rewards": rewards, "thresholds": {}})


def test_the_length_compliance_of_our_own_runs_stands_in_the_table_of_three_rewards():
    frames = scored(
        three_rewards(),
        {"bfcl_v4": lambda run: bfcl_v4(format=0.9, think_length=SHARES[run["method"]], accuracy=0.5)},
    )
    table = TABLES["three_rewards"].build(view(frames, asked_of_three()))
    assert "Length 3" in table.display
    rows = table.frame.set_index("method")
    assert rows["Length 3"].to_dict() == {"gdpo": "60.0 ± 0.0", "dara_sym": "80.0 ± 0.0"}
    assert rows["average_think_length"].tolist() == pytest.approx([0.6, 0.8])
    assert rows["Format 3"].tolist() == rows["Multi-Turn 3"].tolist() == ["90.0 ± 0.0"] * 2
    assert not [note for note in table.notes if note.startswith("Not measured")]


def test_three_rewards_say_what_their_benchmark_does_not_measure():
    frames = scored(three_rewards(), {"laptop_tools": lambda run: laptop_tools(format=0.9, accuracy=0.5)})
    table = TABLES["three_rewards"].build(view(frames, asked_of_three()))
    assert "Length 3" not in table.display
    assert "Not measured by the benchmark of these runs: Multi-Turn, Length." in table.notes


def two_benchmarks() -> dict[str, pd.DataFrame]:
    """Two runs of each of two methods that were scored on BFCL-v4 and on the validation rows, one of them truncated."""
    frames = simulate(methods=PAIR, seeds=(100, 101), steps=20)
    return scored(
        frames,
        {
            "bfcl_v4": lambda run: bfcl_v4(
                accuracy=0.5, format=SHARES[run["method"]], truncated=0.2, decode_error=0.1, context_overflow=0.1
            ),
            "toolrl_validation": lambda run: toolrl_validation(
                correctness=run["step"] / 10, format=SHARES[run["method"]] / 2, truncated=0.5, length=1
            ),
        },
    )


def test_a_view_never_pools_the_scores_of_two_benchmarks():
    made = view(two_benchmarks(), experiment(methods=PAIR))
    (setting,) = made.settings
    found = {name: made.score(name, "gdpo", setting, 20) for name in ("truncated_rate", "validation/truncated_rate")}
    assert {name: (estimate.value, estimate.n) for name, estimate in found.items()} == {
        "truncated_rate": (pytest.approx(0.2), 2),
        "validation/truncated_rate": (0.5, 2),
    }
    assert made.score("truncated_rate", "base", setting, 0).value == pytest.approx(0.2)
    assert made.curve("validation/format", "dara_sym", setting)["middle"].to_dict() == {10: 0.4, 20: 0.4}
    assert made.curve("validation/correctness", "gdpo", setting)["middle"].to_dict() == {10: 1.0, 20: 2.0}
    assert made.curve("correctness", "gdpo", setting).empty
    assert made.curve_note("validation/format") == "median and quartiles over 2 runs"
    assert made.last_step(["validation/format", "average_format"], setting) == 20


def test_a_score_of_two_benchmarks_is_an_error():
    frames = simulate(methods=PAIR, seeds=(100,), steps=20)
    frames = scored(frames, {"bfcl_v4": lambda _: bfcl_v4(), "laptop_tools": lambda _: laptop_tools()})
    made = view(frames, experiment(methods=PAIR))
    with pytest.raises(ValueError, match=r"has average_accuracy of bfcl_v4, laptop_tools; scores of a task come from"):
        made.score("average_accuracy", "gdpo", made.settings[0], 20)


def test_rates_stand_beside_the_averages():
    table = TABLES["rates"].build(view(two_benchmarks(), experiment(methods=PAIR)))
    shown = ["Decode errors", "Truncated", "Context overflow", "Step limit", "Truncated, validation"]
    assert table.display == ["Method", "n", *shown]
    assert table.frame["Method"].tolist() == ["Base", "GDPO", "DARA-Sym"]
    assert table.frame[shown].iloc[1].tolist() == ["10.0 ± 0.0", "20.0 ± 0.0", "10.0 ± 0.0", "0.0 ± 0.0", "50.0 ± 0.0"]
    assert table.frame[shown].iloc[0].tolist() == ["10.0", "20.0", "10.0", "0.0", "50.0"]
    assert table.frame["step"].tolist() == [0, 20, 20]
    assert table.notes[1].startswith("Mean over seeds at the last step of which all completed runs have scores (20);")
    assert "Truncated, validation: of the validation rows, those whose response did not end" in table.notes[0]


def test_rates_are_those_that_a_benchmark_has():
    frames = simulate(methods=PAIR, seeds=(100,), steps=20)
    frames = scored(frames, {"laptop_tools": lambda _: laptop_tools(decode_error=0.3)})
    table = TABLES["rates"].build(view(frames, experiment(methods=PAIR)))
    assert table.display == ["Method", "n", "Decode errors", "Truncated"]
    assert "dialogue" not in table.notes[0]
    math = simulate("math", methods=PAIR, seeds=(100,), steps=20)
    math = scored(math, {"math_five": lambda _: math_five({"amc": {"truncated": 0.5}})})
    table = TABLES["rates"].build(view(math, experiment("math", PAIR)))
    assert table.display == ["Method", "n", "Truncated"]
    assert table.frame["Truncated"].tolist() == ["10.0"] * 3  # one of five sets
    with pytest.raises(ValueError, match="laptop: experiment tool_main: no rate of truncated or unreadable outputs"):
        TABLES["rates"].build(view(simulate(methods=PAIR, seeds=(100,), steps=20), experiment(methods=PAIR)))


def math_runs(seeds: tuple[int, ...]) -> RunsView:
    """Runs scored on the five math sets: right in as many cases of MATH-500 as SHARES says, and of AIME half of it."""
    frames = simulate("math", methods=PAIR, seeds=seeds, steps=20)

    def make(run: dict) -> pd.DataFrame:
        share = SHARES[run["method"]] + (0.1 if run["seed"] == 101 else 0)
        columns = ("strict", "strict_or_numeric", "math_verify", "joint")
        sets = {"math500": dict.fromkeys(columns, share), "aime24": dict.fromkeys(columns, share / 2)}
        return math_five({**sets, "minerva": {"exceed": 1.0}})

    return view(scored(frames, {"math_five": make}), experiment("math", PAIR))


def test_each_math_set_has_a_column_with_the_interval_over_the_questions_of_a_single_run():
    made = math_runs((100,))
    table = TABLES["math_sets"].build(made)
    sets = ["MATH-500", "AIME 2024", "AMC", "Minerva", "OlympiadBench"]
    assert table.display == ["Score", "Method", "n", *sets, "Mean"]
    assert table.title.startswith("Math scores of each benchmark at 50 % of training (math_main")
    row = table.frame[(table.frame["score"] == "acc") & (table.frame["method"] == "gdpo")].iloc[0]
    scores = made.scores[(made.scores["method"] == "gdpo") & (made.scores["step"] == 10)].set_index("metric")
    for name, header, share in (("math500", "MATH-500", 0.6), ("aime24", "AIME 2024", 0.3), ("amc", "AMC", 0.0)):
        ends = scores.loc[f"acc/{name}", ["low", "high"]].tolist()
        assert row[name] == pytest.approx(share)
        assert row[[f"{name}_question_low", f"{name}_question_high"]].tolist() == ends
        assert pd.isna(row[f"{name}_low"])
        assert row[header] == f"{100 * share:.1f} [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"
    assert row["math500_question_low"] < 0.6 < row["math500_question_high"]
    assert row["mean"] == pytest.approx(0.18)  # (.6 + .3) / 5
    assert row["step"] == 10
    exceed = table.frame[table.frame["score"] == "exceed"]
    assert set(exceed["Minerva"]) == {"100.0 [100.0, 100.0]"}
    assert exceed["mean"].tolist() == pytest.approx([0.2] * 3)
    assert table.frame["Score"].tolist() == ["Acc"] * 3 + ["Exceed"] * 3 + ["Joint"] * 3
    assert any("of one run (n 1) and of the base model a percentile bootstrap" in note for note in table.notes)


def test_math_sets_of_several_runs_have_the_interval_over_seeds():
    made = math_runs((100, 101))
    frame = TABLES["math_sets"].build(made).frame
    row = frame[(frame["score"] == "acc") & (frame["method"] == "gdpo")].iloc[0]
    estimate = made.score("acc/math500", "gdpo", made.settings[0], 10)
    assert (row["math500"], row["math500_n"]) == (pytest.approx(0.65), 2)
    assert (row["math500_low"], row["math500_high"]) == (estimate.low, estimate.high)
    assert pd.isna(row["math500_question_low"])
    assert row["MATH-500"] == "65.0 [1.5, 128.5]".replace("-", "−")  # .65 +- 12.706 x .05
    base = frame[(frame["score"] == "acc") & (frame["method"] == "base")].iloc[0]
    assert (base["n"], base["MATH-500"][:5]) == ("1", "10.0 ")


def test_math_sets_need_a_benchmark_of_sets():
    with pytest.raises(ValueError, match="laptop: experiment math_main: no score of a single benchmark"):
        TABLES["math_sets"].build(view(simulate("math", methods=PAIR, seeds=(100,)), experiment("math", PAIR)))


def test_scores_and_differences_are_those_of_the_benchmark_alone():
    """The tables of scores ask for names that validation rows have too, or nearly."""
    frames = two_benchmarks()
    final = TABLES["final_scores"].build(view(frames, experiment(methods=PAIR))).frame.set_index("Method")
    assert final.loc["GDPO", "average_format"] == pytest.approx(0.6)
    assert final.loc["GDPO", "Runs"] == "2 of 2"
