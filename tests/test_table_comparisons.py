"""The table of comparisons with GDPO, on hand-computed numbers."""

from __future__ import annotations

import pandas as pd
import pytest

from dara.analysis.frames import rows_to_frame
from dara.analysis.tables import TABLES, comparisons
from dara.analysis.tables.render import render_table
from dara.config import MethodEntry
from synthetic import METHODS, experiment, simulate, view

PAIR = ("gdpo", "dara_sym")


def frames(steps: dict[str, list[int | None]], budget: int = 80) -> dict[str, pd.DataFrame]:
    """Stable crossings of seeds 1, 2, ... by method (None: not within the budget); first crossings are 5 steps before."""
    rows: dict[str, list[dict]] = {"runs": [], "crossings": [], "energies": []}
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
    assert (gdpo["Reached (%)"], gdpo["Median"], gdpo["Against"]) == ("2/3 [21, 94]", "40", "–")
    assert {gdpo[column] for column in comparisons.COMPARED} == {"–"}
    assert (sym["Reached (%)"], sym["Median"], sym["Against"]) == ("3/3 [44, 100]", "30", "GDPO")
    # -10, -4 and 30 - 60 steps: s 13.61, t(2) 4.303: -14.7 +- 33.8
    assert sym["Stable: difference"] == "−14.7 [−48.5, 19.2], 1 late"
    # The first crossings are 5 steps before, and can be seen up to step 80: -10, -4 and 25 - 80
    assert sym["First: difference"] == "−23.0 [−92.2, 46.2], 1 late"
    # The median run: 30 instead of 40. Resamples reach from seed 2 alone to seed 3 alone, whose end is open.
    assert sym["Speed-up (%)"] == "25.0 [10, –]"
    assert (sym["saved"], sym["saved_low"], sym["saved_high"]) == (pytest.approx(0.25), pytest.approx(0.1), 1)
    assert (sym["stable_tau"], sym["stable_late"], sym["first_tau"], sym["pairs"]) == (60, 1, 80, 3)
    assert (sym["reached"], sym["runs"], sym["median"]) == (3, 3, 30)


def test_nobody_crosses():
    gdpo, sym = built({"gdpo": [None, None], "dara_sym": [None, None]})
    assert (gdpo["Median"], sym["Median"]) == (">60", ">60")
    assert (sym["Stable: difference"], sym["Speed-up (%)"]) == ("0.0 [0.0, 0.0], 4 late", "not estimable")
    assert sym["not_estimable"] == "the median of the method is >60 and the median of the baseline is >60"


def test_one_run_of_each_has_no_interval():
    _, sym = built({"gdpo": [50], "dara_sym": [30]})
    assert (sym["Pairs"], sym["Stable: difference"], sym["Speed-up (%)"]) == ("1", "−20.0", "40.0")


def test_what_has_no_partner_is_in_no_difference():
    _, sym = built({"gdpo": [50, 55, 58], "dara_sym": [30, 31]})
    assert (sym["Pairs"], sym["stable_difference"]) == ("2", -22)


def test_a_method_of_ones_own_is_also_set_against_dara():
    rows = built({"gdpo": [50, 50], "dara_sym": [30, 30], "dvao": [40, 40]})
    assert [(row["method"], row["baseline"]) for row in rows[1:]] == [("dara_sym", "gdpo"), ("dvao", "gdpo")]
    methods = METHODS | {"mine": MethodEntry(label="Mine", color="#000000")}
    made = frames({"gdpo": [50, 50], "dara_sym": [30, 30], "mine": [40, 42]})
    table = comparisons.build(view(made, asked(("gdpo", "dara_sym", "mine")), methods)).frame
    mine = table[table["method"] == "mine"]
    assert mine["Against"].tolist() == ["GDPO", "DARA-Sym"]
    assert mine["stable_difference"].tolist() == [-9, 11]


def test_the_energy_share_is_that_of_the_sparse_reward():
    made = simulate(methods=PAIR)
    energies = made["energies"][made["energies"]["reward"] == "format"]
    shares = energies.dropna(subset=["share_after"]).groupby(["method", "run_id"])["share_after"].mean()
    table = comparisons.build(view(made, asked())).frame
    assert table["energy_share"].tolist() == pytest.approx([shares[method].mean() for method in PAIR])
    assert table["Energy share (%)"].iloc[0] == f"{100 * shares['gdpo'].mean():.1f}"


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
    assert table.title == "Crossings of format, compared (tool_main)"
    assert set(comparisons.RAW_OWN + comparisons.RAW_COMPARED) <= set(table.frame.columns)
    extra = set(table.frame.columns) - set(table.display) - set(comparisons.RAW_OWN + comparisons.RAW_COMPARED)
    assert extra == {"Setting", "method", "baseline"}


def test_without_a_baseline_or_thresholds_there_is_no_table():
    with pytest.raises(ValueError, match=r"nothing to compare among its methods \(grpo\); add gdpo"):
        comparisons.build(view(simulate(methods=("grpo",)), experiment(methods=("grpo",))))
    other = experiment(methods=PAIR).model_copy(update={"thresholds": {"correctness": (1.0,)}})
    with pytest.raises(ValueError, match="no thresholds of its sparse reward 'format'"):
        comparisons.build(view(simulate(methods=PAIR), other))


def test_a_missing_baseline_leaves_the_methods_alone():
    made = simulate(seeds=(100, 101), steps=40, methods=PAIR, missing=(("gdpo", 100), ("gdpo", 101)))
    table = comparisons.build(view(made, asked()))
    assert table.frame["Reached (%)"].iloc[0] == "missing"
    assert set(table.frame.loc[1, comparisons.COMPARED]) == {"–"}
    assert "Missing: GDPO seed 100, GDPO seed 101." in table.notes


def test_a_diverged_run_counts_as_one_that_did_not_cross():
    made = simulate(methods=PAIR, diverged={("dara_sym", 101): 12})
    row = comparisons.build(view(made, asked())).frame.iloc[1]
    assert row["Reached (%)"].startswith("2/3")
    assert "Diverged: DARA-Sym seed 101 at step 12." in comparisons.build(view(made, asked())).notes


def test_the_same_frames_in_any_order_give_the_same_bytes(tmp_path):
    made = simulate("math", methods=PAIR)
    shuffled = {name: frame.sample(frac=1, random_state=3) for name, frame in made.items()}
    of = experiment("math", PAIR)
    first = render_table(TABLES["comparisons"].build(view(made, of)), tmp_path / "a" / "t")
    second = render_table(TABLES["comparisons"].build(view(shuffled, of)), tmp_path / "b" / "t")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    raw = pd.read_csv(first[2])
    assert raw["energy_share"].between(0, 1).all()
    assert raw["stable_difference"].notna().tolist() == raw["baseline"].notna().tolist()
