"""Tables of scores, thresholds, settings and sources side by side: against the published rows, and on made-up runs."""

from __future__ import annotations

import math

import pytest

from dara.analysis.paper_numbers import read_published
from dara.analysis.survival import times_of
from dara.analysis.tables import (
    extended,
    fixed_weights,
    hyperparameters,
    math_scores,
    side_by_side,
    three_rewards,
    threshold_crossings,
    tool_scores,
)
from dara.analysis.tables.at_step import clearly_best, mean_sd
from dara.analysis.tables.render import latex, markdown, render_table
from dara.analysis.view import Estimate, Mark
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.config import Experiment, MethodEntry
from dara.loading import load_preset, read_methods
from project import ROOT
from synthetic import METHODS, experiment, simulate

SIX = ("grpo", "gdpo", "dvao", "gd2po_hard", "dara_asym", "dara_sym")
STATIC = {name: MethodEntry(label=label, color="#000000") for name, label in
          (("static_asym", "Static-Asym"), ("static_sym", "Static-Sym"))}  # fmt: skip
LENGTHS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99)


@pytest.fixture(scope="module")
def rows():
    return read_published(ROOT / "results/published/data")


def published(rows, name: str, task: str = "tool_calling", methods=SIX, rewards=None) -> PublishedView:
    sparse = "format" if task == "tool_calling" else "length"
    asked = Experiment(
        experiment=name, question="?", task=task, rewards=rewards or ("correctness", sparse), sparse_reward=sparse,
        methods=methods, thresholds={sparse: (0.8,) if task == "tool_calling" else LENGTHS}, tables={}, figures={},
    )  # fmt: skip
    return PublishedView(rows, asked, METHODS | STATIC)


def ours(task: str = "tool_calling", methods=("grpo", "gdpo", "dara_sym", "dara_asym"), **made) -> RunsView:
    return RunsView(simulate(task, methods=methods, **made), experiment(task, methods), METHODS | STATIC, "laptop")


@pytest.fixture(scope="module")
def tools(rows):
    """The published tool-calling scores, by step."""
    view = published(rows, "tool_main")
    return {at: tool_scores.build(view, at=at) for at in (60, 100)}


@pytest.fixture(scope="module")
def maths(rows):
    """The published math scores."""
    return math_scores.build(published(rows, "math_main", "math"))


def cell(table, column: str, **equal: str) -> str:
    frame = table.frame
    for name, value in equal.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, equal
    return frame[column].iloc[0]


PAIR = ("gdpo", "dara_sym")
SMALL, LARGE = "Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct"


@pytest.mark.parametrize(
    ("at", "model", "method", "column", "text"),
    [
        (100, SMALL, "grpo", "Acc Avg.", "48.46 ± 0.36"),
        (100, SMALL, "dara_sym", "Acc Avg.", "51.17 ± 0.78"),
        (100, SMALL, "dara_asym", "Format Avg.", "97.90 ± 0.34"),
        (100, SMALL, "grpo", "Format Multi", "43.24 ± 15.52"),
        (100, SMALL, "dvao", "n", "3"),
        (100, LARGE, "dara_asym", "n", "4"),
        (100, LARGE, "dvao", "Acc Avg.", "54.22 ± 0.24"),
        (100, LARGE, "base", "Format Avg.", "32.77"),
        (60, SMALL, "gdpo", "Acc Avg.", "50.50 ± 0.47"),
        (60, SMALL, "gd2po_hard", "Format Avg.", "90.09"),
        (60, SMALL, "dara_asym", "Acc Avg.", "50.69"),
        (60, SMALL, "dara_asym", "Acc Live", "–"),
    ],
)
def test_published_tool_scores_as_printed(tools, at, model, method, column, text):
    assert cell(tools[at], column, Model=model, method=method) == text


def test_tool_scores_say_what_is_missing_and_contradicted(tools):
    final, early = tools[100], tools[60]
    text = "\n".join(final.notes)
    assert "Contradiction 1: seeds 1 and 5 left out" in text
    assert "Contradiction 2: the project page prints 0.5013" in text
    assert "Interval: none was published" in text
    assert "Seeds: 0, 1, 2, 4, 5" in text
    missing = "Without a score here: GRPO of Qwen2.5-3B-Instruct, GDPO of Qwen2.5-3B-Instruct"
    assert any(note.startswith(missing) for note in early.notes)
    assert len(final.frame) == 14
    assert len(early.frame) == 10
    assert "published" in final.title


def test_our_tool_scores_are_at_the_same_share_of_training():
    view = ours()
    half, last = tool_scores.build(view, at=60), tool_scores.build(view)
    assert set(half.frame["step"]) == {0, 50}  # 48 of 80 steps; checkpoints every 10
    assert set(last.frame["step"]) == {0, 80}
    assert last.display == ["Method", "n", "Acc Avg.", "Format Avg."]
    assert [note for note in half.notes if "step 50 of 80" in note]
    found = view.score("average_accuracy", "gdpo", view.settings[0], 80)
    assert cell(last, "Acc Avg.", method="gdpo") == mean_sd(found, 1)
    row = last.frame[last.frame["method"] == "gdpo"].iloc[0]
    assert (row["average_accuracy_low"], row["average_accuracy_n"]) == (found.low, 3)
    assert any(note.startswith("Seeds: 100, 101, 102") for note in last.notes)


def test_missing_and_diverged_runs_are_counted():
    view = ours(missing=(("gdpo", 100),), diverged={("dara_sym", 101): 12})
    table = tool_scores.build(view)
    assert cell(table, "n", method="gdpo") == "2"
    assert cell(table, "n", method="dara_sym") == "2"
    assert "Missing: GDPO seed 100." in table.notes
    gone = ours(missing=tuple(("gdpo", seed) for seed in (100, 101, 102)))
    assert "Without a score here: GDPO (no runs)." in tool_scores.build(gone).notes


def test_a_source_without_the_scores_is_named(rows):
    with pytest.raises(ValueError, match=r"published: experiment tool_main: no score .* at step 77"):
        tool_scores.build(published(rows, "tool_main"), at=77)
    with pytest.raises(ValueError, match="laptop: experiment math_main: no score"):
        tool_scores.build(ours("math"))


@pytest.mark.parametrize(
    ("model", "method", "scores"),
    [
        ("DeepSeek-R1-Distill-Qwen-1.5B", "base", ("48.93", "65.23", "27.75")),
        ("DeepSeek-R1-Distill-Qwen-1.5B", "dara_asym", ("45.83", "8.16", "45.14")),
        ("DeepSeek-R1-Distill-Qwen-7B", "dara_asym", ("58.31", "3.73", "57.83")),
        ("Qwen3-4B-Instruct-2507", "dara_sym", ("58.76", "1.69", "58.52")),
    ],
)
def test_published_math_scores_as_printed(maths, model, method, scores):
    assert tuple(cell(maths, column, Model=model, method=method) for column in ("Acc", "Exceed", "Joint")) == scores
    assert not maths.bold
    assert math_scores.NO_BOLD_NOTE in maths.notes
    assert sum(note.startswith("Contradiction 15") for note in maths.notes) == 2


def test_best_is_bold_only_where_intervals_do_not_overlap():
    def estimate(value: float, half: float | None) -> Estimate:
        return Estimate(value, *((value - half, value + half) if half is not None else (None, None)))

    apart = {"a": estimate(0.5, 0.1), "b": estimate(0.8, 0.1)}
    assert clearly_best(apart, more=True) == "b"
    assert clearly_best(apart, more=False) == "a"
    assert clearly_best({"a": estimate(0.5, 0.25), "b": estimate(0.8, 0.1)}, more=True) is None
    assert clearly_best({"a": estimate(0.5, None), "b": estimate(0.8, 0.1)}, more=True) is None
    assert clearly_best({"a": estimate(0.5, 0.1), "b": None}, more=True) is None


def test_bold_marks_the_row_of_the_best_method():
    frames = simulate("math", methods=("gdpo", "dara_sym"))
    scores = frames["checkpoint_scores"]
    mine = (scores["step"] == 50) & (scores["metric"] == "exceed")
    seeds = scores["seed"].astype("float64").fillna(0)
    for method, level in (("gdpo", 0.2), ("dara_sym", 0.05)):
        chosen = mine & (scores["method"] == method)
        scores.loc[chosen, "value"] = level + (seeds[chosen] - 101) * 0.001
    view = RunsView(frames, experiment("math", ("gdpo", "dara_sym")), METHODS, "laptop")
    table = math_scores.build(view)
    index = table.frame.index[table.frame["method"] == "dara_sym"][0]
    assert (index, "Exceed") in table.bold
    assert {column for _, column in table.bold} <= {"Acc", "Exceed", "Joint"}
    assert math_scores.BOLD_NOTE in table.notes


def test_extended_training_has_the_scores_that_were_published(rows):
    table = extended.build(published(rows, "extended", "math", ("grpo", "dara_asym")))
    assert table.display == ["Model", "Method", "n", "Acc", "Exceed"]
    assert cell(table, "Exceed", Model="Qwen3-4B-Thinking-2507", method="dara_asym") == "0.94"
    assert cell(table, "Acc", Model="Qwen3-4B-Instruct-2507", method="grpo") == "62.99"


def test_fixed_weights_of_the_authors_have_no_step_and_no_interval(rows):
    methods = ("dara_asym", "static_asym", "dara_sym", "static_sym")
    table = fixed_weights.build(published(rows, "fixed_weight", "math", methods))
    assert cell(table, "Joint", method="dara_asym") == "47.76"
    assert cell(table, "Acc", method="dara_asym-static_asym") == "+1.19"
    assert cell(table, "Exceed", method="dara_sym-static_sym") == "+0.02"
    assert table.frame["step"].isna().all()
    assert any("The authors do not say at which step" in note for note in table.notes)


def test_fixed_weights_of_ours_are_paired_by_seed():
    frames = simulate("math", methods=("dara_sym", "gdpo"))
    for frame in frames.values():
        frame["method"] = frame["method"].replace("gdpo", "static_sym")
    intervals = frames["score_intervals"]
    intervals["baseline"] = intervals["baseline"].replace("gdpo", "static_sym")
    of_acc = (intervals["metric"] == "acc") & (intervals["baseline"] == "static_sym")
    intervals.loc[of_acc & (intervals["step"] == 100), ["value", "t_low", "t_high"]] = (0.02, -0.005, 0.045)
    asked = experiment("math", ("dara_sym", "static_sym"))
    table = fixed_weights.build(RunsView(frames, asked, METHODS | STATIC, "laptop"))
    assert cell(table, "Acc", method="dara_sym-static_sym") == "+2.0 [−0.5, 4.5]"
    assert cell(table, "n", method="dara_sym-static_sym") == "3"
    with pytest.raises(ValueError, match="no pair of dara_asym and static_asym"):
        fixed_weights.build(ours("math"))


def test_three_rewards_as_printed(rows):
    methods, rewards = ("gdpo", "dara_asym", "dara_sym"), ("correctness", "format", "length")
    table = three_rewards.build(published(rows, "three_rewards", methods=methods, rewards=rewards))
    columns = ("Format 2", "Format 3", "Multi-Turn 2", "Multi-Turn 3", "Length 3")
    shown = {method: [cell(table, column, method=method).split(" ")[0] for column in columns] for method in methods}
    assert shown == {
        "gdpo": ["97.11", "94.39", "91.40", "83.17", "97.96"],
        "dara_asym": ["97.90", "96.93", "94.17", "90.80", "98.05"],
        "dara_sym": ["97.55", "97.43", "92.77", "92.30", "98.72"],
    }
    assert cell(table, "Multi-Turn change", method="gdpo") == "−8.2"
    assert (cell(table, "n 2", method="gdpo"), cell(table, "n 3", method="gdpo")) == ("5", "3")
    assert "Average accuracy with three rewards: 50.46 to 50.63 %, one range for all methods." in table.notes
    assert not any("3B" in note for note in table.notes)
    assert "average_accuracy_3" not in table.frame


def test_thresholds_and_the_41_to_65_percent(rows):
    table = threshold_crossings.build(published(rows, "math_main", "math"))
    saved = {
        (model[:5], method): cell(table, "Saved (%)", Model=model, method=method)
        for model in ("Qwen3-4B-Instruct-2507", "DeepSeek-R1-Distill-Qwen-7B")
        for method in ("dara_asym", "dara_sym", "gdpo")
    }
    assert saved == {
        ("Qwen3", "dara_asym"): "40.5", ("Qwen3", "dara_sym"): "46.8", ("Qwen3", "gdpo"): "–",
        ("DeepS", "dara_asym"): "60.6", ("DeepS", "dara_sym"): "64.8", ("DeepS", "gdpo"): "–",
    }  # fmt: skip
    assert cell(table, "99 %", Model="DeepSeek-R1-Distill-Qwen-7B", method="grpo") == "215"
    assert cell(table, "80 %", Model="Qwen3-4B-Instruct-2507", method="dvao") == "21"
    assert "Without stable crossings in this source: DeepSeek-R1-Distill-Qwen-1.5B, G=16." in table.notes
    assert any("235 steps" in note for note in table.notes)


def test_our_thresholds_have_medians_and_counts():
    table = threshold_crossings.build(ours("math"))
    assert table.display == ["Method", "80 %", "90 %", "95 %", "99 %", "Saved (%)"]
    raw = table.frame.iloc[0]
    assert raw["80 %"] == f"{raw['stable_0.8']:g} ({raw['stable_0.8_reached']}/{raw['stable_0.8_runs']})"
    frames = simulate("math")
    frames["crossings"] = frames["crossings"].iloc[:0]
    view = RunsView(frames, experiment("math"), METHODS, "laptop")
    with pytest.raises(ValueError, match="no stable crossing of length"):
        threshold_crossings.build(view)


def test_two_marks_of_one_run_are_an_error():
    with pytest.raises(ValueError, match="two runs with seed 1, repeat 0; give the runs of one setting"):
        times_of([Mark(1, 30, "reached", None, 80), Mark(1, 40, "reached", None, 80)], "stable")
    unknown = [Mark(None, step, "reached", None, 80) for step in (40, 30)]
    assert times_of(unknown, "stable").keys == ((-1, 0), (-1, 1))


def test_marks_become_censored_times():
    marks = [Mark(2, None, "pending", 70, 80), Mark(1, 30, "reached", None, 80), Mark(1, 40, "reached", None, 80, 1)]
    times = times_of(marks, "stable")
    assert (times.keys, times.steps, times.crossed) == (((1, 0), (1, 1), (2, 0)), (30, 40, 60), (True, True, False))
    assert times.horizon == 60
    assert times_of(marks, "first").steps[-1] == 80
    assert times_of([], "first") is None


def test_side_by_side_has_the_26_percent(rows):
    table = side_by_side.build_side_by_side(ours(), published(rows, "tool_main"))
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


def test_side_by_side_of_math_has_crossings_scores_and_energies(rows):
    frames = simulate("math")
    energies = frames["energies"]
    sparse = energies["reward"] == "length"
    energies[["energy_pos", "energy_neg", "contributed_pos", "contributed_neg"]] = 50.0
    energies.loc[sparse, ["energy_pos", "energy_neg"]] = [2.0, 8.0]
    energies.loc[sparse, ["contributed_pos", "contributed_neg"]] = [40.0, 50.0 / 5]
    view = RunsView(frames, experiment("math"), METHODS, "laptop")
    table = side_by_side.build_side_by_side(view, published(rows, "math_main", "math"))
    quantities = list(dict.fromkeys(table.frame["Quantity"]))
    assert quantities == ["Steps to length 0.99", "Steps saved (%)", "Exceed (%)", "Energy ratio"]
    model = "Qwen3-4B-Instruct-2507"
    of = {"Quantity": "Steps saved (%)", "Published model": model}
    assert cell(table, "Published", method="dara_sym", **of) == "46.8"
    energy = rows[(rows["metric"] == "energy_ratio") & (rows["model"] == model) & (rows["method"] == "gdpo")]
    last = energy.sort_values("step")["value"].tail(10).median()
    assert cell(table, "published", method="gdpo", **of | {"Quantity": "Energy ratio"}) == last
    ratios = {method: cell(table, "Ours", method=method, **of | {"Quantity": "Energy ratio"}) for method in PAIR}
    assert ratios == {"gdpo": "0.10 [0.10, 0.10]", "dara_sym": "0.50 [0.50, 0.50]"}  # 10 / 100 and 50 / 100


def test_what_is_beyond_the_budget_has_no_difference(rows):
    frames = simulate("math")
    slow = frames["crossings"]["method"] == "gdpo"
    frames["crossings"].loc[slow, ["first_step", "stable_step", "pending_step"]] = None
    frames["crossings"].loc[slow, "status"] = "not_reached"
    view = RunsView(frames, experiment("math"), METHODS, "laptop")
    table = side_by_side.build_side_by_side(view, published(rows, "math_main", "math"))
    of = {"Published model": "Qwen3-4B-Instruct-2507"}
    assert cell(table, "Ours", Quantity="Steps to length 0.99", method="gdpo", **of) == ">90"
    assert cell(table, "Difference", Quantity="Steps to length 0.99", method="gdpo", **of) == "–"
    assert cell(table, "Ours", Quantity="Steps saved (%)", method="dara_sym", **of) == "not estimable"


def test_scores_side_by_side(rows):
    tools = tool_scores.build_side_by_side(ours(), published(rows, "tool_main"))
    of = {"Quantity": "Accuracy (%)", "Published model": SMALL, "method": "dara_sym"}
    assert cell(tools, "Published", **of) == "51.2"
    assert cell(tools, "difference", **of) == pytest.approx(cell(tools, "ours", **of) - 0.511731, abs=1e-6)
    maths = math_scores.build_side_by_side(ours("math"), published(rows, "math_main", "math"))
    assert set(maths.frame["Quantity"]) == {"Acc (%)", "Exceed (%)", "Joint (%)"}
    with pytest.raises(ValueError, match="no quantity in common"):
        tool_scores.build_side_by_side(ours("math"), published(rows, "tool_main"))


def test_settings_of_both_sources(rows):
    preset = load_preset(ROOT, ROOT / "config/presets/laptop.yaml").preset
    view = RunsView(simulate(), experiment(), read_methods(ROOT), "laptop")
    mine, theirs = hyperparameters.build(view, preset), hyperparameters.build(published(rows, "tool_main"))
    assert cell(mine, "Value", setting="learning_rate") == "0.0002"
    assert cell(mine, "Value", setting="responses_per_step") == "128"
    assert cell(mine, "For", setting="w_max") == "DARA-Sym, DARA-Asym"
    assert cell(theirs, "Value", setting="learning_rate") == "1e-06"
    assert cell(theirs, "Value", setting="prompts_per_step") == "512"
    assert any(note.endswith("Contradictions explained there: 7, 9, 11.") for note in theirs.notes)
    both = hyperparameters.build_side_by_side(view, published(rows, "tool_main"), preset)
    assert (cell(both, "Ours", setting="group_size"), cell(both, "Published", setting="group_size")) == ("4", "4")
    with pytest.raises(ValueError, match="no preset was given"):
        hyperparameters.build(view)


@pytest.mark.parametrize(("task", "name"), [("tool_calling", "tool_main"), ("math", "math_main")])
def test_settings_of_the_papers_own_scale(task, name, rows):
    preset = load_preset(ROOT, ROOT / "config/presets/paper.yaml").preset
    view = RunsView(simulate(task), experiment(task), read_methods(ROOT), "paper")
    table = hyperparameters.build(view, preset)
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
    hyperparameters.build_side_by_side(view, published(rows, name, task), preset)


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: math_scores.build(published(rows, "math_main", "math")),
        lambda rows: threshold_crossings.build(published(rows, "math_main", "math")),
        lambda rows: hyperparameters.build(published(rows, "math_main", "math")),
        lambda rows: side_by_side.build_side_by_side(ours(), published(rows, "tool_main")),
    ],
    ids=["scores", "thresholds", "settings", "side by side"],
)
def test_tables_are_written_escaped_and_the_same_twice(make, rows, tmp_path):
    tables = [make(rows), make(rows)]
    written = [render_table(table, tmp_path / str(turn)) for turn, table in enumerate(tables)]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
    table, body = tables[0], latex(tables[0])
    assert "%" not in body.replace(r"\%", "")
    assert "_" not in body.replace(r"\_", "")
    assert "±" not in body
    assert len(markdown(table).splitlines()) == 4 + len(table.frame) + 1 + len(table.notes)
    assert set(table.numeric) - {"G"} <= set(table.display)
    assert not (table.frame[table.display] == "").all().any(), "a column that says nothing"


def test_no_value_prints_as_nan(tools):
    table = tools[60]
    assert "nan" not in markdown(table)
    assert math.isnan(table.frame.loc[table.frame["method"] == "dara_asym", "accuracy/live"].iloc[0])
