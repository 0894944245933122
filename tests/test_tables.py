"""Tables: numbers against values computed by hand, and Markdown, LaTeX and CSV as they are written."""

from __future__ import annotations

import io
import math

import pandas as pd
import pytest

from dara.analysis.frames import rows_to_frame
from dara.analysis.paper_numbers import read_published
from dara.analysis.tables import TABLES
from dara.analysis.tables.cells import number, signed, with_interval
from dara.analysis.tables.final_scores import last_common_step
from dara.analysis.tables.render import Table, escape_latex, latex, render_table
from dara.analysis.view_published import PublishedView
from dara.loading import load_published, read_methods
from project import ROOT
from synthetic import experiment, simulate, view

PAIR = ("gdpo", "dara_sym")
NAMES = ("comparisons", "crossings", "final_scores", "runs")


def small_frames() -> dict[str, pd.DataFrame]:
    """Two methods, seeds 1 to 3: GDPO crosses at 30, 40 and never; DARA-Sym at 20, pending since 75, missing."""
    run = {"task": "tool_calling", "model": "tiny", "group_size": 4}
    steps = {
        ("gdpo", 1): (25, 30, "reached", None),
        ("gdpo", 2): (33, 40, "reached", None),
        ("gdpo", 3): (None, None, "not_reached", None),
        ("dara_sym", 1): (15, 20, "reached", None),
        ("dara_sym", 2): (70, None, "pending", 75),
    }
    accuracy = {("gdpo", 1): 0.5, ("gdpo", 2): 0.6, ("gdpo", 3): 0.7, ("dara_sym", 1): 0.9, ("dara_sym", 2): 0.9}
    rows: dict[str, list[dict]] = {
        "runs": [],
        "crossings": [],
        "checkpoint_scores": [],
        "training_curves": [],
        "energies": [],
    }
    for method in PAIR:
        for seed in (1, 2, 3):
            key = run | {"run_id": f"{method}-{seed}", "method": method, "seed": seed}
            gone = (method, seed) not in steps
            state = (
                {"outcome": "missing", "origin": "missing"} if gone else {"outcome": "completed", "origin": "trained"}
            )
            rows["runs"].append(
                key | state | {"experiment": "tool_main", "repeat": 0, "steps": 0 if gone else 80, "engine": "trl"}
            )
            if gone:
                continue
            first, stable, status, pending = steps[method, seed]
            crossing = {"reward": "format", "threshold": 0.8, "first_step": first, "stable_step": stable}
            rows["crossings"].append(key | crossing | {"status": status, "pending_step": pending, "budget": 80})
            rows["checkpoint_scores"].append(key | score(80, accuracy[method, seed]))
            rows["checkpoint_scores"].append(key | score(10, 0.1))
            for step in range(1, 81):
                curve = {"step": step, "metric": "reward/format/mean", "value": 1.0 if step == 80 else 0.5}
                rows["training_curves"].append(key | curve)
    base = {
        "run_id": "base-tiny",
        "task": "tool_calling",
        "model": "tiny",
        "method": "base",
        "group_size": None,
        "seed": None,
    }
    rows["checkpoint_scores"].append(base | score(0, 0.02))
    return {name: rows_to_frame(found, name) for name, found in rows.items()}


def score(step: int, value: float) -> dict:
    return {
        "step": step,
        "benchmark": "laptop_tools",
        "metric": "average_accuracy",
        "value": value,
        "low": None,
        "high": None,
        "n_questions": 50,
    }


def asked():
    return experiment(methods=PAIR).model_copy(update={"thresholds": {"format": (0.8,)}})


def test_crossings_equal_hand_computed_numbers():
    table = TABLES["crossings"].build(view(small_frames(), asked()))
    gdpo, sym = table.frame.to_dict("records")
    assert (gdpo["First crossing"], gdpo["Stable crossing"]) == ("25 33 –", "30 40 –")
    assert (gdpo["Median first"], gdpo["Median stable"]) == ("33", "40")
    assert gdpo["Got there (%)"] == "2/3 [21, 94]"  # Wilson: .2077 to .9385
    assert (gdpo["share_low"], gdpo["share_high"]) == pytest.approx((0.20766, 0.93851), abs=1e-5)
    assert gdpo["Difference to GDPO"] == "–"
    assert (sym["First crossing"], sym["Stable crossing"]) == ("15 70 ?", "20 (75) ?")
    assert (sym["Median first"], sym["Median stable"]) == ("42.5", ">60")
    assert math.isnan(sym["median_stable"])
    assert sym["Got there (%)"] == "1/2 [9, 91]"
    assert (sym["planned"], sym["missing"], sym["reached"], sym["pending"]) == (3, 1, 1, 1)
    assert "Missing: DARA-Sym seed 3." in table.notes
    assert "Seeds: 1, 2, 3." in table.notes
    assert any("Wilson" in note for note in table.notes)


def test_difference_of_medians_to_gdpo():
    frames = small_frames()
    crossings = frames["crossings"]
    frames["crossings"] = crossings[crossings["run_id"] != "dara_sym-2"]
    table = TABLES["crossings"].build(view(frames, asked()))
    assert table.frame["Difference to GDPO"].to_list() == ["–", "−20"]
    assert table.frame["difference"].iloc[1] == -20
    without = TABLES["crossings"].build(view(simulate(methods=("grpo",)), experiment(methods=("grpo",))))
    assert "Difference to GDPO" not in without.display
    assert "No difference of medians: the experiment does not have GDPO." in without.notes


def test_final_scores_equal_hand_computed_numbers():
    table = TABLES["final_scores"].build(view(small_frames(), asked()))
    base, gdpo, sym = table.frame.to_dict("records")
    assert (base["Method"], base["Step"], base["Runs"], base["Average Accuracy (%)"]) == ("Base", "0", "1", "2.0")
    # mean .6, s .1, t(2) 4.3027: .6 +- .2484
    assert gdpo["Average Accuracy (%)"] == "60.0 [35.2, 84.8]"
    assert gdpo["average_accuracy"] == pytest.approx(0.6)
    assert gdpo["average_accuracy_t_low"] == pytest.approx(0.35159, abs=1e-5)
    assert (gdpo["Step"], gdpo["Runs"], gdpo["average_accuracy_n"]) == ("80", "3 of 3", 3)
    assert (sym["Average Accuracy (%)"], sym["Runs"]) == ("90.0 [90.0, 90.0]", "2 of 3")
    assert sym["Average Format (%)"] == "–"
    assert gdpo["train_format"] == pytest.approx(0.55)  # steps 71 to 80: nine times .5 and once 1
    assert (gdpo["Train format"], base["Train format"]) == ("0.550 [0.550, 0.550]", "–")
    assert any("Student's t over seeds" in note for note in table.notes)


def test_scores_are_compared_at_the_last_step_that_all_runs_have():
    scores = pd.DataFrame({"run_id": list("aaabb"), "method": "gdpo", "step": [10, 20, 30, 10, 20]})
    assert last_common_step(scores) == 20
    with pytest.raises(ValueError, match="share no scored step"):
        last_common_step(scores[scores["step"].isin([30, 10]) & ~((scores["run_id"] == "a") & (scores["step"] == 10))])


def test_a_diverged_run_is_named_and_left_out_of_the_means():
    frames = simulate(diverged={("grpo", 101): 23})
    table = TABLES["final_scores"].build(view(frames, experiment()))
    grpo = table.frame[table.frame["Method"] == "GRPO"].iloc[0]
    assert (grpo["Step"], grpo["Runs"]) == ("80", "2 of 3")
    assert "Diverged: GRPO seed 101 at step 23." in table.notes
    assert "Diverged runs are left out of the means." in table.notes


SETTINGS = (("small", 4), ("small", 8), ("small", 16))


def some_settings_without_scores() -> dict[str, pd.DataFrame]:
    """At G = 8 every run is missing, at G = 16 every run diverged before its first checkpoint."""
    frames = simulate(methods=PAIR, seeds=(100, 101), steps=40, settings=SETTINGS)
    runs, scores = frames["runs"], frames["checkpoint_scores"]
    gone, diverged = (runs["group_size"] == size for size in (8, 16))
    runs.loc[gone, ["outcome", "origin", "steps"]] = ["missing", "missing", 0]
    runs.loc[diverged, ["outcome", "steps"]] = ["diverged", 5]
    without = runs.loc[gone, "run_id"]
    frames = {name: frame[~frame["run_id"].isin(without)] if name in ("crossings", "training_curves", "energies")
              else frame for name, frame in frames.items()}  # fmt: skip
    return frames | {"checkpoint_scores": scores[~scores["run_id"].isin(runs.loc[gone | diverged, "run_id"])]}


@pytest.mark.parametrize("name", ["final_scores", "tool_scores", "score_intervals", "crossings", "comparisons"])
def test_a_setting_whose_runs_are_all_missing_or_diverged_does_not_cost_the_others_their_table(name):
    table = TABLES[name].build(view(some_settings_without_scores(), experiment(methods=PAIR)))
    (missing,) = (note for note in table.notes if note.startswith("Missing: "))
    (diverged,) = (note for note in table.notes if note.startswith("Diverged: "))
    assert (missing.count("(small, G=8)"), diverged.count("(small, G=16) at step 5")) == (4, 4)
    if name == "final_scores":
        assert table.frame["Setting"].unique().tolist() == ["small, G=4"]
        note = "Not shown, without a score of a run that did not diverge: small, G=8; small, G=16."
        assert note in table.notes


def test_scores_without_any_completed_run_are_an_error():
    frames = simulate(methods=PAIR, seeds=(100,), steps=40, diverged={("gdpo", 100): 12, ("dara_sym", 100): 12})
    with pytest.raises(ValueError, match="experiment tool_main: no checkpoint score of a run that did not diverge"):
        TABLES["final_scores"].build(view(frames, experiment(methods=PAIR)))


def test_math_scores_have_every_grader():
    table = TABLES["final_scores"].build(view(simulate("math"), experiment("math")))
    scores = ["Acc (%)", "Exceed (%)", "Joint (%)", "strict (%)", "math-verify (%)"]
    assert table.display == ["Method", "Step", "Runs", *scores, "Train correctness", "Train length"]
    assert table.frame["Method"].to_list() == ["Base", "GRPO", "GDPO", "DARA-Sym", "DARA-Asym"]


def test_runs_say_where_they_come_from():
    frames = simulate(seeds=(100, 101), missing=(("dara_sym", 101),), methods=PAIR)
    table = TABLES["runs"].build(view(frames, experiment(methods=PAIR)))
    assert table.frame["Method"].to_list() == ["GDPO", "GDPO", "DARA-Sym", "DARA-Sym"]
    assert table.frame["Origin"].to_list() == ["cached", "trained", "cached", "missing"]
    assert table.frame["Steps"].to_list() == ["80", "80", "80", "0"]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_without_runs_shows_as_missing(name):
    frames = simulate(seeds=(100,), steps=40, methods=PAIR, missing=(("gdpo", 100),))
    table = TABLES[name].build(view(frames, experiment(methods=("grpo", *PAIR))))
    assert "Missing: GDPO seed 100." in table.notes
    assert "Without any run: GRPO." in table.notes
    if name != "runs":
        gdpo = table.frame[table.frame["Method"] == "GDPO"].iloc[0]
        assert "missing" in (gdpo.get("Runs"), gdpo.get("Got there (%)"), gdpo.get("Reached (%)"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", ["tool_calling", "math"])
def test_one_seed_of_six_steps_has_no_interval_over_seeds(name, task, tmp_path, recwarn):
    frames = simulate(task, steps=6, seeds=(100,), methods=PAIR)
    table = TABLES[name].build(view(frames, experiment(task, PAIR)))
    render_table(table, tmp_path / "smoke")
    assert not recwarn.list
    assert "Missing: none." in table.notes
    if name == "final_scores":
        shown = table.frame[[column for column in table.display if column not in ("Method", "Step", "Runs")]]
        assert not shown.map(lambda cell: "[" in cell).any(axis=None)
        assert any("over the last 6 steps" in note for note in table.notes)
    if name == "crossings":
        assert set(table.frame["Median stable"]) == {">0"}
        assert set(table.frame["Got there (%)"]) == {"0/1 [0, 79]"}


@pytest.mark.parametrize("name", NAMES)
def test_settings_have_a_column_where_there_are_several(name):
    frames = simulate(methods=PAIR, seeds=(100, 101), steps=40, settings=(("small", 4), ("small", 8)))
    table = TABLES[name].build(view(frames, experiment(methods=PAIR)))
    if name != "runs":
        assert table.display[0] == "Setting"
        assert set(table.frame["Setting"]) == {"small, G=4", "small, G=8"}


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_selection_is_an_error(name):
    frames = simulate(seeds=(100,), steps=6, methods=PAIR, missing=(("gdpo", 100), ("dara_sym", 100)))
    with pytest.raises(ValueError, match=r"experiment other: .*`runs` has no run.*tool_main"):
        TABLES[name].build(view(frames, experiment(name="other")))
    if name != "runs":
        with pytest.raises(ValueError, match=r"experiment tool_main: no .* 0 finished of 2 planned runs"):
            TABLES[name].build(view(frames, experiment(methods=PAIR)))


@pytest.mark.parametrize("name", NAMES)
def test_rendered_tables_are_the_same_each_time_and_csv_has_raw_numbers(name, tmp_path):
    frames = small_frames()
    shuffled = {key: frame.sample(frac=1, random_state=5) for key, frame in frames.items()}
    first = render_table(TABLES[name].build(view(frames, asked())), tmp_path / "a" / "tool.one")
    second = render_table(TABLES[name].build(view(shuffled, asked())), tmp_path / "b" / "tool.one")
    assert [path.name for path in first] == ["tool.one.md", "tool.one.tex", "tool.one.csv"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    raw = pd.read_csv(io.BytesIO(first[2].read_bytes()))
    column = {
        "crossings": "share", "final_scores": "average_accuracy", "runs": "steps", "comparisons": "energy_share"
    }[name]  # fmt: skip
    assert pd.api.types.is_numeric_dtype(raw[column])


def test_latex_is_booktabs_and_escaped():
    frame = pd.DataFrame(
        {"A_b (%)": ["50 % & more", "~x^2 {y} #1 $2 \\z"], "Δ": ["−3", "[1, 2] ± 3"], "raw": [1.5, 2.5]}
    )
    text = latex(Table(frame, "100 % of a_b", ["p < 0.5 & more_"], ["A_b (%)", "Δ"]))
    for needed in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{100 \% of a\_b}", r"A\_b (\%) & Δ \\"):
        assert needed in text
    assert r"50 \% \& more & $-$3 \\" in text
    escaped = r"\textasciitilde{}x\textasciicircum{}2 \{y\} \#1 \$2 \textbackslash{}z"
    assert escaped + r" & [1, 2] $\pm$ 3 \\" in text
    assert r"p \textless{} 0.5 \& more\_\par" in text
    assert "1.5" not in text
    assert escape_latex("a|b>c–d") == r"a\textbar{}b\textgreater{}c--d"


def test_markdown_escapes_the_column_separator(tmp_path):
    table = Table(pd.DataFrame({"A": ["x|y"]}), "Title", ["Note."], ["A"])
    text = render_table(table, tmp_path / "t")[0].read_text()
    assert text == "**Title**\n\n| A |\n| --- |\n| x\\|y |\n\n- Note.\n"


def test_a_table_without_rows_or_with_numbers_for_display_is_an_error():
    with pytest.raises(ValueError, match="'Title' has no row"):
        Table(pd.DataFrame({"A": []}), "Title", [], ["A"])
    with pytest.raises(ValueError, match=r"column 'A': 1\.5 must be a string"):
        Table(pd.DataFrame({"A": [1.5]}), "Title", [], ["A"])


def test_numbers_in_cells():
    assert number(24.5) == "24.5"
    assert number(-3.0) == "−3"
    assert number(math.nan) == number(None) == "–"
    assert (signed(4.0), signed(-2.5), signed(0.0), signed(math.nan)) == ("+4", "−2.5", "0", "–")
    assert with_interval(0.5, 0.4, 0.6, 1, 100) == "50.0 [40.0, 60.0]"
    assert with_interval(0.5, math.nan, math.nan, 1, 100) == "50.0"


def test_the_median_curve_crosses_where_the_paper_says():
    """Published: the median curves of format reach 0.8 at step 34 (GRPO), 19 (GDPO), 15 (DARA-Sym), 14 (DARA-Asym)."""
    published = read_published(ROOT / "results/published/data")
    theirs = PublishedView(published, load_published(ROOT)["tool_main"], read_methods(ROOT))
    frame = TABLES["crossings"].build(theirs).frame
    found = frame[frame["median_curve"].notna()].set_index("method")["median_curve"].to_dict()
    assert found == {"grpo": 34, "gdpo": 19, "dara_sym": 15, "dara_asym": 14}
