"""Tables of the quantities that both our runs and the authors' published numbers have, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from dara.analysis.crossing import CrossingTimes, median_step, median_text, speed_up, times_of
from dara.analysis.intervals import RESAMPLES, keyed_generator, percentile_interval, t_interval
from dara.analysis.names import BASE, BASELINE, HEADLINE
from dara.analysis.tables.render import MISSING, Table, number
from dara.analysis.tables.rows import (
    BASE_LABEL,
    completed_runs,
    or_nan,
    runs_behind,
    runs_view,
    steps_at,
)
from dara.analysis.view import Setting, View, missing_data, name_of
from dara.analysis.view_published import MARK_METRIC, PublishedView
from dara.table_options import ScoreTable

SCORES = {"tool_calling": ({"average_format": "Average Format"}, 100), "math": ({"exceed": "Exceed"}, 50)}
"""Task -> its held-out score related to the sparse reward, and the step of comparison (`steps_at`)."""

ENERGY = "Energy ratio"
ENERGY_STEPS = 10
"""Number of last steps over which an energy ratio is summarised."""
ENERGY_BATCHES = "dara_sym"
"""The method whose batches both energy ratios use, and whose weights the second ratio has."""

SCALE_NOTE = (
    "The scales differ: tiny models on generated problems against models of 1.5 to 7 billion parameters on the "
    "authors' benchmarks. Signs and the order of methods can be compared, sizes cannot "
    "(docs/statistics.md, Side by side)."
)
COLUMNS = ("Ours", "n", "Published", "n pub.", "Difference")

Row = dict[str, object]


class Value(NamedTuple):
    """One source's number: `text` if it is not a plain one (`>60`); low and high are NaN without an interval."""

    value: float
    low: float = math.nan
    high: float = math.nan
    n: str = MISSING
    text: str = ""


def build(ours: View, published: PublishedView) -> Table:
    """Return one row a (published model, quantity, method) that both sources have, for the first setting of ours.

    Quantities: steps to the threshold of the paper's claim (median over runs), steps saved against GDPO, held-out
    scores, and on math the energy of the length reward over that of correctness before and after the weights. Raise
    ValueError if nothing is in both.
    """
    published = _common(ours, published)
    metrics, at = SCORES[ours.experiment.task]
    rows = [row for other in published.settings for row in _crossings(ours, published, other)]
    scores, notes = _scores(ours, published, metrics, at)
    rows += [row for row in scores if row["method"] != BASE]
    ratios = published.rows[published.rows["metric"] == "energy_ratio"]
    energies = _energies(ours, published, ratios)
    kind, threshold = HEADLINE.get(ours.experiment.sparse_reward, (None, 0))
    crossed = [f"{MARK_METRIC[kind]}/{ours.experiment.sparse_reward}/{threshold:g}"] if kind else []
    sources = [*published.notes(crossed), *published.notes(list(metrics), [0, at])]
    sources += [f"Energy ratio: {'; '.join(dict.fromkeys(ratios['source']))}."] if energies else []
    return _table(ours, published, rows + energies, "Ours and published", notes, sources)


def build_scores(ours: View, published: PublishedView, options: ScoreTable) -> Table:
    """Return the held-out scores of both sources at one step, a row a (model, score, method), for our first setting."""
    published, at = _common(ours, published), options.step
    metrics = {metric: column.title for metric, column in options.metrics.items()}
    rows, notes = _scores(ours, published, metrics, at)
    return _table(ours, published, rows, options.title, notes, published.notes(list(metrics), [0, at]))


def _common(ours: View, published: PublishedView) -> PublishedView:
    """Return the published source with the common methods only, so that its notes mention no other."""
    methods = tuple(method for method in ours.methods if method in published.methods)
    experiment = published.experiment.model_copy(update={"methods": methods})
    return PublishedView(published.published, experiment, published.entries)


def _table(
    ours: View, published: PublishedView, rows: Sequence[Row], title: str, notes: Sequence[str], sources: Sequence[str]
) -> Table:
    """Return the table; `sources` are the notes on the published numbers. Raise ValueError without a row."""
    if not rows:
        raise missing_data(ours, f"quantity in common with the published numbers of {published.experiment.experiment}")
    shown = {row["Published model"] for row in rows}
    models = [model for model, *_ in published.settings if model in shown]
    columns = ["Quantity", *(["Published model"] if len(models) > 1 else []), "Method", *COLUMNS]
    mine, *others = (name_of(setting, ours.settings) for setting in ours.settings)
    about = f"Ours: {mine}" + (f" (not shown: {'; '.join(others)})" if others else "")
    about += f", preset {ours.source}. Published: {', '.join(models)}. Difference: ours minus published."
    notes = [about, SCALE_NOTE, *notes, *ours.notes(), *(f"Published: {note}" for note in dict.fromkeys(sources))]
    return Table(pd.DataFrame(rows), f"{title} ({ours.experiment.experiment})", notes, columns, numeric=COLUMNS)


def _row(ours: View, quantity: str, method: str, model: str, values: Sequence[Value], digits: int | None = None) -> Row:
    """Return a quantity of one method, ours and published; a share in percent if the quantity says so."""
    scale = 100 if quantity.endswith("(%)") else 1

    def shown(value: float) -> str:
        if digits is None or not math.isfinite(value):
            return number(scale * value)
        return number(round(scale * value, digits) + 0.0, digits)  # avoids a negative zero

    label = BASE_LABEL if method == BASE else ours.methods[method].label
    row: Row = {"Published model": model, "Quantity": quantity, "Method": label}
    for value, title, count in zip(values, ("Ours", "Published"), ("n", "n pub."), strict=True):
        row |= {title: value.text or shown(value.value), count: value.n}
        # A dash is an end left open by the budget; there is no interval if both are open.
        if not math.isnan(value.low) and (math.isfinite(value.low) or math.isfinite(value.high)):
            row[title] += f" [{shown(value.low)}, {shown(value.high)}]"
    difference = values[0].value - values[1].value
    row["Difference"] = ("+" if math.isfinite(difference) and difference > 0 else "") + shown(difference)
    row["method"] = method
    for name, value in zip(("ours", "published"), values, strict=True):
        row |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
    return row | {"difference": difference}


def _scores(ours: View, published: PublishedView, metrics: Mapping[str, str], at: int) -> tuple[list[Row], list[str]]:
    """Return the common scores, the base model's too, and a note on their steps; none if a source has no such step."""
    setting = ours.settings[0]
    try:
        steps_at(published, list(metrics), at)
        step = steps_at(ours, list(metrics), at).get(setting)
    except ValueError:
        step = None
    if step is None:
        return [], []
    rows = []
    for metric, name in metrics.items():
        for other in published.settings:
            for method in (BASE, *published.methods):
                steps = (0, 0) if method == BASE else (step, at)
                mine = ours.score(metric, method, setting, steps[0])
                theirs = published.score(metric, method, other, steps[1])
                if mine and theirs:
                    values = [Value(e.value, or_nan(e.low), or_nan(e.high), runs_behind([e])) for e in (mine, theirs)]
                    rows.append(_row(ours, f"{name} (%)", method, other.model, values, 1))
    return rows, [f"{', '.join(metrics.values())}: ours at step {step} of {ours.budget(setting)}, published at {at}."]


def _crossings(ours: View, published: PublishedView, other: Setting) -> list[Row]:
    """Return median steps to the headline threshold, and steps saved against the baseline."""
    reward = ours.experiment.sparse_reward
    if reward not in HEADLINE:
        return []
    kind, threshold = HEADLINE[reward]
    mine, theirs = (
        {method: times_of(view.marks(kind, reward, threshold, method, where), kind) for method in published.methods}
        for view, where in ((ours, ours.settings[0]), (published, other))
    )
    both = [method for method in published.methods if mine[method] and theirs[method]]
    key, sources = ("side_by_side", reward, f"{threshold:g}"), (("ours", mine), ("published", theirs))
    steps, saved = [], []
    for method in both:
        values = [_median(times[method], (*key, method, name)) for name, times in sources]
        steps.append(_row(ours, f"Steps to {reward} {threshold:g}", method, other.model, values))
        if method != BASELINE and BASELINE in both:
            values = [_saved(times[method], times[BASELINE], (*key, "saved", method, name)) for name, times in sources]
            saved.append(_row(ours, "Steps saved (%)", method, other.model, values, 1))
    return steps + saved


def _median(times: CrossingTimes, key: tuple[str, ...]) -> Value:
    """Return the median crossing with a percentile bootstrap over runs; an end beyond the budget is infinite."""
    middle, n = median_step(times), f"{times.reached}/{len(times.steps)}"
    text = "" if math.isfinite(middle) else median_text(times)
    if len(times.steps) == 1:
        return Value(middle, n=n, text=text)
    steps = np.where(times.crossed, times.steps, np.inf)
    draws = keyed_generator(*key).integers(len(steps), size=(RESAMPLES, len(steps)))
    drawn = np.sort(steps[draws], axis=1)
    medians = (drawn[:, (len(steps) - 1) // 2] + drawn[:, len(steps) // 2]) / 2
    ends = percentile_interval(medians)
    return Value(middle, ends.low, ends.high, n, text)


def _saved(times: CrossingTimes, baseline: CrossingTimes, key: tuple[str, ...]) -> Value:
    found = speed_up(times, baseline, key=key)
    text = "not estimable" if math.isnan(found.saved) else ""
    return Value(found.saved, *(found.saved_ends or (math.nan,) * 2), f"{found.runs}+{found.baseline_runs}", text)


def _energies(ours: View, published: PublishedView, ratios: pd.DataFrame) -> list[Row]:
    """Return the energy of the sparse reward over that of correctness at the end, before and after DARA's weights."""
    rows = []
    for other in published.settings:
        for method, column in ((BASELINE, "energy"), (ENERGY_BATCHES, "contributed")):
            series = ratios[(ratios["model"] == other.model) & (ratios["method"] == method)].sort_values("step")
            if series.empty or not {ENERGY_BATCHES, BASELINE} <= set(ours.methods):
                continue
            if mine := _last_ratios(ours, column):
                interval = t_interval(mine)
                ends = (interval.low, interval.high) if interval else (math.nan, math.nan)
                value = Value(float(np.mean(mine)), *ends, str(len(mine)))
                theirs = Value(float(series["value"].tail(ENERGY_STEPS).median()), n="1")
                rows.append(_row(ours, ENERGY, method, other.model, (value, theirs), 2))
    return rows


def _last_ratios(ours: View, column: str) -> list[float]:
    """Return, for each completed run of ENERGY_BATCHES, the median energy ratio over the last steps that have one."""
    frame = runs_view(ours).frames["energies"]
    ratios = []
    for run_id in completed_runs(ours, ours.settings[0], ENERGY_BATCHES)["run_id"]:
        mine = frame[frame["run_id"] == run_id]
        total = mine.assign(total=mine[f"{column}_pos"] + mine[f"{column}_neg"])
        wide = total.pivot(index="step", columns="reward", values="total").tail(ENERGY_STEPS)
        ratio = (wide[ours.experiment.sparse_reward] / wide["correctness"].where(wide["correctness"] > 0)).dropna()
        if len(ratio):
            ratios.append(float(ratio.median()))
    return ratios
