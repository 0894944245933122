"""Table of scores at one step: mean and spread of each method, with differences, or beside another experiment."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from dara.analysis.compare import Difference, difference_at
from dara.analysis.names import BASE
from dara.analysis.tables.render import MISSING, Table, number, with_interval
from dara.analysis.tables.rows import (
    BASE_LABEL,
    POINTER,
    Scores,
    clearly_best,
    or_nan,
    runs_behind,
    setting_cells,
    setting_columns,
    title_of,
)
from dara.analysis.view import Estimate, Setting, View, missing_data
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.table_options import ScoreColumn, ScoreTable

BOLD_NOTE = "Bold: the best method of a model where its interval overlaps no other."

Row = dict[str, object]


class Shown(NamedTuple):
    """A column of scores: the name of its raw columns, its metric, and what config/ says of it."""

    raw: str
    metric: str
    column: ScoreColumn


def build(view: View, options: ScoreTable) -> Table:
    """Return one row a (setting, method), the base model first, and one column a metric.

    Raw columns: method, step, and for each metric the value as a fraction, and _low, _high, _sd, _n. With `sets` also
    `score` and _question_low, _question_high, and the names are those of the sets; with `beside` only values, as
    <metric>_<label>; with `step: each` the columns of the frame score_intervals. Raise ValueError if the source has
    none of the metrics at the step.
    """
    if options.step == "each":
        return _each_step(view, options)
    scores = Scores(view, options)
    return _beside(scores) if options.beside else _of_methods(scores)


def _of_methods(scores: Scores) -> Table:
    """Return the table of one experiment: the methods that have a value, and differences of methods."""
    view, options, steps = scores.view, scores.options, scores.steps()
    blocks = _blocks(options)
    rows, bold, missing, found = [], set(), [], set()
    for setting, step in steps.items():
        for score, block in blocks.items():
            of_methods = _method_rows(scores, setting, step, score, block)
            found |= {raw for _, made in of_methods.values() for raw, estimate in made.items() if estimate}
            for each in block:
                own = {method: made[each.raw] for method, (_, made) in of_methods.items() if method != BASE}
                if each.column.best and (winner := clearly_best(own, each.column.best)):
                    bold.add((len(rows) + list(of_methods).index(winner), each.column.title))
            rows += [row for row, _ in of_methods.values()]
            lacking = [] if score else [method for method in view.methods if method not in of_methods]
            missing += [f"{view.method_label(method)}{_place(view, setting)}" for method in lacking]
        pairs = [pair for pair in options.differences.items() if set(pair) <= set(view.methods)]
        rows += [_difference_row(scores, setting, step, pair) for pair in pairs]
    if not found:
        raise missing_data(view, f"score ({', '.join(options.metrics)})")
    columns = next(iter(blocks.values()))
    titles = [each.column.title for each in columns if each.raw in found]
    absent = [each for each in columns if each.raw not in found]
    gone = {name for each in absent for name in (each.column.title, *scores.raw(each.raw, None))}
    measured = [each.metric for block in blocks.values() for each in block if each.raw in found]
    notes = scores.notes(steps, [each.column.title for each in absent])
    notes += [BOLD_NOTE] if bold else []
    notes += [f"Without a score here: {', '.join(missing)}."] if missing else []
    return Table(
        pd.DataFrame(rows).drop(columns=list(gone)),
        scores.title(steps),
        notes + view.notes(measured, [0, *dict.fromkeys(steps.values())]),
        [*setting_columns(view), *(["Score"] if options.sets else []), "Method", "n", *titles],
        numeric=("G", "n", *titles),
        bold=frozenset(bold),
    )


def _blocks(options: ScoreTable) -> dict[str, list[Shown]]:
    """Return the columns of the table; with `sets`, those of each metric in turn."""
    if not options.sets:
        return {"": [Shown(metric, metric, column) for metric, column in options.metrics.items()]}
    return {
        metric: [
            Shown(part, metric if part == "mean" else f"{metric}/{part}", column.model_copy(update={"title": title}))
            for part, title in options.sets.items()
        ]
        for metric, column in options.metrics.items()
    }


def _method_rows(
    scores: Scores, setting: Setting, step: int | None, score: str, block: list[Shown]
) -> dict[str, tuple[Row, dict[str, Estimate | None]]]:
    """Return row and estimates (by raw name) of each method that has a value, the base model first."""
    found = {}
    for method in (BASE, *scores.view.methods):
        at = scores.step_of(step, method, setting)
        estimates = {each.raw: scores.estimate(each.metric, method, setting, at) for each in block}
        if not any(estimates.values()):
            continue
        row = setting_cells(setting) | ({"Score": scores.options.metrics[score].title} if score else {})
        row["Method"] = BASE_LABEL if method == BASE else scores.view.method_label(method)
        row["n"] = runs_behind(estimates.values())
        row |= {each.column.title: scores.cell(each.column, estimates[each.raw]) for each in block}
        row |= ({"score": score} if score else {}) | {"method": method, "step": or_nan(at)}
        for name, estimate in estimates.items():
            row |= scores.raw(name, estimate)
        found[method] = row, estimates
    return found


def _place(view: View, setting: Setting) -> str:
    """Return ` of model, G=4`, with what the settings differ in; empty for a single setting."""
    cells = setting_cells(setting)
    parts = [f"G={cells[column]}" if column == "G" else str(cells[column]) for column in setting_columns(view)]
    return f" of {', '.join(parts)}" if parts else ""


def _difference_row(scores: Scores, setting: Setting, step: int | None, pair: tuple[str, str]) -> Row:
    """Return the row of a method minus another; _low and _high are the ends of the interval, _n the pairs."""
    method, baseline = (scores.view.methods[name].label for name in pair)
    row = setting_cells(setting) | {"Method": f"{method} − {baseline}", "method": "-".join(pair), "step": or_nan(step)}
    counts = [0]
    for metric, column in scores.options.metrics.items():
        found = _difference(scores.view, metric, pair, setting, step)
        scale, decimals = scores.scale_of(column)
        row |= {metric: found.value, f"{metric}_low": found.low, f"{metric}_high": found.high}
        row |= {f"{metric}_sd": math.nan, f"{metric}_n": found.pairs}
        shown = with_interval(found.value, found.low, found.high, decimals, scale)
        row[column.title] = f"+{shown}" if found.value > 0 else shown
        counts.append(found.pairs)
    return row | {"n": str(max(counts)) if max(counts) else MISSING}


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


def _beside(scores: Scores) -> Table:
    """Return one row a (setting, method): each metric of the other experiment, of this one, and the change."""
    view, options, steps = scores.view, scores.options, scores.steps()
    other, labels = _of_experiment(view, options.beside.experiment), (options.beside.label, options.beside.own_label)
    rows, found = [], set()
    for setting, step in steps.items():
        for method in view.methods:
            own = {metric: view.score(metric, method, setting, step) for metric in options.metrics}
            if any(own.values()):
                theirs = {metric: other.score(metric, method, setting, step) for metric in options.metrics}
                row = setting_cells(setting) | {"Method": view.method_label(method), "method": method}
                rows.append(row | _beside_cells(scores, theirs, own))
                found |= {metric for metric, estimate in own.items() if estimate}
    if not rows:
        raise missing_data(view, f"score ({', '.join(options.metrics)})")
    # A metric without any value is left out of the table, with its raw columns, and named in a note.
    columns, gone = [], []
    for metric, column in options.metrics.items():
        titles = [f"{column.title} {end}" for end in (labels[1:] if column.alone else (*labels, "change"))]
        if metric in found:
            columns += titles
        else:
            gone += titles + ([metric] if column.alone else [f"{metric}_{end}" for end in (*labels, "difference")])
    counts, shown = [f"n {label}" for label in labels], list(dict.fromkeys(steps.values()))
    notes = scores.notes(steps, [column.title for metric, column in options.metrics.items() if metric not in found])
    for label, one in zip(labels, (other, view), strict=True):
        measured = one.notes([metric for metric in options.metrics if metric in found], shown)
        notes += [f"{label}: {note}" for note in measured]
    display = [*setting_columns(view), "Method", *columns, *counts]
    frame = pd.DataFrame(rows).drop(columns=gone)
    return Table(frame, scores.title(steps), notes, display, numeric=("G", *columns, *counts))


def _beside_cells(
    scores: Scores, theirs: Mapping[str, Estimate | None], own: Mapping[str, Estimate | None]
) -> dict[str, object]:
    label, own_label = scores.options.beside.label, scores.options.beside.own_label
    row: Row = {}
    for metric, column in scores.options.metrics.items():
        of = {own_label: own[metric]} if column.alone else {label: theirs[metric], own_label: own[metric]}
        row |= {f"{column.title} {name}": scores.cell(column, estimate) for name, estimate in of.items()}
        values = [estimate.value if estimate else math.nan for estimate in of.values()]
        if column.alone:
            row[metric] = values[0]
            continue
        change = values[1] - values[0]
        shown = number(scores.scale_of(column)[0] * change, 1)
        row[f"{column.title} change"] = f"+{shown}" if change > 0 else shown
        row |= {f"{metric}_{label}": values[0], f"{metric}_{own_label}": values[1], f"{metric}_difference": change}
    compared = [theirs[metric] for metric, column in scores.options.metrics.items() if not column.alone]
    return row | {f"n {label}": runs_behind(compared), f"n {own_label}": runs_behind(own.values())}


def _of_experiment(view: View, name: str) -> View:
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
    frame = frame[(frame["experiment"] == view.experiment.experiment) & frame["metric"].isin(list(options.metrics))]
    methods, metrics, asked = list(view.methods), list(options.metrics), options.differences

    def order(row: Row) -> tuple:
        place = row["step"], metrics.index(row["metric"]), bool(row["baseline"])
        return *place, methods.index(row["method"]), row["baseline"]

    rows = []
    for setting in view.settings:
        here = sorted(view.selection.of_setting(frame, setting).to_dict("records"), key=order)
        for row in here:
            if not asked or not row["baseline"] or asked.get(row["method"]) == row["baseline"]:
                rows.append(setting_cells(setting) | _each_row(view, options.metrics[row["metric"]], row))
    if not rows:
        raise missing_data(view, "score at a step that all runs have")
    columns = ["Step", "Score", "Method", "Seeds", "Questions", "Mean (%)", "t over seeds", "seeds and questions"]
    notes = [
        *([options.note] if options.note else []),
        f"95 % intervals: Student's t over seeds, and a bootstrap over seeds and questions. {POINTER}",
        *view.notes(),
    ]
    display, numeric = [*setting_columns(view), *columns], ("G", "Step", "Seeds", "Questions", "Mean (%)")
    return Table(pd.DataFrame(rows), title_of(view, options.title), notes, display, numeric)


def _each_row(view: View, column: ScoreColumn, found: Row) -> Row:
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
    }
    for title, ends in (("t over seeds", ("t_low", "t_high")), ("seeds and questions", ("low", "high"))):
        low, high = (number(100 * found[name], 1) for name in ends)
        shown[title] = MISSING if pd.isna(found[ends[0]]) else f"[{low}, {high}]"
    raw = ("metric", "method", "baseline", "step", "value", "t_low", "t_high", "low", "high", "n_seeds", "n_questions")
    return shown | {name: found[name] for name in raw}
