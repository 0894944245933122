"""Tables of crossings and runs: numbers against values computed by hand, and tables as files."""

from __future__ import annotations

import io
import math

import pandas as pd
import pytest

from dara.analysis.crossing import CrossingEvent, times_of
from dara.analysis.frames import rows_to_frame
from dara.analysis.paper_numbers import read_published
from dara.analysis.tables import comparisons, render_table
from dara.analysis.view_published import PublishedView
from dara.config import MethodEntry
from dara.loading import load_published, read_methods
from project import ROOT
from scored_frames import build
from synthetic import METHODS, experiment, simulate, view

PAIR = ("gdpo", "dara_sym")
NAMES = ("comparisons", "crossings", "final_scores", "runs")
TINY = {"task": "tool_calling", "model": "tiny", "group_size": 4}
STATE = {"experiment": "tool_main", "repeat": 0, "engine": "trl"}


def asked(methods=PAIR):
    return experiment(methods=methods).model_copy(update={"thresholds": {"format": (0.8,)}})


def score(step: int, value: float) -> dict:
    row = {"step": step, "benchmark": "laptop_tools", "metric": "average_accuracy", "value": value}
    return row | {"low": None, "high": None, "n_questions": 50}


def small_frames() -> dict[str, pd.DataFrame]:
    """Two methods, seeds 1 to 3: GDPO crosses at 30, 40 and never; DARA-Sym at 20, pending since 75, missing."""
    steps = {
        ("gdpo", 1): (25, 30, "reached", None),
        ("gdpo", 2): (33, 40, "reached", None),
        ("gdpo", 3): (None, None, "not_reached", None),
        ("dara_sym", 1): (15, 20, "reached", None),
        ("dara_sym", 2): (70, None, "pending", 75),
    }
    accuracy = {("gdpo", 1): 0.5, ("gdpo", 2): 0.6, ("gdpo", 3): 0.7, ("dara_sym", 1): 0.9, ("dara_sym", 2): 0.9}
    rows = {name: [] for name in ("runs", "crossings", "checkpoint_scores", "training_curves", "energies")}
    for method, seed in [(method, seed) for method in PAIR for seed in (1, 2, 3)]:
        key = TINY | {"run_id": f"{method}-{seed}", "method": method, "seed": seed}
        if (method, seed) not in steps:
            rows["runs"].append(key | STATE | {"steps": 0, "outcome": "missing", "origin": "missing"})
            continue
        rows["runs"].append(key | STATE | {"steps": 80, "outcome": "completed", "origin": "trained"})
        first, stable, status, pending = steps[method, seed]
        crossing = {"reward": "format", "threshold": 0.8, "first_step": first, "stable_step": stable}
        rows["crossings"].append(key | crossing | {"status": status, "pending_step": pending, "budget": 80})
        rows["checkpoint_scores"] += [key | score(80, accuracy[method, seed]), key | score(10, 0.1)]
        for step in range(1, 81):
            curve = {"step": step, "metric": "reward/format/mean", "value": 1.0 if step == 80 else 0.5}
            rows["training_curves"].append(key | curve)
    base = TINY | {"run_id": "base-tiny", "method": "base", "group_size": None, "seed": None}
    rows["checkpoint_scores"].append(base | score(0, 0.02))
    return {name: rows_to_frame(found, name) for name, found in rows.items()}


def stable_crossings(steps: dict[str, list[int | None]], budget: int = 80) -> dict[str, pd.DataFrame]:
    """Stable crossings of seeds 1, 2, ... by method (None: not within the budget); first crossings are 5 steps before."""
    rows: dict[str, list[dict]] = {"runs": [], "crossings": [], "energies": []}
    for method, found in steps.items():
        for seed, stable in enumerate(found, start=1):
            run = TINY | {"run_id": f"{method}-{seed}", "method": method, "seed": seed}
            rows["runs"].append(run | STATE | {"steps": budget, "outcome": "completed", "origin": "trained"})
            crossing = {"reward": "format", "threshold": 0.8, "stable_step": stable, "budget": budget}
            crossing["first_step"] = stable - 5 if stable else None
            rows["crossings"].append(run | crossing | {"status": "reached" if stable else "not_reached"})
    return {name: rows_to_frame(found, name) for name, found in rows.items()}


def compared(steps: dict[str, list[int | None]]) -> list[dict]:
    return build("comparisons", view(stable_crossings(steps), asked(tuple(steps)))).frame.to_dict("records")


# Crossings


def test_crossings_equal_hand_computed_numbers():
    table = build("crossings", view(small_frames(), asked()))
    gdpo, sym = table.frame.to_dict("records")
    assert (gdpo["First crossing"], gdpo["Stable crossing"]) == ("25 33 –", "30 40 –")
    assert (gdpo["Median first"], gdpo["Median stable"]) == ("33", "40")
    assert gdpo["Reached (%)"] == "2/3 [21, 94]"  # Wilson: .2077 to .9385
    assert (gdpo["share_low"], gdpo["share_high"]) == pytest.approx((0.20766, 0.93851), abs=1e-5)
    assert gdpo["Difference to GDPO"] == "–"
    assert (sym["First crossing"], sym["Stable crossing"]) == ("15 70 ?", "20 (75) ?")
    assert (sym["Median first"], sym["Median stable"], sym["Reached (%)"]) == ("42.5", ">60", "1/2 [9, 91]")
    assert math.isnan(sym["median_stable"])
    assert (sym["planned"], sym["missing"], sym["reached"], sym["pending"]) == (3, 1, 1, 1)
    assert {"Missing: DARA-Sym seed 3.", "Seeds: 1, 2, 3."} <= set(table.notes)


def test_difference_of_medians_to_gdpo():
    frames = small_frames()
    frames["crossings"] = frames["crossings"][frames["crossings"]["run_id"] != "dara_sym-2"]
    table = build("crossings", view(frames, asked()))
    assert table.frame["Difference to GDPO"].to_list() == ["–", "−20"]
    assert table.frame["difference"].iloc[1] == -20
    without = build("crossings", view(simulate(methods=("grpo",)), experiment(methods=("grpo",))))
    assert "Difference to GDPO" not in without.display


def test_the_median_curve_crosses_where_the_paper_says():
    """Published: the median curves of format reach 0.8 at step 34 (GRPO), 19 (GDPO), 15 (DARA-Sym), 14 (DARA-Asym)."""
    published = read_published(ROOT / "results/published/data")
    frame = build("crossings", PublishedView(published, load_published(ROOT)["tool_main"], read_methods(ROOT))).frame
    found = frame[frame["median_curve"].notna()].set_index("method")["median_curve"].to_dict()
    assert found == {"grpo": 34, "gdpo": 19, "dara_sym": 15, "dara_asym": 14}


def test_our_thresholds_have_medians_and_counts():
    frames = simulate("math")
    table = build("threshold_crossings", view(frames, experiment("math")))
    assert table.display == ["Method", "80 %", "90 %", "95 %", "99 %", "Saved (%)"]
    raw = table.frame.iloc[0]
    assert raw["80 %"] == f"{raw['stable_0.8']:g} ({raw['stable_0.8_reached']}/{raw['stable_0.8_runs']})"
    frames["crossings"] = frames["crossings"].iloc[:0]
    with pytest.raises(ValueError, match="no stable crossing of length"):
        build("threshold_crossings", view(frames, experiment("math")))


def test_marks_become_censored_times():
    marks = [
        CrossingEvent(2, None, "pending", 70, 80),
        CrossingEvent(1, 30, "reached", None, 80),
        CrossingEvent(1, 40, "reached", None, 80, 1),
    ]
    times = times_of(marks, "stable")
    assert (times.keys, times.steps, times.crossed) == (((1, 0), (1, 1), (2, 0)), (30, 40, 60), (True, True, False))
    assert (times.horizon, times_of(marks, "first").steps[-1], times_of([], "first")) == (60, 80, None)
    unknown = [CrossingEvent(None, step, "reached", None, 80) for step in (40, 30)]
    assert times_of(unknown, "stable").keys == ((-1, 0), (-1, 1))


# Comparisons


def test_comparisons_equal_hand_computed_numbers():
    gdpo, sym = compared({"gdpo": [30, 40, None], "dara_sym": [20, 36, 30]})
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


@pytest.mark.parametrize(
    ("gdpo", "sym", "shown"),
    [
        ([None, None], [None, None], {"Median": ">60", "Stable: difference": "0.0 [0.0, 0.0], 4 late",
                                      "Speed-up (%)": "not estimable", "Pairs": "2"}),
        ([50], [30], {"Pairs": "1", "Stable: difference": "−20.0", "Speed-up (%)": "40.0"}),
        ([50, 55, 58], [30, 31], {"Pairs": "2", "stable_difference": -22}),
    ],
    ids=["nobody crosses", "one run of each", "what has no partner is in no difference"],
)  # fmt: skip
def test_comparisons_of_few_runs(gdpo, sym, shown):
    row = compared({"gdpo": gdpo, "dara_sym": sym})[1]
    assert {name: row[name] for name in shown} == shown
    if gdpo == [None, None]:
        assert row["not_estimable"] == "the median of the method is >60 and the median of the baseline is >60"


def test_a_method_of_ones_own_is_also_set_against_dara():
    rows = compared({"gdpo": [50, 50], "dara_sym": [30, 30], "dvao": [40, 40]})
    assert [(row["method"], row["baseline"]) for row in rows[1:]] == [("dara_sym", "gdpo"), ("dvao", "gdpo")]
    methods = METHODS | {"mine": MethodEntry(label="Mine", color="#000000")}
    made = stable_crossings({"gdpo": [50, 50], "dara_sym": [30, 30], "mine": [40, 42]})
    table = build("comparisons", view(made, asked(("gdpo", "dara_sym", "mine")), methods)).frame
    mine = table[table["method"] == "mine"]
    assert (mine["Against"].tolist(), mine["stable_difference"].tolist()) == (["GDPO", "DARA-Sym"], [-9, 11])


def test_a_repeat_of_a_seed_is_paired_with_the_same_repeat():
    made = stable_crossings({"gdpo": [50, 40], "dara_sym": [30, 35]})
    for name in ("runs", "crossings"):
        made[name]["seed"] = 1
    made["runs"]["repeat"] = [int(run_id[-1]) - 1 for run_id in made["runs"]["run_id"]]
    row = build("comparisons", view(made, asked())).frame.iloc[1]
    assert (row["Pairs"], row["stable_difference"]) == ("2", -12.5)


def test_only_the_sparse_reward_its_thresholds_and_its_energy_share_are_compared():
    several = experiment(methods=PAIR).model_copy(
        update={"thresholds": {"correctness": (1.0,), "format": (0.5, 0.8, 0.9)}}
    )
    made = simulate(methods=PAIR)
    table = build("comparisons", view(made, several))
    assert table.frame["Threshold"].tolist() == ["0.5", "0.5", "0.8", "0.8", "0.9", "0.9"]
    raw = comparisons.RAW_OWN + comparisons.RAW_COMPARED
    assert set(table.frame.columns) - set(table.display) == {*raw, "Setting", "method", "baseline"}
    energies = made["energies"][made["energies"]["reward"] == "format"]
    shares = energies.dropna(subset=["share_after"]).groupby(["method", "run_id"])["share_after"].mean()
    assert table.frame["energy_share"].tolist()[:2] == pytest.approx([shares[method].mean() for method in PAIR])
    assert table.frame["Energy share (%)"].iloc[0] == f"{100 * shares['gdpo'].mean():.1f}"


def test_without_a_baseline_or_thresholds_there_are_no_comparisons():
    with pytest.raises(ValueError, match=r"nothing to compare among its methods \(grpo\); add gdpo"):
        build("comparisons", view(simulate(methods=("grpo",)), experiment(methods=("grpo",))))
    other = experiment(methods=PAIR).model_copy(update={"thresholds": {"correctness": (1.0,)}})
    with pytest.raises(ValueError, match="no thresholds of its sparse reward 'format'"):
        build("comparisons", view(simulate(methods=PAIR), other))


def test_missing_and_diverged_runs_in_comparisons():
    made = simulate(seeds=(100, 101), steps=40, methods=PAIR, missing=(("gdpo", 100), ("gdpo", 101)))
    table = build("comparisons", view(made, asked()))
    assert table.frame["Reached (%)"].iloc[0] == "missing"
    assert set(table.frame.loc[1, comparisons.COMPARED]) == {"–"}
    assert "Missing: GDPO seed 100, GDPO seed 101." in table.notes
    table = build("comparisons", view(simulate(methods=PAIR, diverged={("dara_sym", 101): 12}), asked()))
    assert table.frame["Reached (%)"].iloc[1].startswith("2/3")
    assert "Diverged: DARA-Sym seed 101 at step 12." in table.notes


# Runs, and what all tables share


def test_runs_say_where_they_come_from():
    frames = simulate(seeds=(100, 101), missing=(("dara_sym", 101),), methods=PAIR)
    frame = build("runs", view(frames, experiment(methods=PAIR))).frame
    assert frame["Method"].to_list() == ["GDPO", "GDPO", "DARA-Sym", "DARA-Sym"]
    assert frame["Origin"].to_list() == ["cached", "trained", "cached", "missing"]
    assert frame["Steps"].to_list() == ["80", "80", "80", "0"]


def some_settings_without_scores() -> dict[str, pd.DataFrame]:
    """At G = 8 every run is missing, at G = 16 every run diverged before its first checkpoint."""
    settings = (("small", 4), ("small", 8), ("small", 16))
    frames = simulate(methods=PAIR, seeds=(100, 101), steps=40, settings=settings)
    runs, scores = frames["runs"], frames["checkpoint_scores"]
    gone, diverged = (runs["group_size"] == size for size in (8, 16))
    runs.loc[gone, ["outcome", "origin", "steps"]] = ["missing", "missing", 0]
    runs.loc[diverged, ["outcome", "steps"]] = ["diverged", 5]
    for name in ("crossings", "training_curves", "energies"):
        frames[name] = frames[name][~frames[name]["run_id"].isin(runs.loc[gone, "run_id"])]
    return frames | {"checkpoint_scores": scores[~scores["run_id"].isin(runs.loc[gone | diverged, "run_id"])]}


@pytest.mark.parametrize("name", ["final_scores", "tool_step100", "score_intervals", "crossings", "comparisons"])
def test_a_setting_whose_runs_are_all_missing_or_diverged_does_not_cost_the_others_their_table(name):
    table = build(name, view(some_settings_without_scores(), experiment(methods=PAIR)))
    (missing,) = (note for note in table.notes if note.startswith("Missing: "))
    (diverged,) = (note for note in table.notes if note.startswith("Diverged: "))
    assert (missing.count("(small, G=8)"), diverged.count("(small, G=16) at step 5")) == (4, 4)
    if name == "final_scores":
        assert table.frame["G"].unique().tolist() == ["4"]
        assert "Not shown, without a score of a run that did not diverge: small, G=8; small, G=16." in table.notes


@pytest.mark.parametrize("name", NAMES)
def test_a_method_without_runs_shows_as_missing(name):
    frames = simulate(seeds=(100,), steps=40, methods=PAIR, missing=(("gdpo", 100),))
    table = build(name, view(frames, experiment(methods=("grpo", *PAIR))))
    assert {"Missing: GDPO seed 100.", "Without any run: GRPO."} <= set(table.notes)
    if name == "final_scores":
        assert "Without a score here: GRPO (no runs), GDPO (no runs)." in table.notes
    elif name != "runs":
        assert table.frame[table.frame["Method"] == "GDPO"].iloc[0]["Reached (%)"] == "missing"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", ["tool_calling", "math"])
def test_one_seed_of_six_steps_has_no_interval_over_seeds(name, task, tmp_path, recwarn):
    name = "math_final_scores" if (task, name) == ("math", "final_scores") else name
    table = build(name, view(simulate(task, steps=6, seeds=(100,), methods=PAIR), experiment(task, PAIR)))
    render_table(table, tmp_path / "smoke")
    assert not recwarn.list
    assert "Missing: none." in table.notes
    if "final_scores" in name:
        assert not table.frame[table.display].map(lambda cell: "[" in cell).any(axis=None)
    if name == "crossings":
        assert set(table.frame["Median stable"]) == {">0"}
        assert set(table.frame["Reached (%)"]) == {"0/1 [0, 79]"}


@pytest.mark.parametrize("name", NAMES)
def test_settings_have_a_column_and_an_empty_selection_is_an_error(name):
    frames = simulate(methods=PAIR, seeds=(100, 101), steps=40, settings=(("small", 4), ("small", 8)))
    table = build(name, view(frames, experiment(methods=PAIR)))
    if name != "runs":
        column = "G" if name == "final_scores" else "Setting"
        assert table.display[0] == column
        assert table.frame[column].nunique() == 2
    frames = simulate(seeds=(100,), steps=6, methods=PAIR, missing=(("gdpo", 100), ("dara_sym", 100)))
    with pytest.raises(ValueError, match=r"experiment other: .*`runs` has no run.*tool_main"):
        build(name, view(frames, experiment(name="other")))
    if name != "runs":
        with pytest.raises(ValueError, match=r"experiment tool_main: no .* 0 finished of 2 planned runs"):
            build(name, view(frames, experiment(methods=PAIR)))


@pytest.mark.parametrize("name", NAMES)
def test_rendered_tables_are_the_same_each_time_and_csv_has_raw_numbers(name, tmp_path):
    frames = small_frames()
    shuffled = {key: frame.sample(frac=1, random_state=5) for key, frame in frames.items()}
    first = render_table(build(name, view(frames, asked())), tmp_path / "a" / "tool.one")
    second = render_table(build(name, view(shuffled, asked())), tmp_path / "b" / "tool.one")
    assert [path.name for path in first] == ["tool.one.md", "tool.one.tex", "tool.one.csv"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    raw = pd.read_csv(io.BytesIO(first[2].read_bytes()))
    column = {"crossings": "share", "final_scores": "average_accuracy", "runs": "steps", "comparisons": "energy_share"}
    assert pd.api.types.is_numeric_dtype(raw[column[name]])


# Engines


def two_engines() -> dict[str, pd.DataFrame]:
    """Runs of both engines; those of OpenRLHF cross three steps later, and one of them does not cross."""
    ours = simulate(methods=PAIR)
    theirs = {name: ours[name].copy() for name in ("runs", "crossings")}
    for frame in theirs.values():
        frame["run_id"] = "openrlhf-" + frame["run_id"]
    theirs["runs"]["engine"] = "openrlhf"
    theirs["crossings"][["first_step", "stable_step"]] += 3
    late = (theirs["crossings"]["method"] == "gdpo") & (theirs["crossings"]["seed"] == 102)
    theirs["crossings"].loc[late, ["stable_step", "status"]] = [float("nan"), "not_reached"]
    return {**ours, **{name: pd.concat([ours[name], theirs[name]], ignore_index=True) for name in theirs}}


def test_each_engine_has_its_own_runs_and_medians():
    made = two_engines()
    table = build("engines", view(made, experiment(methods=PAIR)))
    crossings, runs = made["crossings"].set_index(["run_id", "threshold"])["stable_step"], made["runs"]
    for method in PAIR:
        of_trl = runs[(runs["method"] == method) & (runs["engine"] == "trl")].sort_values("seed")["run_id"]
        steps = [int(crossings[run, 0.8]) for run in of_trl]
        later = [step + 3 for step in steps]
        row = table.frame.set_index(["Threshold", "method"]).loc[("0.8", method)]
        assert (row["TRL: crossing"], row["median_trl"]) == (" ".join(map(str, steps)), sorted(steps)[1])
        if method == "gdpo":
            assert row["OpenRLHF: crossing"] == f"{later[0]} {later[1]} –"
            assert (row["reached_openrlhf"], row["planned_openrlhf"]) == (2, 3)
            assert row["median_openrlhf"] == max(later[:2])
        else:
            assert row["OpenRLHF: crossing"] == " ".join(map(str, later))
            assert (row["difference"], row["Difference OpenRLHF - TRL"]) == (3, "+3")
    assert any(note.startswith("OpenRLHF: ") for note in table.notes)
    with pytest.raises(ValueError, match="no runs of two engines \\(there are runs of trl\\)"):
        build("engines", view(simulate(methods=PAIR), experiment(methods=PAIR)))
