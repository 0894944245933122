"""Figures: they are drawn from made-up frames, identically each time, and say what they show."""

from __future__ import annotations

import sys
import warnings
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from dara.analysis.figures import FIGURES, draw_figure
from dara.analysis.figures.energies import shares_by_sign
from dara.analysis.figures.style import LINESTYLES, render_figure, style_of
from dara.analysis.names import headline_threshold
from synthetic import COMPARED, METHODS, experiment, simulate, view

PAIR = ("gdpo", "dara_sym")
DRAWN = tuple(name for name in FIGURES if name != "validation_curves")  # which needs scores of validation rows
NAMES = ("learning_curves", "crossing_strip", "energy_shares", "energy_by_sign", "checkpoint_curves")


def texts(figure) -> list[str]:
    """Every text of a figure: axis labels, titles, legend, annotations."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def shown_texts(figure) -> list:
    """Every text that is drawn: matplotlib keeps tick labels outside of the limits and of axes that are off."""
    hidden = set()
    for axes in figure.axes:
        if not axes.axison:
            hidden |= {id(text) for text in [*axes.get_xticklabels(), *axes.get_yticklabels()]}
        (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        hidden |= {id(text) for text in axes.get_xticklabels() if not left <= text.get_position()[0] <= right}
        hidden |= {id(text) for text in axes.get_yticklabels() if not bottom <= text.get_position()[1] <= top}
    found = figure.findobj(matplotlib.text.Text)
    return [text for text in found if text.get_text() and text.get_visible() and id(text) not in hidden]


def check_layout(figure) -> None:
    """Texts of at least 7 pt that stay in the figure and do not overlap; a legend outside of the panels."""
    FigureCanvasAgg(figure).draw()
    width, height = figure.get_size_inches() * figure.dpi
    boxes = [(text.get_text(), text.get_window_extent(), text.get_fontsize()) for text in shown_texts(figure)]
    for index, (text, box, size) in enumerate(boxes):
        assert size >= 7, text
        assert min(box.x0, box.y0) >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y1 <= height + 1, text
        for other, its, _ in boxes[:index]:
            assert not box.overlaps(its), (text, other)
    legend = figure.legends[0].get_window_extent()
    assert all(not legend.overlaps(axes.get_window_extent()) for axes in figure.axes)


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(scope="module")
def tool():
    return simulate(missing=(("dara_asym", 102),), diverged={("grpo", 101): 23})


@pytest.fixture(scope="module")
def groups():
    return simulate(seeds=(100, 101), steps=40, settings=tuple(("tiny-tool", size) for size in (4, 8, 16, 32)))


@pytest.fixture(scope="module")
def short():
    return simulate("math", seeds=(100,), steps=12)


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_figure_has_the_same_bytes(name, tool, tmp_path):
    first = render_figure(draw_figure(name, view(tool)), tmp_path / "a" / "tool.main")
    shuffled = {key: frame.sample(frac=1, random_state=3) for key, frame in tool.items()}
    second = render_figure(draw_figure(name, view(shuffled)), tmp_path / "b" / "tool.main")
    assert [path.name for path in first] == ["tool.main.png", "tool.main.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert first[0].stat().st_size > 5000
    ElementTree.parse(first[1])
    assert b"<dc:date>" not in first[1].read_bytes()


@pytest.mark.parametrize("name", DRAWN)
def test_texts_have_their_place(name, tool, groups, short):
    check_layout(draw_figure(name, view(tool)))
    check_layout(draw_figure(name, view(groups)))
    check_layout(draw_figure(name, view(short, experiment("math"))))


@pytest.fixture(scope="module")
def sparse():
    """Frames of two settings, of methods without runs, and of no run at all."""
    gone = simulate(seeds=(100,), steps=6, methods=PAIR, missing=tuple((method, 100) for method in PAIR))
    missing = simulate(seeds=(100, 101), steps=40, missing=(("grpo", 100), ("grpo", 101), ("gdpo", 101)))
    two = simulate(methods=PAIR, seeds=(100, 101), steps=40, settings=(("small", 4), ("large", 8)))
    return {
        "two": view(two, experiment(methods=PAIR)),
        "missing": view(missing),
        "gone": view(gone, experiment(methods=PAIR)),
    }


@pytest.mark.parametrize("name", NAMES)
def test_settings_have_panels_missing_runs_are_named_and_nothing_is_an_error(name, tool, sparse):
    two = draw_figure(name, sparse["two"])
    assert len(two.axes) == 2 * len(draw_figure(name, view(tool)).axes)
    assert all(any(place in text for text in texts(two)) for place in ("small, G=4", "large, G=8"))
    assert {"GRPO (no runs)", "GDPO (1 of 2 runs)", "DARA-Sym"} <= set(texts(draw_figure(name, sparse["missing"])))
    with pytest.raises(ValueError, match=r"experiment other: .*`runs` has no run.*tool_main"):
        view(tool, experiment(name="other"))
    with pytest.raises(ValueError, match=r"experiment tool_main: no .* 0 finished of 2 planned runs"):
        draw_figure(name, sparse["gone"])


def test_an_unknown_method_is_an_error(tool):
    known = {name: METHODS[name] for name in ("grpo", "gdpo", "dara_sym")}
    with pytest.raises(ValueError, match="method 'dara_asym' has no row in the methods"):
        draw_figure("learning_curves", view(tool, experiment(), known))


def test_long_labels_take_more_lines_and_stay_inside():
    missing = tuple((method, seed) for method in COMPARED for seed in (101, 102))
    figure = draw_figure("learning_curves", view(simulate(steps=40, missing=missing), experiment()))
    FigureCanvasAgg(figure).draw()
    box = figure.legends[0].get_window_extent()
    assert "GRPO (1 of 3 runs)" in texts(figure)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_users_settings_do_not_matter_and_stay_as_they_are(tool, tmp_path):
    wanted = render_figure(draw_figure("learning_curves", view(tool)), tmp_path / "a")
    with matplotlib.rc_context({"font.size": 20, "axes.grid": False, "svg.hashsalt": "mine"}):
        given = render_figure(draw_figure("learning_curves", view(tool)), tmp_path / "b")
        assert matplotlib.rcParams["font.size"] == 20
    assert [path.read_bytes() for path in wanted] == [path.read_bytes() for path in given]
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        assert pyplot.get_fignums() == []


def test_methods_differ_in_color_line_and_marker():
    looks = [style_of(name, METHODS) for name in METHODS]
    assert len({look.marker for look in looks}) == len(METHODS)
    assert len({str(look.linestyle) for look in looks}) == len(METHODS) == len(LINESTYLES)
    assert style_of("dara_sym", METHODS).color == "#1f77b4"


def test_the_marked_threshold_is_that_of_the_papers_claim():
    figure = draw_figure("learning_curves", view(simulate("math"), experiment("math")))
    lines = {to_hex(line.get_color()): line for line in figure.axes[1].lines}
    assert list(lines["#333333"].get_ydata()) == [0.99, 0.99]
    assert [headline_threshold("format", (0.5, 0.8)), headline_threshold("format", (0.5, 0.9))] == [0.8, 0.5]
    assert headline_threshold("own", (0.7, 0.3)) == 0.3


def test_learning_curves_draw_median_band_and_threshold(tool):
    figure = draw_figure("learning_curves", view(tool))
    format_axes = figure.axes[1]
    curves = tool["training_curves"]
    wanted = (
        curves[(curves["method"] == "gdpo") & (curves["metric"] == "reward/format/mean")]
        .groupby("step")["value"]
        .median()
    )
    lines = {to_hex(line.get_color()): line for line in format_axes.lines}
    np.testing.assert_allclose(lines["#2ca02c"].get_ydata(), wanted.to_numpy(), rtol=0, atol=1e-12)
    assert len(lines["#7f7f7f"].get_xdata()) == 80  # the diverged run counts until its step 23
    assert list(lines["#333333"].get_ydata()) == [0.8, 0.8]
    assert len(format_axes.collections) == len(COMPARED)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["correctness reward", "format reward"]


def test_crossing_strip_has_a_point_a_run_and_open_markers(tool):
    figure = draw_figure("crossing_strip", view(tool))
    axes = figure.axes[0]
    filled = [line for line in axes.lines if len(line.get_xdata()) == 1 and line.get_markerfacecolor() != "white"]
    hollow = [line for line in axes.lines if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == "white"]
    assert (len(filled), len(hollow)) == (3 * 10, 3)
    assert {float(line.get_ydata()[0]) for line in hollow} == {80.0}
    assert len(axes.collections) == 3 * 4  # a median tick for each method and threshold
    crossings = tool["crossings"]
    mine = crossings[(crossings["method"] == "gdpo") & (crossings["threshold"] == 0.8)]["stable_step"]
    steps = sorted(float(line.get_ydata()[0]) for line in filled if to_hex(line.get_color()) == "#2ca02c")
    assert set(mine.astype(float)) <= set(steps)
    assert "not reached" in texts(figure)
    assert "budget: 80 steps" in texts(figure)


def test_crossing_strip_shows_pending_runs_where_the_crossing_began():
    frames = simulate("math", methods=PAIR, seeds=(100, 101))
    crossings = frames["crossings"].copy()
    last = crossings["threshold"] == 0.99
    crossings.loc[last, ["stable_step", "pending_step"]] = [pd.NA, 97]
    crossings.loc[last, "status"] = "pending"
    figure = draw_figure("crossing_strip", view(frames | {"crossings": crossings}, experiment("math", PAIR)))
    hollow = [
        line for line in figure.axes[0].lines if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == "white"
    ]
    assert [float(line.get_ydata()[0]) for line in hollow] == [97.0] * 4
    assert len(figure.axes[0].collections) == 3 * 2  # no median tick at 0.99
    assert "pending: begun, too late to confirm" in texts(figure)


def test_one_run_a_method_is_drawn_as_a_line_over_many_thresholds():
    frames = simulate("math", methods=PAIR, seeds=(100,))
    figure = draw_figure("crossing_strip", view(frames, experiment("math", PAIR)))
    lines = {to_hex(line.get_color()): line for line in figure.axes[0].lines}
    mine = frames["crossings"][frames["crossings"]["method"] == "gdpo"].sort_values("threshold")
    reached = mine["stable_step"].dropna().astype(float).to_list()
    assert list(lines["#2ca02c"].get_ydata()) == reached
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["0.8", "0.9", "0.95", "0.99"]
    assert "One run a method" in texts(figure)


def test_many_methods_at_many_thresholds_are_dealt_to_rows_in_which_they_can_be_told_apart():
    frames = simulate("math", methods=tuple(METHODS))
    more = frames["crossings"][frames["crossings"]["threshold"] == 0.95]
    crossings = pd.concat([frames["crossings"], *(more.assign(threshold=level) for level in (0.97, 0.98))])
    asked = experiment("math", tuple(METHODS))
    levels = {"thresholds": {"length": (0.8, 0.9, 0.95, 0.97, 0.98, 0.99)}}
    figure = draw_figure("crossing_strip", view(frames | {"crossings": crossings}, asked.model_copy(update=levels)))
    ticks = [[text.get_text() for text in axes.get_xticklabels()] for axes in figure.axes]
    assert ticks == [["0.8", "0.9", "0.95"], ["0.97", "0.98", "0.99"]]
    places = [{float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 1} for axes in figure.axes]
    assert [len(drawn) for drawn in places] == [6 * 3 * 3] * 2
    assert len(draw_figure("crossing_strip", view(frames, asked)).axes) == 1


def test_crossing_strip_needs_thresholds(tool):
    asked = experiment().model_copy(update={"thresholds": {}})
    with pytest.raises(ValueError, match="the sparse reward 'format' has no thresholds"):
        draw_figure("crossing_strip", view(tool, asked))


def test_energy_parts_add_up_to_the_shares(tool):
    parts = shares_by_sign(tool["energies"], "format").dropna()
    np.testing.assert_allclose(parts["positive_before"] + parts["negative_before"], parts["share_before"], atol=1e-12)
    np.testing.assert_allclose(parts["positive_after"] + parts["negative_after"], parts["share_after"], atol=1e-12)


def test_energy_figures_show_the_share_and_its_two_signs(tool):
    whole = draw_figure("energy_shares", view(tool))
    signs = draw_figure("energy_by_sign", view(tool))
    assert [axes.get_title() for axes in whole.axes] == [
        "before the method (z-scores)",
        "after the method (contributions)",
    ]
    assert [axes.get_ylabel() for axes in signs.axes[::2]] == [
        "share of positive\nformat advantages",
        "share of negative\nformat advantages",
    ]
    assert [len(axes.lines) for axes in (*whole.axes, *signs.axes)] == [4] * 6
    # Before the method every line is that of the same z-scores' energies: the signs of one run add up to its share.
    one = view(simulate(seeds=(100,), methods=("gdpo",)), experiment(methods=("gdpo",)))
    drawn = [[axes.lines[0].get_ydata() for axes in draw_figure(name, one).axes] for name in NAMES[2:4]]
    np.testing.assert_allclose(drawn[1][0] + drawn[1][2], drawn[0][0], atol=1e-12)
    np.testing.assert_allclose(drawn[1][1] + drawn[1][3], drawn[0][1], atol=1e-12)


def test_energy_share_of_no_energy_is_undefined():
    row = {"run_id": "a", "step": 1, "reward": "format", "contributed_pos": 3.0, "contributed_neg": 1.0}
    other = {"run_id": "a", "step": 1, "reward": "correctness", "contributed_pos": 4.0, "contributed_neg": 0.0}
    rows = pd.DataFrame([row, other]).assign(energy_pos=0.0, energy_neg=0.0)
    parts = shares_by_sign(rows, "format").iloc[0]
    assert (parts["positive_after"], parts["negative_after"]) == (0.375, 0.125)
    assert np.isnan(parts["positive_before"])


def test_checkpoint_curves_are_percent_and_start_at_the_base(tool):
    figure = draw_figure("checkpoint_curves", view(tool))
    assert [axes.get_ylabel() for axes in figure.axes] == ["Average Accuracy (%)", "Average Format (%)"]
    for line in figure.axes[0].lines:
        assert float(line.get_xdata()[0]) == 0
        assert float(line.get_ydata()[0]) == pytest.approx(5.0)
    math = draw_figure("checkpoint_curves", view(simulate("math"), experiment("math")))
    assert [axes.get_ylabel() for axes in math.axes] == ["Acc (%)", "Exceed (%)", "Joint (%)"]
