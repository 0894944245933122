"""Views: runs of a preset and published numbers answer the same questions, and published facts come out of them."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from dara.analysis.crossing import CrossingEvent, first_crossing
from dara.analysis.figures import draw_figure
from dara.analysis.figures.style import joined_notes, render_figure
from dara.analysis.intervals import t_interval
from dara.analysis.tables import build_table
from dara.analysis.tables.render import render_table
from dara.analysis.view import CURVE, Setting
from dara.analysis.view_published import PublishedView, read_published
from dara.analysis.view_runs import curve_over_runs
from dara.loading import ConfigurationError, load_published, read_methods
from project import ROOT
from scored_frames import build
from synthetic import METHODS, experiment, simulate, view

EXPERIMENTS = load_published(ROOT)
SMALL, LARGE = Setting("Qwen2.5-1.5B-Instruct", 4), Setting("Qwen2.5-3B-Instruct", 4)
R1_LARGE, QWEN3 = Setting("DeepSeek-R1-Distill-Qwen-7B", 16), Setting("Qwen3-4B-Instruct-2507", 16)
FIRST_STEPS = {"grpo": [37, 43, 34, 31, 31], "gdpo": [18, 19, 75, 16, 65], "dara_sym": [14, 16, 15, 13, 29]}


@pytest.fixture(scope="module")
def views() -> dict[str, PublishedView]:
    rows, methods = read_published(ROOT / "results/published/data"), read_methods(ROOT)
    return {name: PublishedView(rows, asked, methods) for name, asked in EXPERIMENTS.items()}


def steps_of(marks: list[CrossingEvent]) -> list[int | None]:
    return [mark.step for mark in marks]


# Runs


def test_a_curve_of_runs_is_their_median_and_quartiles():
    frames = simulate(seeds=(100, 101, 102, 103, 104), diverged={("grpo", 101): 23})
    made = view(frames)
    (setting,) = made.settings
    curves = frames["training_curves"]
    mine = curves[(curves["method"] == "grpo") & (curves["metric"] == "density/format")]
    curve = made.curve("density/format", "grpo", setting)
    assert list(curve.columns) == list(CURVE)
    values = np.sort(mine.loc[mine["step"] == 10, "value"])
    assert curve.loc[10].to_list() == [values[1], values[2], values[3], 5]
    assert (curve["n"].loc[23], curve["n"].loc[24], curve.index[-1]) == (5, 4, 80)
    assert made.curve("average_accuracy", "base", setting)["middle"].to_dict() == {0: 0.05}
    assert made.curve("average_accuracy", "grpo", setting).index.to_list()[:2] == [10, 20]
    assert made.curve("density/other", "grpo", setting).empty
    # A value that is not finite is skipped.
    rows = pd.DataFrame({"run_id": ["a", "a", "b", "b"], "step": [1, 2, 1, 2], "value": [1.0, np.nan, 3.0, 5.0]})
    curve = curve_over_runs(rows)
    assert curve[["low", "middle", "n"]].to_numpy().tolist() == [[1.5, 2, 2], [5, 5, 1]]


def test_scores_of_runs_have_the_interval_over_seeds_and_leave_diverged_runs_out():
    frames = simulate(diverged={("grpo", 101): 23})
    made = view(frames)
    (setting,) = made.settings
    scores = frames["checkpoint_scores"]
    at = (scores["step"] == 20) & (scores["metric"] == "average_format")
    kept = scores.loc[at & (scores["method"] == "grpo") & (scores["seed"] != 101), "value"].to_numpy()
    found, interval = made.score("average_format", "grpo", setting, 20), t_interval(kept)
    assert (found.value, found.n, found.low, found.high) == (
        pytest.approx(kept.mean()), 2, pytest.approx(interval.low), pytest.approx(interval.high),
    )  # fmt: skip
    assert found.sd == pytest.approx(kept.std(ddof=1))
    base = made.score("average_format", "base", setting, 0)
    assert (base.value, base.n, base.low, base.sd) == (0.03, 1, None, None)
    assert made.score("average_format", "grpo", setting, 15) is None
    assert made.last_step(["average_format", "average_accuracy"], setting) == 80
    assert made.last_step(["unknown"], setting) is None


def test_marks_of_runs_are_in_the_order_of_seeds_and_name_those_that_exist():
    frames = simulate(missing=(("gdpo", 101),), diverged={("grpo", 101): 23})
    made = view(frames)
    (setting,) = made.settings
    assert made.planned("gdpo", setting) == [100, 101, 102]
    marks = made.marks("stable", "format", 0.8, "gdpo", setting)
    assert [mark.seed for mark in marks] == [100, 102]
    assert {mark.budget for mark in marks} == {80} == {made.budget(setting)}
    first = made.marks("first", "format", 0.8, "grpo", setting)
    assert [mark.status for mark in first] == ["reached", "not_reached", "reached"]
    assert first[1] == CrossingEvent(101, None, "not_reached", None, 80)
    crossings = frames["crossings"].set_index(["method", "seed", "threshold"])
    assert marks[0].step == crossings.loc[("gdpo", 100, 0.8), "stable_step"]
    assert made.method_label("gdpo") == "GDPO (2 of 3 runs)"
    assert made.curve_note("density/format") == "median and quartiles over 2 to 3 runs"
    assert "Missing: GDPO seed 101." in made.notes()


# Published


def test_published_first_steps_and_the_crossing_of_the_median_curve(views):
    tool = views["tool_main"]
    for method, steps in FIRST_STEPS.items():
        marks = tool.marks("first", "format", 0.8, method, SMALL)
        assert steps_of(marks) == steps
        assert [mark.seed for mark in marks] == tool.planned(method, SMALL) == [0, 1, 2, 4, 5]
    dvao = tool.marks("first", "format", 0.8, "dvao", SMALL)
    assert steps_of(dvao) == [60, None, None]
    assert [mark.status for mark in dvao] == ["reached", "not_reached", "not_reached"]
    assert {mark.budget for mark in dvao} == {100}
    assert tool.marks("stable", "format", 0.8, "gdpo", SMALL) == []
    for method, step in (("grpo", 34), ("gdpo", 19), ("dara_sym", 15), ("dara_asym", 14)):
        curve = tool.curve("reward/format/mean", method, SMALL)
        assert first_crossing(curve["middle"], 0.8) == step
        assert (curve["low"] <= curve["high"]).all()
        assert set(curve["n"]) == {5}


def test_published_stable_crossings_have_one_run_and_a_longer_budget_where_one_crosses_late(views):
    math = views["math_main"]
    (mark,) = math.marks("stable", "length", 0.99, "grpo", R1_LARGE)
    assert mark == CrossingEvent(None, 215, "reached", None, 235)
    assert [math.marks("stable", "length", 0.99, method, QWEN3)[0].step for method in ("gdpo", "dara_sym")] == [111, 59]
    assert math.budget(QWEN3) == 200
    assert math.planned("grpo", QWEN3) == []


def test_published_scores_prefer_the_result_files(views):
    tool = views["tool_main"]
    final = tool.score("average_accuracy", "dvao", SMALL, 100)
    assert (final.value, final.sd, final.n) == (0.48637503, 0.02635638, 3)
    assert tool.score("average_format", "dara_asym", SMALL, 60).sd is None
    assert tool.score("average_accuracy", "gd2po_hard", SMALL, 100).value == pytest.approx(0.50695150)
    assert tool.score("format/live", "base", LARGE, 0).value == 0.5492228
    assert tool.score("average_accuracy", "dara_sym", LARGE, 60) is None
    assert views["fixed_weight"].score("acc", "static_sym", views["fixed_weight"].settings[0], None).value == 0.4597
    assert views["math_main"].last_step(["acc", "exceed", "joint"], R1_LARGE) == 50
    assert views["math_main"].last_step(["acc", "exceed"], R1_LARGE) == 100


def test_published_means_have_no_band_and_say_their_runs(views):
    tool = views["tool_main"]
    curve = tool.curve("average_format", "gdpo", SMALL)
    assert curve.index.to_list() == list(range(10, 101, 10))
    assert curve["low"].isna().all()
    assert tool.curve("average_format", "gdpo", LARGE).empty  # two tables are no curve
    note = tool.curve_note("average_format")
    assert note.startswith("mean over runs (GRPO 3, GDPO 2, DVAO 1, GD2PO-Hard unknown")
    assert note.endswith("; of other runs at step 100")
    assert tool.curve_note("reward/format/mean") == "median and quartiles over 5 runs"
    assert "DARA-Sym 2 to 3" in views["group_size"].curve_note("density/format")
    assert views["math_main"].curve_note("acc") == "one run a method"
    assert tool.curve_note("unknown") == ""


def test_published_notes_are_those_of_what_is_shown(views):
    final = views["tool_main"].notes(["average_accuracy", "average_format"], [100, 0])
    assert final[0].startswith("Numbers that the authors published (docs/published.md): repository, results/")
    assert any(note.startswith("Seeds: ") and "0, 2, 4 (DVAO of Qwen2.5-1.5B-Instruct)" in note for note in final)
    left_out = "Contradiction 1: seeds 1 and 5 left out because their validation format was below 0.8"
    assert f"{left_out} (DVAO of Qwen2.5-1.5B-Instruct)." in final
    early = views["tool_main"].notes(["average_accuracy", "average_format"], [60])
    assert not any(note.startswith(left_out) for note in early)
    crossings = views["group_size"].notes(["first_step/format/0.8"])
    assert "Not reached within 100 steps (GRPO seed 2, GDPO seed 2 of G=8)." in crossings
    fixed = views["fixed_weight"].notes(["acc"], [None])
    assert fixed[-1].endswith("number of seeds not stated; one run is assumed.")
    assert views["tool_main"].notes(["unknown"]) == []


def test_settings_are_those_with_trained_models(views):
    assert views["tool_main"].settings == (SMALL, LARGE)
    assert [setting.group_size for setting in views["group_size"].settings] == [4, 8, 16, 32]
    assert views["group_size"].setting_label(views["group_size"].settings[1]) == "Qwen2.5-1.5B-Instruct, G=8"
    assert views["fixed_weight"].setting_label(views["fixed_weight"].settings[0]) == ""


def test_nothing_published_and_an_unknown_method_are_errors(views):
    rows, methods = views["tool_main"].published, read_methods(ROOT)
    with pytest.raises(ValueError, match="experiment other: nothing was published of it"):
        PublishedView(rows, experiment(name="other"), methods)
    with pytest.raises(ValueError, match="method 'gdpo' has no row in the methods"):
        PublishedView(rows, experiment(), {"grpo": METHODS["grpo"]})


# Drawing the published


def published_outputs(kind: str) -> list[tuple[str, str, str]]:
    return [(name, *pair) for name, asked in EXPERIMENTS.items() for pair in getattr(asked, kind).items()]


@pytest.mark.parametrize(("name", "output", "module"), published_outputs("figures"))
def test_every_published_figure_is_drawn(name, output, module, views, tmp_path, recwarn):
    figure = draw_figure(module, views[name])
    assert all(path.stat().st_size > 5000 for path in render_figure(figure, tmp_path / output))
    assert not recwarn.list


@pytest.mark.parametrize(("name", "output", "module"), published_outputs("tables"))
def test_every_published_table_is_built(name, output, module, views, tmp_path):
    paths = render_table(build_table(module, views[name]), tmp_path / output)
    again = render_table(build_table(module, views[name]), tmp_path / "again" / output)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_published_learning_draws_the_rewards_and_methods_that_it_has(views):
    figure = draw_figure("learning_curves", views["tool_main"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["mean reward of format", "active-group density of format"]
    lines = {to_hex(line.get_color()): line.get_ydata() for line in figure.axes[0].lines}
    assert first_crossing(lines[METHODS["gdpo"].color], 0.8) == 19
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["GRPO", "GDPO", "DARA-Sym", "DARA-Asym", "threshold"]


def test_published_thresholds_are_lines_side_by_side(views):
    figure = draw_figure("crossing_strip", views["math_main"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"{R1_LARGE.model}, G=16", f"{QWEN3.model}, G=16"]
    lines = {to_hex(line.get_color()): list(line.get_ydata()) for line in figure.axes[1].lines}
    assert lines[METHODS["dara_sym"].color] == [20, 37, 47, 51, 54, 59]


def test_published_first_steps_are_a_strip_with_open_marks(views):
    figure = draw_figure("crossing_strip", views["tool_main"])
    assert {axes.get_ylabel() for axes in figure.axes} == {"first crossing (step)"}
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert [float(line.get_ydata()[0]) for line in hollow] == [100, 100, 100]


def test_published_curves_without_a_band_draw_none(views):
    for name in ("checkpoint_curves", "validation_curves"):
        figure = draw_figure(name, views["tool_main"])
        assert len(figure.axes) == 2
        assert all(not axes.collections for axes in figure.axes)
        FigureCanvasAgg(figure).draw()
        boxes = [axes.get_window_extent() for axes in figure.axes]
        assert all(box.width > 0.35 * figure.bbox.width for box in boxes)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (
            "energy_shares",
            "tool_main",
            "published: experiment tool_main: no energies of single steps; they are computed",
        ),
        ("energy_by_sign", "tool_main", "published: experiment tool_main: no energies of single steps by sign"),
        ("learning_curves", "extended", "published: experiment extended: no training curve of the rewards"),
        ("checkpoint_curves", "group_size", "published: experiment group_size: no checkpoint score over steps"),
    ],
)
def test_a_source_that_lacks_a_number_says_so(module, name, message, views):
    with pytest.raises(ValueError, match=message):
        draw_figure(module, views[name])


@pytest.mark.parametrize(
    "module", ["comparisons", "final_scores", "math_step50_sets", "tool_rates", "runs", "score_intervals"]
)
def test_tables_of_single_runs_are_not_built_of_published_numbers(module, views):
    with pytest.raises(ValueError, match="published: experiment tool_main"):
        build(module, views["tool_main"])


def test_published_crossings_have_the_kind_that_was_published(views):
    table = build_table("crossings", views["tool_main"])
    assert "Stable crossing" not in table.display
    frame = table.frame[table.frame["Setting"] == "Qwen2.5-1.5B-Instruct, G=4"].set_index("method")
    assert frame.loc["gdpo", "First crossing"] == "18 19 75 16 65"
    assert frame.loc["dvao", ["First crossing", "Median first"]].to_list() == ["60 – –", ">100"]
    assert frame["difference"].to_dict()["dara_asym"] == -5
    stable = build_table("crossings", views["math_main"])
    assert "First crossing" not in stable.display
    assert set(stable.frame["Reached (%)"].str[:3]) == {"1/1"}


def test_notes_of_several_quantities_are_joined():
    assert joined_notes({"a": "over 5 runs", "b": "over 5 runs", "c": ""}) == "over 5 runs"
    assert joined_notes({"a": "over 5 runs", "b": "over 3 runs"}) == "a: over 5 runs; b: over 3 runs"
    assert joined_notes({}) == ""


# config/published.yaml


def test_published_experiments_are_those_with_numbers(views):
    numbers = pd.concat([made.rows for made in views.values()])
    assert set(EXPERIMENTS) == set(numbers["experiment"])
    outputs = list(itertools.chain(*(asked.figures for asked in EXPERIMENTS.values())))
    assert "learning" in outputs
    assert len(outputs) == len(set(outputs))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sparse_reward: format", "sparse_rewards: format", "tool_main.sparse_rewards: unknown key; did you mean 'sparse_r"),
        ("&six [grpo,", "&six [grop,", "tool_main.methods: 'grop' is not a method of config/methods.yaml; did you mean 'grpo'"),
        ("learning: learning_curves", "learning: learning", "tool_main.figures.learning: 'learning' is not a module of"),
        ("learning: learning_curves", "learning: style", "tool_main.figures.learning: 'style' is not a module of"),
        ("math_crossing: crossing_strip", "learning: crossing_strip", "math_main.figures.learning stands in tool_main too"),
        ("tool_main:\n", "tool_main:\n  experiment: other\n", "tool_main.experiment is 'other'; it must be 'tool_main'"),
        ("fixed_weight:\n", "fixed_weight: 3\nother:\n", "fixed_weight: "),
    ],
)  # fmt: skip
def test_a_mistake_in_published_yaml_is_named(old, new, message, tmp_path):
    (tmp_path / "config").mkdir()
    for name in ("methods.yaml", "published.yaml"):
        (tmp_path / "config" / name).write_text((ROOT / "config" / name).read_text())
    path = tmp_path / "config/published.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigurationError) as error:
        load_published(tmp_path)
    assert message in str(error.value)
    assert "published.yaml" in str(error.value)
