"""Tables of crossings, runs, settings and both sources: values computed by hand, published ones, and tables as files."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest

from dara.analysis.crossing import CrossingEvent, times_of
from dara.analysis.frames import rows_to_frame
from dara.analysis.tables import Table, build_table, crossings, render, render_table
from dara.analysis.tables.render import escape_latex, latex, markdown, number, signed, text_width, with_interval
from dara.analysis.view_published import PublishedView, read_published
from dara.analysis.view_runs import RunsView
from dara.loading import load_preset, load_published, read_methods
from project import ROOT
from scored_frames import build, cell, entry
from synthetic import METHODS, experiment, simulate, view

SMALL, QWEN3, R1 = "Qwen2.5-1.5B-Instruct", "Qwen3-4B-Instruct-2507", "DeepSeek-R1-Distill-Qwen-7B"
PAIR = ("gdpo", "dara_sym")
NAMES = ("comparisons", "crossings", "final_scores", "runs")
TINY = {"task": "tool_calling", "model": "tiny", "group_size": 4}


@pytest.fixture(scope="module")
def paper() -> dict[str, PublishedView]:
    """The experiments of config/published.yaml."""
    rows, methods = read_published(ROOT / "results/published/data"), read_methods(ROOT)
    return {name: PublishedView(rows, asked, methods) for name, asked in load_published(ROOT).items()}


def ours(task: str = "tool_calling", frames: dict | None = None) -> RunsView:
    return view(frames or simulate(task), experiment(task))


def asked(methods=PAIR):
    return experiment(methods=methods).model_copy(update={"thresholds": {"format": (0.8,)}})


def made_frames(runs: dict[tuple[str, int], dict | None], *scores: dict) -> dict[str, pd.DataFrame]:
    """Runs by method and seed, each with its crossing of 0.8 (None: the run is missing), and scores."""
    rows = {name: [] for name in ("runs", "crossings", "training_curves", "energies")}
    for (method, seed), crossing in runs.items():
        key = TINY | {"run_id": f"{method}-{seed}", "method": method, "seed": seed}
        state = {"steps": 0, "outcome": "missing", "origin": "missing"}
        if crossing:
            state = {"steps": 80, "outcome": "completed", "origin": "trained"}
            rows["crossings"].append(key | {"reward": "format", "threshold": 0.8, "budget": 80} | crossing)
            for step in range(1, 81):
                curve = {"step": step, "metric": "reward/format/mean", "value": 1.0 if step == 80 else 0.5}
                rows["training_curves"].append(key | curve)
        rows["runs"].append(key | state | {"experiment": "tool_main", "repeat": 0, "engine": "trl"})
    shared = {"benchmark": "laptop_tools", "metric": "average_accuracy", "n_questions": 50}
    rows["checkpoint_scores"] = [
        TINY | {"run_id": f"{one['method']}-{one.get('seed', 'tiny')}"} | shared | one for one in scores
    ]
    return {name: rows_to_frame(found, name) for name, found in rows.items()}


def small_frames() -> dict[str, pd.DataFrame]:
    """Two methods, seeds 1 to 3: GDPO crosses at 30, 40 and never; DARA-Sym at 20, pending since 75, missing."""
    names = ("first_step", "stable_step", "status", "pending_step")
    steps = {
        ("gdpo", 1): (25, 30, "reached", None),
        ("gdpo", 2): (33, 40, "reached", None),
        ("gdpo", 3): (None, None, "not_reached", None),
        ("dara_sym", 1): (15, 20, "reached", None),
        ("dara_sym", 2): (70, None, "pending", 75),
    }
    accuracy = dict(zip(steps, (0.5, 0.6, 0.7, 0.9, 0.9), strict=True))
    scores = [{"method": "base", "group_size": None, "step": 0, "value": 0.02}]
    for (method, seed), value in accuracy.items():
        scores += [{"method": method, "seed": seed, "step": step, "value": v} for step, v in ((80, value), (10, 0.1))]
    found = {run: dict(zip(names, values, strict=True)) for run, values in steps.items()}
    return made_frames(found | {("dara_sym", 3): None}, *scores)


def stable_crossings(steps: dict[str, list[int | None]]) -> dict[str, pd.DataFrame]:
    """Stable crossings of seeds 1, 2, ... by method (None: not within 80 steps); first crossings are 5 steps before."""
    found = {}
    for method, of_method in steps.items():
        for seed, stable in enumerate(of_method, start=1):
            first, status = (stable - 5, "reached") if stable else (None, "not_reached")
            found[method, seed] = {"first_step": first, "stable_step": stable, "status": status}
    return made_frames(found)


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


def test_the_median_curve_crosses_where_the_paper_says(paper):
    """Published: the median curves of format reach 0.8 at step 34 (GRPO), 19 (GDPO), 15 (DARA-Sym), 14 (DARA-Asym)."""
    frame = build("crossings", paper["tool_main"]).frame
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
    runs = [(2, None, "pending", 70, 80), (1, 30, "reached", None, 80), (1, 40, "reached", None, 80, 1)]
    marks = [CrossingEvent(*run) for run in runs]
    times = times_of(marks, "stable")
    assert (times.keys, times.steps, times.crossed) == (((1, 0), (1, 1), (2, 0)), (30, 40, 60), (True, True, False))
    assert (times.horizon, times_of(marks, "first").steps[-1], times_of([], "first")) == (60, 80, None)
    unknown = [CrossingEvent(None, step, "reached", None, 80) for step in (40, 30)]
    assert times_of(unknown, "stable").keys == ((-1, 0), (-1, 1))


# Comparisons


def test_comparisons_equal_hand_computed_numbers():
    gdpo, sym = compared({"gdpo": [30, 40, None], "dara_sym": [20, 36, 30]})
    assert (gdpo["Reached (%)"], gdpo["Median"], gdpo["Against"]) == ("2/3 [21, 94]", "40", "–")
    assert {gdpo[column] for column in crossings.COMPARED} == {"–"}
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
    methods = METHODS | {"mine": METHODS["dvao"].model_copy(update={"label": "Mine"})}
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
    thresholds = {"correctness": (1.0,), "format": (0.5, 0.8, 0.9)}
    several = experiment(methods=PAIR).model_copy(update={"thresholds": thresholds})
    made = simulate(methods=PAIR)
    table = build("comparisons", view(made, several))
    assert table.frame["Threshold"].tolist() == ["0.5", "0.5", "0.8", "0.8", "0.9", "0.9"]
    raw = crossings.RAW_OWN + crossings.RAW_COMPARED
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
    if name == "comparisons":
        assert set(table.frame.loc[table.frame["Method"] == "DARA-Sym", crossings.COMPARED].iloc[0]) == {"–"}


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
    raw = pd.read_csv(first[2])
    column = {"crossings": "share", "final_scores": "average_accuracy", "runs": "steps", "comparisons": "energy_share"}
    assert pd.api.types.is_numeric_dtype(raw[column[name]])


# Engines


def test_each_engine_has_its_own_runs_and_medians():
    made = stable_crossings({"gdpo": [30, 40, 50], "dara_sym": [20, 24, 28]})
    other = stable_crossings({"gdpo": [33, 43, None], "dara_sym": [23, 27, 31]})
    other["runs"]["engine"] = "openrlhf"
    for name in ("runs", "crossings"):
        other[name]["run_id"] = "openrlhf-" + other[name]["run_id"]
        made[name] = pd.concat([made[name], other[name]], ignore_index=True)
    table = build("engines", view(made, asked()))
    gdpo, sym = table.frame.to_dict("records")
    assert (gdpo["TRL: crossing"], gdpo["median_trl"]) == ("30 40 50", 40)
    assert (gdpo["OpenRLHF: crossing"], gdpo["median_openrlhf"]) == ("33 43 –", 43)
    assert (gdpo["reached_openrlhf"], gdpo["planned_openrlhf"]) == (2, 3)
    assert (sym["OpenRLHF: crossing"], sym["difference"], sym["Difference OpenRLHF - TRL"]) == ("23 27 31", 3, "+3")
    assert any(note.startswith("OpenRLHF: ") for note in table.notes)
    with pytest.raises(ValueError, match="no runs of two engines \\(there are runs of trl\\)"):
        build("engines", view(simulate(methods=PAIR), experiment(methods=PAIR)))


# Thresholds and side by side


def test_thresholds_and_the_41_to_65_percent(paper):
    table = build_table("threshold_crossings", paper["math_main"])
    saved = {
        (model, method): cell(table, "Saved (%)", Model=model, method=method)
        for model in (QWEN3, R1)
        for method in ("dara_asym", "dara_sym", "gdpo")
    }
    assert saved == {
        (QWEN3, "dara_asym"): "40.5", (QWEN3, "dara_sym"): "46.8", (QWEN3, "gdpo"): "–",
        (R1, "dara_asym"): "60.6", (R1, "dara_sym"): "64.8", (R1, "gdpo"): "–",
    }  # fmt: skip
    assert cell(table, "99 %", Model=R1, method="grpo") == "215"
    assert cell(table, "80 %", Model=QWEN3, method="dvao") == "21"
    assert "Without stable crossings in this source: DeepSeek-R1-Distill-Qwen-1.5B, G=16." in table.notes
    assert any("235 steps" in note for note in table.notes)


def test_side_by_side_has_the_26_percent(paper):
    table = build_table("side_by_side", ours(), paper["tool_main"])
    small = {"Published model": SMALL}
    steps = table.frame[(table.frame["Quantity"] == "Steps to format 0.8") & (table.frame["Published model"] == SMALL)]
    assert dict(zip(steps["method"], steps["published"], strict=True)) == {
        "grpo": 34, "gdpo": 19, "dara_sym": 15, "dara_asym": 14,
    }  # fmt: skip
    saved = cell(table, "published", Quantity="Steps saved (%)", method="dara_asym", **small)
    assert saved == pytest.approx((19 - 14) / 19)
    assert cell(table, "Published", Quantity="Steps saved (%)", method="dara_asym", **small).startswith("26.3 [")
    row = steps[steps["method"] == "gdpo"].iloc[0]
    assert row["difference"] == row["ours"] - row["published"]
    assert (row["published_low"], row["published_high"], row["n pub."]) == (16, 75, "5/5")
    text = "\n".join(table.notes)
    assert "The scales differ" in text
    assert "Contradiction 13: a slow seed; GDPO has two modes" in text
    assert "DVAO" not in text  # a method that is not in both


def test_side_by_side_of_math_has_crossings_scores_and_energies(paper):
    frames = simulate("math")
    energies = frames["energies"]
    sparse = energies["reward"] == "length"
    energies[["energy_pos", "energy_neg", "contributed_pos", "contributed_neg"]] = 50.0
    energies.loc[sparse, ["energy_pos", "energy_neg"]] = [2.0, 8.0]
    energies.loc[sparse, ["contributed_pos", "contributed_neg"]] = [40.0, 50.0 / 5]
    table = build_table("side_by_side", ours("math", frames), paper["math_main"])
    quantities = list(dict.fromkeys(table.frame["Quantity"]))
    assert quantities == ["Steps to length 0.99", "Steps saved (%)", "Exceed (%)", "Energy ratio"]
    of = {"Quantity": "Steps saved (%)", "Published model": QWEN3}
    assert cell(table, "Published", method="dara_sym", **of) == "46.8"
    rows = paper["math_main"].rows
    energy = rows[(rows["metric"] == "energy_ratio") & (rows["model"] == QWEN3) & (rows["method"] == "gdpo")]
    last = energy.sort_values("step")["value"].tail(10).median()
    assert cell(table, "published", method="gdpo", **of | {"Quantity": "Energy ratio"}) == last
    ratios = {method: cell(table, "Ours", method=method, **of | {"Quantity": "Energy ratio"}) for method in PAIR}
    assert ratios == {"gdpo": "0.10 [0.10, 0.10]", "dara_sym": "0.50 [0.50, 0.50]"}  # 10 / 100 and 50 / 100
    slow = frames["crossings"]["method"] == "gdpo"
    frames["crossings"].loc[slow, ["first_step", "stable_step", "pending_step"]] = None
    frames["crossings"].loc[slow, "status"] = "not_reached"
    table = build_table("side_by_side", ours("math", frames), paper["math_main"])
    steps = of | {"Quantity": "Steps to length 0.99", "method": "gdpo"}
    assert (cell(table, "Ours", **steps), cell(table, "Difference", **steps)) == (">90", "–")  # beyond the budget
    assert cell(table, "Ours", method="dara_sym", **of) == "not estimable"


def test_scores_side_by_side(paper):
    tools = build_table(entry("tool_step100", "side_by_side"), ours(), paper["tool_main"])
    of = {"Quantity": "Accuracy (%)", "Published model": SMALL, "method": "dara_sym"}
    assert cell(tools, "Published", **of) == "51.2"
    assert cell(tools, "difference", **of) == pytest.approx(cell(tools, "ours", **of) - 0.511731, abs=1e-6)
    maths = build_table(entry("math_step50", "side_by_side"), ours("math"), paper["math_main"])
    assert set(maths.frame["Quantity"]) == {"Acc (%)", "Exceed (%)", "Joint (%)"}
    with pytest.raises(ValueError, match="no quantity in common"):
        build_table(entry("tool_step100", "side_by_side"), ours("math"), paper["tool_main"])


# Settings


def test_settings_of_both_sources(paper):
    preset = load_preset(ROOT, ROOT / "config/presets/laptop.yaml").preset
    view = RunsView(simulate(), experiment(), read_methods(ROOT), "laptop")
    mine = build_table("hyperparameters", view, preset=preset)
    theirs = build_table("hyperparameters", paper["tool_main"])
    assert cell(mine, "Value", setting="learning_rate") == "0.0002"
    assert cell(mine, "Value", setting="responses_per_step") == "128"
    assert cell(mine, "For", setting="w_max") == "DARA-Sym, DARA-Asym"
    assert cell(theirs, "Value", setting="learning_rate") == "1e-06"
    assert cell(theirs, "Value", setting="prompts_per_step") == "512"
    assert any(note.endswith("Contradictions explained there: 7, 9, 11.") for note in theirs.notes)
    both = build_table("hyperparameters", view, paper["tool_main"], preset=preset)
    assert (cell(both, "Ours", setting="group_size"), cell(both, "Published", setting="group_size")) == ("4", "4")
    with pytest.raises(ValueError, match="no preset was given"):
        build_table("hyperparameters", view)


@pytest.mark.parametrize("task", ["tool_calling", "math"])
def test_settings_of_the_papers_own_scale(task):
    preset = load_preset(ROOT, ROOT / "config/presets/paper.yaml").preset
    view = RunsView(simulate(task), experiment(task), read_methods(ROOT), "paper")
    table = build_table("hyperparameters", view, preset=preset)
    shown = table.frame.set_index("setting")["Value"]
    if task == "math":
        assert shown["dataset"] == "deepscaler at 0459102"
        assert (shown["kl_loss_coefficient"], shown["candidate_groups"], shown["dual_clip"]) == ("0.0005", "768", "3")
        assert shown["evaluation/length_limit_tokens"] == shown["length_limit_tokens"] == "4000"
    else:
        assert (shown["dataset"], shown["validation_rows"]) == ("toolrl at 8cee13e", "80")
        assert (shown["precision"], shown["final_normalization"]) == ("bfloat16", "token")
        assert cell(table, "Remark", setting="kl_reward_coefficient") == "only GRPO feels it"
        assert not {"length_limit", "dual_clip"} & set(shown.index)  # what this experiment has not


# As files


def every_published(paper: dict[str, PublishedView]) -> dict[str, Table]:
    """All tables of config/published.yaml, and two wide ones of made-up runs."""
    views = paper.values()
    found = {output: build_table(made, one) for one in views for output, made in one.experiment.tables.items()}
    several = ours(frames=simulate(settings=(("small", 4), ("small", 8))))
    return found | {f"our {name}": build_table(name, several) for name in ("crossings", "comparisons", "runs")}


def widths(text: str) -> list[float]:
    """The width of each tabular: its widest cells, the gaps, and paragraphs as wide as they are set."""
    text = text.replace(r"$\pm$", "±").replace("$-$", "−")
    size = re.search(r"\\(\w+)\n\\setlength", text)[1]
    found = []
    for alignment, body in re.findall(r"begin\{tabular\}\{@\{\}(.*?)@\{\}\}\n(.*?)\\end\{tabular\}", text, re.DOTALL):
        columns = re.findall(r"[lr]|p\{(\d+)pt\}", alignment)
        rows = re.findall(r"^(.*) \\tabularnewline$", body, re.MULTILINE)
        cells = [[re.sub(r"\\text\w+|[\\${}]", "", cell) for cell in row.split(" & ")] for row in rows]
        natural = [render.SIZES[size] * max(map(text_width, column)) for column in zip(*cells, strict=True)]
        set_to = [float(width) if width else own for width, own in zip(columns, natural, strict=True)]
        found.append(sum(set_to) + render.GAP * (len(columns) - 1))
    return found


def test_every_table_fits_a_column_or_a_page(paper):
    wide = set()
    for name, table in every_published(paper).items():
        text = latex(table)
        assert text.startswith("% Packages: booktabs"), name
        page = r"\begin{table*}" in text
        assert widths(text), name
        assert max(widths(text)) <= (render.PAGE if page else render.COLUMN), name
        wide |= {name} if page else set()
        body = re.sub(r"^%.*", "", text)
        assert "±" not in body
        assert "%" not in body.replace(r"\%", "")
        assert "_" not in body.replace(r"\_", "")
        assert len(markdown(table).splitlines()) == 4 + len(table.frame) + 1 + len(table.notes)
        assert set(table.numeric) - {"G"} <= set(table.display)
        assert not (table.frame[table.display] == "").all().any(), "a column that says nothing"
    assert {"tool_step100", "tool_hyperparameters", "our comparisons"} <= wide
    assert "fixed_weight_scores" not in wide


def test_latex_is_booktabs_and_escaped_with_shared_headings():
    columns = {"A_b (%)": ["50 % & more", "~x^2 {y} #1 $2 \\z"], "Δ": ["−3", "[1, 2] ± 3"], "Acc X": ["1", "2"]}
    frame = pd.DataFrame(columns | {"Acc Y": ["3", "4"], "raw": [1.5, 2.5]})
    text = latex(Table(frame, "100 % of a_b", ["p < 0.5 & more_"], ["A_b (%)", "Δ", "Acc X", "Acc Y"], ("Acc Y",)))
    for needed in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{100 \% of a\_b}", r"\begin{table}"):
        assert needed in text
    assert r"&  & \multicolumn{2}{c}{Acc} \\" in text
    assert "\\cmidrule(lr){3-4}\nA\\_b (\\%) & Δ & X & Y \\\\" in text
    assert r"50 \% \& more & $-$3 & 1 & 3 \tabularnewline" in text
    escaped = r"\textasciitilde{}x\textasciicircum{}2 \{y\} \#1 \$2 \textbackslash{}z"
    assert escaped + r" & [1, 2] $\pm$ 3 & 2 & 4 \tabularnewline" in text
    assert r"p \textless{} 0.5 \& more\_\par" in text
    assert "1.5" not in text
    assert escape_latex("a|b>c–d") == r"a\textbar{}b\textgreater{}c--d"


def test_a_long_table_continues_on_the_next_page_and_a_wide_one_below():
    rows = {f"C{number}": ["a cell of some words"] * 150 for number in range(8)}
    text = latex(Table(pd.DataFrame({"Method": ["M"] * 150, **rows}), "Long", ["Note."], ["Method", *rows]))
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") > 2
    assert text.count("(continued)") == text.count(r"\addtocounter{table}{-1}") == text.count(r"\begin{table*}") - 1
    assert text.count("Method & ") == text.count(r"\begin{tabular}")
    assert text.count("Note.") == 1
    assert max(widths(text)) <= render.PAGE


def test_markdown_escapes_the_column_separator(tmp_path):
    table = Table(pd.DataFrame({"A": ["x|y"]}), "Title", ["Note."], ["A"])
    text = render_table(table, tmp_path / "t")[0].read_text()
    assert text == "**Title**\n\n| A |\n| --- |\n| x\\|y |\n\n- Note.\n"


def test_a_table_without_rows_or_with_numbers_for_display_is_an_error():
    for cells, message in (([], "'Title' has no row"), ([1.5], r"column 'A': 1\.5 must be a string")):
        with pytest.raises(ValueError, match=message):
            Table(pd.DataFrame({"A": cells}), "Title", [], ["A"])


def test_numbers_in_cells():
    assert (number(24.5), number(-3.0), number(float("nan")), number(None)) == ("24.5", "−3", "–", "–")
    assert (signed(4.0), signed(-2.5), signed(0.0), signed(float("nan"))) == ("+4", "−2.5", "0", "–")
    assert with_interval(0.5, 0.4, 0.6, 1, 100) == "50.0 [40.0, 60.0]"
    assert with_interval(0.5, float("nan"), float("nan"), 1, 100) == "50.0"
