"""The table of comparisons with GDPO, on hand-computed numbers."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from dara.analysis.frames import rows_to_frame
from dara.analysis.tables import TABLES, comparisons, render_table
from synthetic import experiment, simulate, view

PAIR = ("gdpo", "dara_sym")


def frames(steps: dict[str, list[int | None]], budget: int = 80) -> dict[str, pd.DataFrame]:
    """Stable crossings of seeds 1, 2, ... by method (None: not within the budget); first crossings are 5 steps before."""
    rows: dict[str, list[dict]] = {"runs": [], "crossings": []}
    for method, found in steps.items():
        for seed, stable in enumerate(found, start=1):
            run = {"run_id": f"{method}-{seed}", "task": "tool_calling", "model": "tiny", "method": method}
            run |= {"group_size": 4, "seed": seed}
            state = {"experiment": "tool_main", "repeat": 0, "steps": budget, "engine": "trl", "outcome": "completed"}
            rows["runs"].append(run | state | {"origin": "trained"})
            crossing = {"reward": "format", "threshold": 0.8, "stable_step": stable, "budget": budget}
            crossing["first_step"] = stable - 5 if stable else None
            rows["crossings"].append(run | crossing | {"status": "reached" if stable else "not_reached"})
    return {name: rows_to_frame(found, name) for name, found in rows.items()}


def asked(methods=PAIR):
    return experiment(methods=methods).model_copy(update={"thresholds": {"format": (0.8,)}})


def built(steps: dict[str, list[int | None]]) -> list[dict]:
    return comparisons.build(view(frames(steps), asked(tuple(steps)))).frame.to_dict("records")


def test_numbers_equal_hand_computed_ones():
    gdpo, sym = built({"gdpo": [30, 40, None], "dara_sym": [20, 36, 30]})
    assert (gdpo["Got there (%)"], gdpo["Median"], gdpo["Restricted mean"]) == ("2/3 [21, 94]", "40", "43.3")
    assert {gdpo[column] for column in comparisons.COMPARED} == {"–"}
    assert (sym["Got there (%)"], sym["Median"], sym["Restricted mean"]) == ("3/3 [44, 100]", "30", "28.7")
    # Seeds 1 and 2: 10 and 4 steps earlier, s 4.243, t(1) 12.706: -7 +- 38.1
    assert sym["Stable: difference"] == "−7.0 [−45.1, 31.1], 2 of 3"
    assert sym["First: difference"] == "−7.0 [−45.1, 31.1], 2 of 3"
    assert (sym["Pairs"], sym["Earlier"]) == ("3", "3/3, p 0.25")
    assert sym["Restricted mean: difference"].startswith("−14.7 [−30.0, −4.0]")
    # The median run: 30 instead of 40. Resamples reach from seed 2 alone to seed 3 alone, whose end is open.
    assert sym["Speed-up (%)"] == "25.0 [10, –], n 3+3"
    assert (sym["median_difference"], sym["median_saved"]) == (-10, pytest.approx(0.25))
    assert (sym["median_difference_low"], sym["median_difference_high"]) == (-math.inf, -4)
    assert (sym["median_saved_low"], sym["median_saved_high"]) == (pytest.approx(0.1), 1)
    assert (sym["stable_known"], sym["stable_earlier"], sym["stable_undecided"]) == (2, 3, 0)
    assert (sym["reached"], sym["runs"], sym["tau"], sym["pairs"], sym["unpaired"]) == (3, 3, 60, 3, 0)


def test_nobody_crosses():
    gdpo, sym = built({"gdpo": [None, None], "dara_sym": [None, None]})
    assert (gdpo["Median"], sym["Median"], sym["Restricted mean"]) == (">60", ">60", "60.0")
    assert (sym["Stable: difference"], sym["Earlier"], sym["Log-rank p"]) == ("–", "–", "–")
    assert (sym["Speed-up (%)"], sym["log_rank_reason"]) == ("not estimable", "no run crosses")
    assert sym["not_estimable"] == "the median of the method is >60 and the median of the baseline is >60"
    assert sym["Restricted mean: difference"] == "0.0 [0.0, 0.0]"


def test_one_run_of_each_has_no_test_and_no_interval():
    _, sym = built({"gdpo": [50], "dara_sym": [30]})
    assert (sym["Stable: difference"], sym["Earlier"]) == ("−20.0", "1/1, p 1.00")
    assert (sym["Log-rank p"], sym["Speed-up (%)"]) == ("–", "40.0, n 1+1")
    assert sym["log_rank_reason"] == "one run in a group"


def test_what_has_no_partner_is_counted():
    _, sym = built({"gdpo": [50, 55, 58], "dara_sym": [30, 31]})
    assert (sym["Pairs"], sym["unpaired"], sym["unpaired_baseline"]) == ("2", 0, 1)
    assert sym["Speed-up (%)"].endswith("n 2+3")


def test_a_repeat_of_a_seed_is_paired_with_the_same_repeat():
    made = frames({"gdpo": [50, 40], "dara_sym": [30, 35]})
    for name in ("runs", "crossings"):
        made[name]["seed"] = 1
    made["runs"]["repeat"] = [int(run_id[-1]) - 1 for run_id in made["runs"]["run_id"]]
    row = comparisons.build(view(made, asked())).frame.iloc[1]
    assert (row["Pairs"], row["stable_difference"]) == ("2", -12.5)


def test_only_the_sparse_reward_and_its_thresholds_are_compared():
    several = experiment(methods=PAIR).model_copy(
        update={"thresholds": {"correctness": (1.0,), "format": (0.5, 0.8, 0.9)}}
    )
    table = comparisons.build(view(simulate(methods=PAIR), several))
    assert table.frame["Threshold"].tolist() == ["0.5", "0.5", "0.8", "0.8", "0.9", "0.9"]
    assert table.title == "Crossings of format compared with GDPO (tool_main)"
    assert set(comparisons.RAW_OWN + comparisons.RAW_COMPARED) <= set(table.frame.columns)
    extra = set(table.frame.columns) - set(table.display) - set(comparisons.RAW_OWN + comparisons.RAW_COMPARED)
    assert extra == {"Setting", "method"}


def test_without_a_baseline_or_thresholds_there_is_no_table():
    with pytest.raises(ValueError, match="is against gdpo, which is not among its methods"):
        comparisons.build(view(simulate(methods=("grpo",)), experiment(methods=("grpo",))))
    other = experiment(methods=PAIR).model_copy(update={"thresholds": {"correctness": (1.0,)}})
    with pytest.raises(ValueError, match="no thresholds of its sparse reward 'format'"):
        comparisons.build(view(simulate(methods=PAIR), other))


def test_a_missing_baseline_leaves_the_methods_alone():
    made = simulate(seeds=(100, 101), steps=40, methods=PAIR, missing=(("gdpo", 100), ("gdpo", 101)))
    table = comparisons.build(view(made, asked()))
    assert table.frame["Got there (%)"].iloc[0] == "missing"
    assert set(table.frame.loc[1, comparisons.COMPARED]) == {"–"}
    assert "Missing: GDPO seed 100, GDPO seed 101." in table.notes


def test_a_diverged_run_counts_as_one_that_did_not_cross():
    made = simulate(methods=PAIR, diverged={("dara_sym", 101): 12})
    row = comparisons.build(view(made, asked())).frame.iloc[1]
    assert row["Got there (%)"].startswith("2/3")
    assert "Diverged: DARA-Sym seed 101 at step 12." in comparisons.build(view(made, asked())).notes


def test_the_same_frames_in_any_order_give_the_same_bytes(tmp_path):
    made = simulate("math", methods=PAIR)
    shuffled = {name: frame.sample(frac=1, random_state=3) for name, frame in made.items()}
    of = experiment("math", PAIR)
    first = render_table(TABLES["comparisons"].build(view(made, of)), tmp_path / "a" / "t")
    second = render_table(TABLES["comparisons"].build(view(shuffled, of)), tmp_path / "b" / "t")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    raw = pd.read_csv(first[2])
    assert raw["restricted_mean"].notna().all()
    assert raw["log_rank_p"].dropna().between(0, 1).all()
