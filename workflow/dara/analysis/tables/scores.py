"""Table of scores at one step: mean and spread of each method, with differences, or beside another experiment."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from dara.analysis.compare import Difference, difference_at
from dara.analysis.names import BASE
from dara.analysis.tables.render import MISSING, Table, number, with_interval
from dara.analysis.tables.rows import (
    BASE_LABEL,
    RAW,
    Steps,
    cell,
    clearly_best,
    estimate_of,
    hidden_note,
    is_published,
    raw_cells,
    runs_behind,
    scale_of,
    setting_cells,
    setting_columns,
    step_note,
    step_of,
    step_title,
    steps_of,
    title_of,
)
from dara.analysis.view import Estimate, Setting, View, missing_data
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.table_options import ScoreColumn, ScoreTable

SPREADS = {
    "sd": "mean ± SD over n seeds",
    "seeds": "mean [95 % t interval] over n seeds",
    "questions": "mean [95 % interval: over n seeds, of a single run over its questions]",
    "hierarchical": "mean [95 % interval over seeds and questions]",
    "none": "mean over n seeds",
}
POINTER = "docs/statistics.md explains it under Score tables."
BOLD_NOTE = "Bold: the best method of a model where its interval overlaps no other."
OVER_SEEDS, OVER_BOTH = "t over seeds", "seeds and questions"
EACH_RAW = (
    *("metric", "method", "baseline", "step", "value", "t_low", "t_high", "low", "high"),
    *("n_seeds", "n_questions"),
)


@dataclass(frozen=True)
class Shown:
    """One column of a row of scores: the metric, its description, and the name of its raw columns."""

    metric: str
    column: ScoreColumn
    raw: str


@dataclass
class Body:
    """The rows of a table under construction."""

    rows: list[dict[str, object]] = field(default_factory=list)
    bold: set[tuple[int, str]] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    """Raw names of the columns that have a value."""


def build(view: View, options: ScoreTable) -> Table:
    """Return one row a (setting, method), the base model first, and one column a metric.

    Returns:
        Raw columns: method, step, and for each metric the value as a fraction, and _low, _high, _sd, _n. With `sets`
        also `score` and _question_low, _question_high, and the names are those of the sets; with `beside` only values,
        as <metric>_<label>; with `step: each` the columns of the frame score_intervals.

    Raises:
        ValueError: the source has none of the metrics at the step.
    """
    if options.step == "each":
        return _each_step(view, options)
    steps = steps_of(view, options)
    if options.beside:
        return _beside(view, options, steps)
    body, blocks = Body(), _blocks(options)
    for setting, step in steps.items():
        for metric, block in blocks:
            _add_methods(body, view, options, setting, step, metric, block)
        body.rows += [
            _difference_row(view, options, setting, step, method, baseline)
            for method, baseline in options.differences.items()
            if {method, baseline} <= set(view.methods)
        ]
    if not body.found:
        raise missing_data(view, f"score ({', '.join(options.metrics)})")
    shown = [each for each in blocks[0][1] if each.raw in body.found]
    absent = [each for each in blocks[0][1] if each.raw not in body.found]
    titles = [each.column.title for each in shown]
    gone = {name for each in absent for name in (each.column.title, *raw_cells(each.raw, None, _parts(options)))}
    measured = [each.metric for _, block in blocks for each in block if each.raw in body.found]
    columns = [*(["Score"] if options.sets else []), "Method", "n", *titles]
    return Table(
        pd.DataFrame(body.rows).drop(columns=list(gone)),
        title_of(view, step_title(view, options, steps)),
        [
            *_notes(view, options, steps, absent),
            *([BOLD_NOTE] if body.bold else []),
            *([f"Without a score here: {', '.join(body.missing)}."] if body.missing else []),
            *view.notes(measured, [0, *dict.fromkeys(steps.values())]),
        ],
        [*setting_columns(view), *columns],
        numeric=("G", "n", *titles),
        bold=frozenset(body.bold),
    )


def _blocks(options: ScoreTable) -> list[tuple[str, list[Shown]]]:
    """Return the columns of the table; with `sets`, those of each metric in turn."""
    if not options.sets:
        return [("", [Shown(metric, column, metric) for metric, column in options.metrics.items()])]
    return [
        (
            metric,
            [
                Shown(
                    metric if part == "mean" else f"{metric}/{part}", column.model_copy(update={"title": title}), part
                )
                for part, title in options.sets.items()
            ],
        )
        for metric, column in options.metrics.items()
    ]


def _parts(options: ScoreTable) -> tuple[str, ...]:
    return (*RAW, "question_low", "question_high") if options.spread == "questions" else RAW


def _add_methods(
    body: Body, view: View, options: ScoreTable, setting: Setting, step: int | None, score: str, block: list[Shown]
) -> None:
    """Add the rows of one setting (of one score with `sets`): the methods that have a value, the base model first."""
    first, found = len(body.rows), {}
    for method in (BASE, *view.methods):
        at = step_of(view, options, step, method, setting)
        estimates = {each.raw: estimate_of(view, options, each.metric, method, setting, at) for each in block}
        if any(estimates.values()):
            found[method] = estimates
            body.rows.append(_row(view, options, setting, at, method, score, block, estimates))
        elif method != BASE and not score:
            body.missing.append(f"{view.method_label(method)}{_place(view, setting)}")
    body.found |= {raw for estimates in found.values() for raw, estimate in estimates.items() if estimate}
    for each in block:
        of_methods = {method: estimates[each.raw] for method, estimates in found.items() if method != BASE}
        if each.column.best and (winner := clearly_best(of_methods, each.column.best)):
            body.bold.add((first + list(found).index(winner), each.column.title))


def _row(
    view: View,
    options: ScoreTable,
    setting: Setting,
    step: int | None,
    method: str,
    score: str,
    block: list[Shown],
    estimates: Mapping[str, Estimate | None],
) -> dict[str, object]:
    row = setting_cells(setting) | ({"Score": options.metrics[score].title} if score else {})
    row["Method"] = BASE_LABEL if method == BASE else view.method_label(method)
    row["n"] = runs_behind(estimates.values())
    row |= {each.column.title: cell(view, options, each.column, estimates[each.raw]) for each in block}
    row |= ({"score": score} if score else {}) | {"method": method, "step": math.nan if step is None else step}
    for name, estimate in estimates.items():
        row |= raw_cells(name, estimate, _parts(options))
    return row


def _place(view: View, setting: Setting) -> str:
    """Return ` of model, G=4`, with what the settings differ in; empty for a single setting."""
    cells = setting_cells(setting)
    parts = [f"G={cells[column]}" if column == "G" else str(cells[column]) for column in setting_columns(view)]
    return f" of {', '.join(parts)}" if parts else ""


def _notes(view: View, options: ScoreTable, steps: Steps, absent: Iterable[Shown]) -> list[str]:
    """Return notes on the columns, their steps, and the columns left out."""
    spread = f"Percent (CSV: fractions): {SPREADS[options.spread]}."
    notes = [*([options.note] if options.note else []), f"{spread} {step_note(view, options, steps)}".strip()]
    notes[-1] = f"{notes[-1]} {POINTER}"
    titles = ", ".join(each.column.title for each in absent)
    notes += [f"Not measured by the benchmark of these runs: {titles}."] if titles and not is_published(view) else []
    return notes + hidden_note(view, steps)


# Differences


def _difference_row(
    view: View, options: ScoreTable, setting: Setting, step: int | None, method: str, baseline: str
) -> dict[str, object]:
    """Return the row of a method minus another; _low and _high are the ends of the interval, _n the pairs."""
    name = f"{view.methods[method].label} − {view.methods[baseline].label}"
    row: dict[str, object] = {**setting_cells(setting), "Method": name, "method": f"{method}-{baseline}"}
    row["step"] = math.nan if step is None else step
    counts = [0]
    for metric, column in options.metrics.items():
        found = _difference(view, metric, (method, baseline), setting, step)
        scale, decimals = scale_of(view, column)
        row |= {metric: found.value, f"{metric}_low": found.low, f"{metric}_high": found.high}
        row |= {f"{metric}_sd": math.nan, f"{metric}_n": found.pairs}
        shown = with_interval(found.value, found.low, found.high, decimals, scale)
        row[column.title] = f"+{shown}" if found.value > 0 else shown
        counts.append(found.pairs)
    row["n"] = str(max(counts)) if max(counts) else MISSING
    return row


def _difference(view: View, metric: str, pair: tuple[str, str], setting: Setting, step: int | None) -> Difference:
    """Return the difference of a score; NaN without a pair, and without an interval for published scores."""
    nothing = Difference(math.nan, math.nan, math.nan, 0)
    if isinstance(view, RunsView):
        return nothing if step is None else difference_at(view, metric, pair, setting, step)
    scores = [view.score(metric, method, setting, step) for method in pair]
    if not all(scores):
        return nothing
    return replace(nothing, value=scores[0].value - scores[1].value, pairs=min(score.n or 0 for score in scores))


# Beside another experiment


def _beside(view: View, options: ScoreTable, steps: Steps) -> Table:
    """Return one row a (setting, method): each metric of the other experiment, of this one, and the change."""
    other, labels = of_experiment(view, options.beside.experiment), (options.beside.label, options.beside.own_label)
    rows, found = [], set()
    for setting, step in steps.items():
        for method in view.methods:
            own = {metric: view.score(metric, method, setting, step) for metric in options.metrics}
            if any(own.values()):
                rows.append(_beside_row(view, other, options, setting, step, method, own))
                found |= {metric for metric, estimate in own.items() if estimate}
    if not rows:
        raise missing_data(view, f"score ({', '.join(options.metrics)})")
    # A metric without any value is left out of the table, with its raw columns, and named in a note.
    columns, gone, absent = [], [], []
    for metric, column in options.metrics.items():
        titles = [f"{column.title} {end}" for end in (labels[1:] if column.alone else (*labels, "change"))]
        if metric in found:
            columns += titles
            continue
        absent.append(Shown(metric, column, metric))
        gone += titles + ([metric] if column.alone else [f"{metric}_{end}" for end in (*labels, "difference")])
    counts, shown = [f"n {label}" for label in labels], list(dict.fromkeys(steps.values()))
    notes = [f"{label}: {note}" for label, one in zip(labels, (other, view), strict=True)
             for note in one.notes([metric for metric in options.metrics if metric in found], shown)]  # fmt: skip
    return Table(
        pd.DataFrame(rows).drop(columns=gone),
        title_of(view, step_title(view, options, steps)),
        [*_notes(view, options, steps, absent), *notes],
        [*setting_columns(view), "Method", *columns, *counts],
        numeric=("G", *columns, *counts),
    )


def _beside_row(
    view: View,
    other: View,
    options: ScoreTable,
    setting: Setting,
    step: int | None,
    method: str,
    own: Mapping[str, Estimate | None],
) -> dict[str, object]:
    label, own_label = options.beside.label, options.beside.own_label
    row: dict[str, object] = {**setting_cells(setting), "Method": view.method_label(method), "method": method}
    behind = []
    for metric, column in options.metrics.items():
        mine = own[metric]
        row[f"{column.title} {own_label}"] = cell(view, options, column, mine)
        if column.alone:
            row[metric] = mine.value if mine else math.nan
            continue
        theirs = other.score(metric, method, setting, step)
        behind.append(theirs)
        values = [estimate.value if estimate else math.nan for estimate in (theirs, mine)]
        change = values[1] - values[0]
        shown = MISSING if math.isnan(change) else number(scale_of(view, column)[0] * change, 1)
        del row[f"{column.title} {own_label}"]  # the other experiment comes first
        row[f"{column.title} {label}"] = cell(view, options, column, theirs)
        row[f"{column.title} {own_label}"] = cell(view, options, column, mine)
        row[f"{column.title} change"] = f"+{shown}" if change > 0 else shown
        row |= {f"{metric}_{label}": values[0], f"{metric}_{own_label}": values[1], f"{metric}_difference": change}
    return row | {f"n {label}": runs_behind(behind), f"n {own_label}": runs_behind(own.values())}


def of_experiment(view: View, name: str) -> View:
    """Return the same source, methods and models for another experiment. Raise ValueError if it has no numbers."""
    other = view.experiment.model_copy(update={"experiment": name, "thresholds": {}})
    models = {setting.model for setting in view.settings}
    if isinstance(view, PublishedView):
        rows = view.published
        return PublishedView(rows[rows["model"].isin([*models, "all"])], other, view.entries)
    runs = view.frames["runs"]
    frames = ChainMap({"runs": runs[runs["model"].isin(models)]}, view.frames)
    return RunsView(frames, other, view.entries, view.source)


# A row a score


def _each_step(view: View, options: ScoreTable) -> Table:
    """Return one row a (setting, step, score, method), then the differences of methods, with both intervals."""
    if not isinstance(view, RunsView):
        raise missing_data(view, "scores of single questions; only runs of a preset have them")
    frame = view.frames["score_intervals"]
    frame = frame[frame["experiment"] == view.experiment.experiment]
    rows = []
    for setting in view.settings:
        here = view.selection.of_setting(frame, setting)
        for step in sorted(here["step"].unique()):
            for metric, column in options.metrics.items():
                shown = here[(here["step"] == step) & (here["metric"] == metric)]
                rows += [
                    setting_cells(setting) | _each_row(view, column, one) for one in _ordered(view, options, shown)
                ]
    if not rows:
        raise missing_data(view, "score at a step that all runs have")
    columns = ["Step", "Score", "Method", "Seeds", "Questions", "Mean (%)", OVER_SEEDS, OVER_BOTH]
    return Table(
        pd.DataFrame(rows),
        title_of(view, options.title),
        [
            *([options.note] if options.note else []),
            f"95 % intervals: Student's t over seeds, and a bootstrap over seeds and questions. {POINTER}",
            *view.notes(),
        ],
        [*setting_columns(view), *columns],
        numeric=("G", "Step", "Seeds", "Questions", "Mean (%)"),
    )


def _ordered(view: View, options: ScoreTable, rows: pd.DataFrame) -> list[dict]:
    """Return the scores, then the differences, both in the order of the methods."""
    methods, asked = list(view.methods), options.differences
    found = rows.to_dict("records")
    if asked:
        found = [row for row in found if not row["baseline"] or asked.get(row["method"]) == row["baseline"]]
    return sorted(found, key=lambda row: (bool(row["baseline"]), methods.index(row["method"]), row["baseline"]))


def _each_row(view: View, column: ScoreColumn, found: dict) -> dict[str, object]:
    method = view.methods[found["method"]].label
    if found["baseline"]:
        method = f"{method} − {view.methods[found['baseline']].label}"
    sign = "+" if found["baseline"] and found["value"] > 0 else ""
    shown = {
        "Step": str(found["step"]),
        "Score": column.title,
        "Method": method,
        "Seeds": str(found["n_seeds"]),
        "Questions": str(found["n_questions"]),
        "Mean (%)": sign + number(100 * found["value"], 1),
        OVER_SEEDS: _ends(found["t_low"], found["t_high"]),
        OVER_BOTH: _ends(found["low"], found["high"]),
    }
    return shown | {name: found[name] for name in EACH_RAW}


def _ends(low: float, high: float) -> str:
    return MISSING if pd.isna(low) else f"[{number(100 * low, 1)}, {number(100 * high, 1)}]"
