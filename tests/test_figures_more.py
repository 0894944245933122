"""Figures about activity, group size and energy: the numbers on their axes, from runs and from what was published."""

from __future__ import annotations

import inspect
from functools import cache

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from dara.analysis.figures import densities, draw_figure
from dara.analysis.figures import energies as energy_figures
from dara.analysis.view_published import PublishedView, read_published
from dara.analysis.view_runs import RunsView
from dara.config import Experiment
from project import ROOT
from scored_frames import bfcl_v4, scored, toolrl_validation
from synthetic import COMPARED, METHODS, experiment, simulate
from test_figures import _no_warnings, check_layout, shown_texts  # noqa: F401 (a fixture of every test)

PUBLISHED = ROOT / "results" / "published" / "data"
COLOR = {name: entry.color for name, entry in METHODS.items()}


def runs(asked: Experiment | None = None, **kwargs: object) -> RunsView:
    """A view of made-up runs."""
    return RunsView(simulate(**kwargs), asked or experiment(kwargs.get("task", "tool_calling")), METHODS, "laptop")


@cache
def published(name: str) -> PublishedView:
    """A view of the authors' numbers of one experiment."""
    task = "math" if name == "math_main" else "tool_calling"
    return PublishedView(read_published(PUBLISHED), experiment(task, name=name), METHODS)


@pytest.fixture(scope="module")
def tool():
    return runs(missing=(("dara_asym", 102),), diverged={("grpo", 101): 23})


@pytest.fixture(scope="module")
def groups():
    settings = tuple(("tiny-tool", size) for size in (4, 8, 16, 32))
    return runs(seeds=(100, 101), steps=40, settings=settings)


def points(axes, color: str) -> np.ndarray:
    """(n, 2) of what is drawn without a line in a colour."""
    found = [line for line in axes.lines if line.get_linestyle() == "None" and to_hex(line.get_color()) == color]
    return np.concatenate([np.column_stack(line.get_data()) for line in found]).astype(float)


def line_of(axes, color: str):
    (line,) = [x for x in axes.lines if x.get_linestyle() != "None" and to_hex(x.get_color()) == color]
    return line


def test_texts_of_published_figures_have_their_place():
    check_layout(draw_figure("energy_ratio", published("math_main")))
    check_layout(draw_figure("group_size", published("group_size")))
    check_layout(draw_figure("activity_curve", published("tool_main")))


@pytest.mark.parametrize("name", ["activity_curve", "group_size", "energy_ratio", "density_energy"])
def test_a_source_without_the_numbers_is_an_error(name, tool):
    empty = tool.frames | {key: tool.frames[key][:0] for key in ("training_curves", "energies")}
    gone = RunsView(empty, tool.experiment, METHODS, "laptop")
    with pytest.raises(ValueError, match=r"experiment tool_main: no "):
        draw_figure(name, gone)


def test_a_published_source_without_the_numbers_is_an_error():
    with pytest.raises(ValueError, match=r"published: experiment math_main: no step with both reward/length/mean"):
        draw_figure("activity_curve", published("math_main"))
    with pytest.raises(ValueError, match=r"published: experiment group_size: no energy ratio of format"):
        draw_figure("energy_ratio", published("group_size"))
    with pytest.raises(ValueError, match=r"published: experiment math_main: no energies of single steps"):
        draw_figure("density_energy", published("math_main"))


def test_the_overview_draws_what_the_methods_give(tool):
    figure = draw_figure("overview", tool)
    bars = figure.axes[1]
    heights = np.array([bar.get_height() for bar in bars.patches])
    wanted = [6, 6, 2.25, 0.75, 6, 6, 9, 3, 6, 6, 9, 0.75]  # by method and reward: positive, negative
    np.testing.assert_allclose(heights, wanted, atol=1e-4)
    assert [to_hex(bar.get_facecolor()) for bar in bars.patches[::4]] == [
        COLOR[name] for name in ("gdpo", "dara_sym", "dara_asym")
    ]
    found = [text.get_text() for text in shown_texts(figure)]
    assert {"12\n\u00d71", "3\n\u00d71", "12\n\u00d72", "9.75\n\u00d72", "DARA-Asym"} <= set(found)
    assert any(r"$\pi_2$ = 1/4" in text for text in found)
    assert "$E_1$ = 12,  $E_2$ = 3" in found
    assert "$w_1$ = 1,  $w_2$ = 2" in found
    capped = METHODS | {"dara_sym": METHODS["dara_sym"].model_copy(update={"params": {"w_max": 1.5}})}
    figure = draw_figure("overview", RunsView(tool.frames, tool.experiment, capped, "x"))
    found = {text.get_text() for text in shown_texts(figure)}
    assert {"6.75\n\u00d71.5", "$w_1$ = 1,  $w_2$ = 1.5"} <= found  # 1.5 squared times 3
    with pytest.raises(ValueError, match="none of them"):
        draw_figure("overview", runs(experiment(methods=("grpo",)), methods=("grpo",), seeds=(100,), steps=3))


def test_activity_points_are_the_steps_of_the_runs(tool):
    axes = draw_figure("activity_curve", tool).axes[0]
    curves = tool.frames["training_curves"]
    mine = curves[(curves["method"] == "gdpo")].pivot(index=["run_id", "step"], columns="metric", values="value")
    wanted = mine[["reward/format/mean", "density/format"]].to_numpy()
    np.testing.assert_allclose(points(axes, COLOR["gdpo"]), wanted, rtol=0, atol=0)
    assert len(points(axes, COLOR["grpo"])) == 80 + 23 + 80
    lines = [line for line in axes.lines if line.get_linestyle() != "None"]
    assert len(lines) == 4
    dark = line_of(axes, "#333333")
    assert float(dark.get_ydata()[200]) == pytest.approx(0.875)  # p = .5, G = 4
    np.testing.assert_allclose(densities.activity(np.array([0, 0.25, 1]), 2), [0, 2 * 0.25 * 0.75, 0], atol=1e-15)


def test_each_group_size_has_its_own_dark_curve(groups):
    figure = draw_figure("activity_curve", groups)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"tiny-tool, G={size}" for size in (4, 8, 16, 32)]
    for axes, size in zip(figure.axes, (4, 8, 16, 32), strict=True):
        assert float(line_of(axes, "#333333").get_ydata()[200]) == pytest.approx(1 - 2 * 0.5**size)


def test_published_activity_is_of_the_page():
    axes = draw_figure("activity_curve", published("tool_main")).axes[0]
    found = points(axes, COLOR["grpo"])
    assert found.shape == (100, 2)
    np.testing.assert_allclose(found[0], (0.0063, 0.0234))


def test_a_reward_that_is_no_share_has_no_activity_curve(tool):
    asked = tool.experiment.model_copy(update={"sparse_reward": "correctness"})
    with pytest.raises(ValueError, match=r"laptop: experiment tool_main: \w+ has a mean correctness reward of 1\.\d+"):
        draw_figure("activity_curve", RunsView(tool.frames, asked, METHODS, "laptop"))


def test_group_size_draws_medians_and_marks(groups):
    figure = draw_figure("group_size", groups)
    assert len(figure.axes) == 8
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    curves, crossings = groups.frames["training_curves"], groups.frames["crossings"]
    mine = curves[(curves["method"] == "gdpo") & (curves["group_size"] == 8) & (curves["metric"] == "density/format")]
    line = line_of(figure.axes[1], COLOR["gdpo"])
    np.testing.assert_allclose(line.get_ydata(), mine.groupby("step")["value"].median(), atol=1e-12)
    for axes, size in ((figure.axes[2], 4), (figure.axes[3], 8)):  # row by row: two densities, then their strips
        for method in COMPARED:
            here = crossings[(crossings["group_size"] == size) & (crossings["method"] == method)]
            first = here.loc[here["threshold"] == 0.8, "first_step"].astype("float64").fillna(40.0)
            assert sorted(points(axes, COLOR[method])[:, 0]) == sorted(first)


def test_published_group_sizes_have_the_published_crossings():
    figure = draw_figure("group_size", published("group_size"))
    strip = figure.axes[3]  # G=8
    assert figure.axes[1].get_title(loc="left").endswith("G=8")
    wanted = {"grpo": [41, 57, 100], "gdpo": [29, 90, 100], "dara_sym": [14, 14], "dara_asym": [13, 14]}
    for method, steps in wanted.items():
        assert sorted(points(strip, COLOR[method])[:, 0]) == steps
    assert list(points(strip, COLOR["dara_sym"])[:, 1] - 2) == [-0.25, 0.25]  # those of one step stand apart
    hollow = [line for line in strip.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xdata()[0] for line in hollow] == [100, 100]
    assert len(line_of(figure.axes[1], COLOR["gdpo"]).get_xdata()) == 13


def energies(values: dict[int, tuple]) -> RunsView:
    """One DARA-Sym run whose steps have (sparse energy, dense energy, weight); contributions are w^2 times as much."""
    view = runs(experiment(methods=("dara_sym",)), methods=("dara_sym",), seeds=(100,), steps=len(values))
    frame = view.frames["energies"].copy()
    for step, (sparse, dense, weight) in values.items():
        for reward, energy, factor in (("format", sparse, weight), ("correctness", dense, 1.0)):
            here = (frame["step"] == step) & (frame["reward"] == reward)
            found = [factor, energy / 4, 3 * energy / 4, factor**2 * energy / 4, factor**2 * 3 * energy / 4]
            names = ["weight", "energy_pos", "energy_neg", "contributed_pos", "contributed_neg"]
            frame.loc[here, names] = found
    return RunsView(view.frames | {"energies": frame}, view.experiment, METHODS, "laptop")


def test_ratios_of_runs_are_quotients_of_trailing_sums():
    view = energies({1: (8.0, 16.0, 2.0), 2: (2.0, 4.0, 5.0), 3: (0.0, 20.0, 1.0)})
    before, after, capped = energy_figures.ratios(view, view.settings[0], "dara_sym")
    np.testing.assert_allclose(before["middle"], [8 / 16, 10 / 20, 10 / 40])
    np.testing.assert_allclose(after["middle"], [32 / 16, 82 / 20, 82 / 40])
    assert capped.to_list() == [0, 1, 0]
    axes = draw_figure("energy_ratio", view).axes[0]
    np.testing.assert_allclose(line_of(axes, COLOR["gdpo"]).get_ydata(), [0.5, 0.5, 0.25])
    np.testing.assert_allclose(line_of(axes, COLOR["dara_sym"]).get_ydata(), [2, 4.1, 2.05])
    assert list(line_of(axes, "#333333").get_ydata()) == [1, 1]
    assert [(patch.get_x(), patch.get_width()) for patch in axes.patches] == [(1.5, 1)]


def test_a_step_without_dense_energy_has_no_ratio():
    view = energies({1: (8.0, 0.0, 2.0), 2: (2.0, 4.0, 1.0)})
    before = energy_figures.ratios(view, view.settings[0], "dara_sym")[0]
    assert before["middle"].to_dict() == {2: 2.5}


@pytest.mark.parametrize(
    ("capped", "start"), [([0, 1, 0, 1, 1], 4), ([1, 1], 1), ([0, 1, 0.5], None), ([0, 0], None), ([], None)]
)
def test_cap_start(capped, start):
    assert energy_figures.cap_start(pd.Series(capped, index=range(1, len(capped) + 1), dtype=float)) == start


def test_published_ratios_and_their_cap():
    theirs = published("math_main")
    figure = draw_figure("energy_ratio", theirs)
    facts = theirs.rows[theirs.rows["metric"] == "first_step/cap"].set_index("model")["value"]
    assert len(figure.axes) == len(facts) == 3
    for axes, (model, size, _) in zip(figure.axes, theirs.settings, strict=True):
        assert (axes.get_title(loc="left"), size) == (f"{model}\nG=16, DARA-Sym", 16)
        assert f"cap from step {facts[model]:.0f}" in [text.get_text() for text in axes.texts]
        assert min(patch.get_x() for patch in axes.patches) == facts[model] - 0.5
        assert len(axes.patches) == 101 - facts[model]
        assert len(line_of(axes, COLOR["gdpo"]).get_ydata()) == 100
        top = max(float(line.get_ydata().max()) for line in axes.lines if len(line.get_xdata()) > 2)
        assert axes.get_ylim()[1] > top
    small = line_of(figure.axes[0], COLOR["gdpo"]).get_ydata()
    assert (small[0], round(float(small[39]), 3)) == (0.942559, 0.448)


def test_the_cap_is_the_methods_own():
    from dara.methods import dara_asym, dara_sym

    for method in (dara_sym, dara_asym):
        assert inspect.signature(method.contributions).parameters["w_max"].default == energy_figures.W_MAX
    capped = METHODS | {"dara_sym": METHODS["dara_sym"].model_copy(update={"params": {"w_max": 3.0}})}
    view = PublishedView(read_published(PUBLISHED), experiment("math", name="math_main"), capped)
    labels = [text.get_text() for text in draw_figure("energy_ratio", view).legends[0].get_texts()]
    assert "weight at its cap of 3" in labels


def test_density_and_energy_before_and_after(tool):
    before, after = draw_figure("density_energy", tool).axes
    frame = tool.frames["energies"]
    mine = frame[(frame["method"] == "dara_asym") & (frame["reward"] == "format")].sort_values(["run_id", "step"])
    found = points(before, COLOR["dara_asym"])
    np.testing.assert_allclose(found[:, 0], mine["density"])
    np.testing.assert_allclose(found[:, 1], 32 * 3 * mine["density"])  # the made-up energies follow Eq. 5
    contributed = mine["contributed_pos"] + mine["contributed_neg"]
    np.testing.assert_allclose(points(after, COLOR["dara_asym"])[:, 1], contributed)
    for axes in (before, after):
        line = line_of(axes, "#333333")
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 1], [0, 96])
        assert axes.get_ylim()[1] > max(96, contributed.max())


def test_an_odd_number_of_settings_leaves_no_empty_panel():
    view = runs(seeds=(100,), steps=12, settings=tuple(("tiny-tool", size) for size in (4, 8, 16)))
    wanted = {"activity_curve": 3, "group_size": 6, "energy_ratio": 6, "density_energy": 6}
    assert {name: len(draw_figure(name, view).axes) for name in wanted} == wanted


def validated() -> RunsView:
    """Runs whose validation rewards rise with the step, with a benchmark whose scores have names of rewards nearby."""
    frames = simulate(methods=("gdpo", "dara_sym"), seeds=(100, 101, 102), steps=30)
    made = {
        "bfcl_v4": lambda _: bfcl_v4(format=0.9, accuracy=0.9),
        "toolrl_validation": lambda run: toolrl_validation(
            correctness=run["step"] / 10 - 1, format=run["step"] / 100 * (2 if run["method"] == "dara_sym" else 1)
        ),
    }
    return RunsView(scored(frames, made), experiment(methods=("gdpo", "dara_sym")), METHODS, "paper")


def test_validation_rewards_of_our_own_runs_are_drawn_over_checkpoints_from_the_base_model_on():
    view = validated()
    figure = draw_figure("validation_curves", view)
    assert [axes.get_ylabel() for axes in figure.axes] == ["validation correctness reward", "validation format reward"]
    correctness, formats = figure.axes
    line = line_of(correctness, COLOR["gdpo"])
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 10, 20, 30], [-1, 0, 1, 2])  # not in percent
    assert list(line_of(formats, COLOR["dara_sym"]).get_ydata()) == [0, 0.2, 0.4, 0.6]
    assert list(line_of(formats, COLOR["gdpo"]).get_ydata()) == [0, 0.1, 0.2, 0.3]
    assert "Median and quartiles over 3 runs" in [text.get_text() for text in shown_texts(figure)]
    check_layout(figure)


def test_runs_without_validation_rows_have_no_validation_curves(tool):
    with pytest.raises(
        ValueError, match=r"laptop: experiment tool_main: no checkpoint score over steps \(validation/corr"
    ):
        draw_figure("validation_curves", tool)
