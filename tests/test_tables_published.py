"""Tables of thresholds, settings and both sources side by side; and every table in LaTeX."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from dara.analysis.paper_numbers import read_published
from dara.analysis.tables import Table, build_table, render_table
from dara.analysis.tables.render import (
    COLUMN,
    GAP,
    PAGE,
    SIZES,
    escape_latex,
    latex,
    markdown,
    number,
    signed,
    text_width,
    with_interval,
)
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.config import Experiment
from dara.loading import load_preset, load_published, read_methods
from project import ROOT
from scored_frames import entry
from synthetic import METHODS, experiment, simulate

SMALL, QWEN3, R1 = "Qwen2.5-1.5B-Instruct", "Qwen3-4B-Instruct-2507", "DeepSeek-R1-Distill-Qwen-7B"
PAIR = ("gdpo", "dara_sym")


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return read_published(ROOT / "results/published/data")


def published(rows: pd.DataFrame, name: str) -> PublishedView:
    """An experiment of config/published.yaml."""
    return PublishedView(rows, load_published(ROOT)[name], read_methods(ROOT))


def ours(task: str = "tool_calling", frames: dict | None = None) -> RunsView:
    return RunsView(frames or simulate(task), experiment(task), METHODS, "laptop")


def cell(table: Table, column: str, **equal: str) -> object:
    frame = table.frame
    for name, value in equal.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, equal
    return frame[column].iloc[0]


# Thresholds and side by side


def test_thresholds_and_the_41_to_65_percent(rows):
    table = build_table("threshold_crossings", published(rows, "math_main"))
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


def test_side_by_side_has_the_26_percent(rows):
    table = build_table("side_by_side", ours(), published(rows, "tool_main"))
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
    table = build_table("side_by_side", ours("math", frames), published(rows, "math_main"))
    quantities = list(dict.fromkeys(table.frame["Quantity"]))
    assert quantities == ["Steps to length 0.99", "Steps saved (%)", "Exceed (%)", "Energy ratio"]
    of = {"Quantity": "Steps saved (%)", "Published model": QWEN3}
    assert cell(table, "Published", method="dara_sym", **of) == "46.8"
    energy = rows[(rows["metric"] == "energy_ratio") & (rows["model"] == QWEN3) & (rows["method"] == "gdpo")]
    last = energy.sort_values("step")["value"].tail(10).median()
    assert cell(table, "published", method="gdpo", **of | {"Quantity": "Energy ratio"}) == last
    ratios = {method: cell(table, "Ours", method=method, **of | {"Quantity": "Energy ratio"}) for method in PAIR}
    assert ratios == {"gdpo": "0.10 [0.10, 0.10]", "dara_sym": "0.50 [0.50, 0.50]"}  # 10 / 100 and 50 / 100
    slow = frames["crossings"]["method"] == "gdpo"
    frames["crossings"].loc[slow, ["first_step", "stable_step", "pending_step"]] = None
    frames["crossings"].loc[slow, "status"] = "not_reached"
    table = build_table("side_by_side", ours("math", frames), published(rows, "math_main"))
    steps = of | {"Quantity": "Steps to length 0.99", "method": "gdpo"}
    assert (cell(table, "Ours", **steps), cell(table, "Difference", **steps)) == (">90", "–")  # beyond the budget
    assert cell(table, "Ours", method="dara_sym", **of) == "not estimable"


def test_scores_side_by_side(rows):
    tools = build_table(entry("tool_step100", "side_by_side"), ours(), published(rows, "tool_main"))
    of = {"Quantity": "Accuracy (%)", "Published model": SMALL, "method": "dara_sym"}
    assert cell(tools, "Published", **of) == "51.2"
    assert cell(tools, "difference", **of) == pytest.approx(cell(tools, "ours", **of) - 0.511731, abs=1e-6)
    maths = build_table(entry("math_step50", "side_by_side"), ours("math"), published(rows, "math_main"))
    assert set(maths.frame["Quantity"]) == {"Acc (%)", "Exceed (%)", "Joint (%)"}
    with pytest.raises(ValueError, match="no quantity in common"):
        build_table(entry("tool_step100", "side_by_side"), ours("math"), published(rows, "tool_main"))


# Settings


def test_settings_of_both_sources(rows):
    preset = load_preset(ROOT, ROOT / "config/presets/laptop.yaml").preset
    view = RunsView(simulate(), experiment(), read_methods(ROOT), "laptop")
    mine = build_table("hyperparameters", view, preset=preset)
    theirs = build_table("hyperparameters", published(rows, "tool_main"))
    assert cell(mine, "Value", setting="learning_rate") == "0.0002"
    assert cell(mine, "Value", setting="responses_per_step") == "128"
    assert cell(mine, "For", setting="w_max") == "DARA-Sym, DARA-Asym"
    assert cell(theirs, "Value", setting="learning_rate") == "1e-06"
    assert cell(theirs, "Value", setting="prompts_per_step") == "512"
    assert any(note.endswith("Contradictions explained there: 7, 9, 11.") for note in theirs.notes)
    both = build_table("hyperparameters", view, published(rows, "tool_main"), preset=preset)
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


def every_published(rows: pd.DataFrame) -> dict[str, Table]:
    """All tables of config/published.yaml, and two wide ones of made-up runs."""
    experiments: dict[str, Experiment] = load_published(ROOT)
    found = {
        output: build_table(made, published(rows, name))
        for name, asked in experiments.items()
        for output, made in asked.tables.items()
    }
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
        natural = [SIZES[size] * max(map(text_width, column)) for column in zip(*cells, strict=True)]
        set_to = [float(width) if width else own for width, own in zip(columns, natural, strict=True)]
        found.append(sum(set_to) + GAP * (len(columns) - 1))
    return found


def test_every_table_fits_a_column_or_a_page_and_is_the_same_twice(rows, tmp_path):
    wide = set()
    for name, table in every_published(rows).items():
        text = latex(table)
        assert text.startswith("% Packages: booktabs"), name
        page = r"\begin{table*}" in text
        assert widths(text), name
        assert max(widths(text)) <= (PAGE if page else COLUMN), name
        wide |= {name} if page else set()
        body = re.sub(r"^%.*", "", text)
        assert "±" not in body
        assert "%" not in body.replace(r"\%", "")
        assert "_" not in body.replace(r"\_", "")
        assert len(markdown(table).splitlines()) == 4 + len(table.frame) + 1 + len(table.notes)
        assert set(table.numeric) - {"G"} <= set(table.display)
        assert not (table.frame[table.display] == "").all().any(), "a column that says nothing"
        first, second = (render_table(table, tmp_path / turn / name) for turn in "ab")
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
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
    assert max(widths(text)) <= PAGE


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
    assert (number(24.5), number(-3.0), number(float("nan")), number(None)) == ("24.5", "−3", "–", "–")
    assert (signed(4.0), signed(-2.5), signed(0.0), signed(float("nan"))) == ("+4", "−2.5", "0", "–")
    assert with_interval(0.5, 0.4, 0.6, 1, 100) == "50.0 [40.0, 60.0]"
    assert with_interval(0.5, float("nan"), float("nan"), 1, 100) == "50.0"
