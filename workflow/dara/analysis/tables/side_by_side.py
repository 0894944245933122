"""Tables of the quantities that both our runs and the authors' published numbers have, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dara.analysis.crossing import CrossingTimes, median_step, median_text, speed_up, times_of
from dara.analysis.intervals import RESAMPLES, keyed_generator, percentile_interval, t_interval
from dara.analysis.names import BASE, BASELINE, HEADLINE
from dara.analysis.tables.crossings import METRICS
from dara.analysis.tables.render import MISSING, Table, number
from dara.analysis.tables.rows import (
    BASE_LABEL,
    completed_runs,
    or_nan,
    published_rows,
    runs_behind,
    runs_view,
    steps_at,
)
from dara.analysis.view import Setting, View, missing_data, name_of
from dara.analysis.view_published import PublishedView
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


@dataclass(frozen=True)
class Value:
    """One source's number: `text` if it is not a plain one (`>60`); low and high are NaN without an interval."""

    value: float
    low: float = math.nan
    high: float = math.nan
    n: str = MISSING
    text: str = ""


@dataclass(frozen=True)
class Pair:
    """A quantity of one method in both sources; `scale` 100 prints a share in percent."""

    quantity: str
    method: str
    label: str
    setting: Setting
    ours: Value
    published: Value
    scale: float = 1.0
    digits: int | None = None


def build(ours: View, published: View) -> Table:
    """Return one row a (published model, quantity, method) that both sources have, for the first setting of ours.

    Quantities: steps to the threshold of the paper's claim (median over runs), steps saved against GDPO, held-out
    scores, and on math the energy of the length reward over that of correctness before and after the weights.

    Raises:
        ValueError: nothing is in both.
    """
    setting, published = ours.settings[0], _common(ours, published)
    metrics, at = SCORES[ours.experiment.task]
    pairs = [pair for other in published.settings for pair in _crossings(ours, setting, published, other)]
    pairs += [pair for pair in _scores(ours, published, metrics, at) if pair.method != BASE]
    pairs += _energies(ours, setting, published)
    kind, threshold = HEADLINE.get(ours.experiment.sparse_reward, (None, 0))
    crossed = [f"{METRICS[kind]}/{ours.experiment.sparse_reward}/{threshold:g}"] if kind else []
    sources = [*published.notes(crossed), *published.notes(list(metrics), [0, at])]
    if any(pair.quantity == ENERGY for pair in pairs):
        sources.append(f"Energy ratio: {'; '.join(dict.fromkeys(_energy_rows(published)['source']))}.")
    return _table(ours, published, pairs, "Ours and published", _score_notes(ours, published, metrics, at), sources)


def build_scores(ours: View, published: View, options: ScoreTable) -> Table:
    """Return the held-out scores of both sources at one step, a row a (model, score, method), for our first setting."""
    published, at = _common(ours, published), options.step
    metrics = {metric: column.title for metric, column in options.metrics.items()}
    pairs, notes = _scores(ours, published, metrics, at), _score_notes(ours, published, metrics, at)
    return _table(ours, published, pairs, options.title, notes, published.notes(list(metrics), [0, at]))


def _common(ours: View, published: View) -> View:
    """Return the published source with the common methods only, so that its notes mention no other."""
    methods = tuple(method for method in ours.methods if method in published.methods)
    experiment = published.experiment.model_copy(update={"methods": methods})
    return PublishedView(published_rows(published), experiment, published.entries)


def _table(
    ours: View, published: View, pairs: Sequence[Pair], title: str, notes: Sequence[str], sources: Sequence[str]
) -> Table:
    """Return one row a pair; `sources` are the notes on the published numbers. Raise ValueError without a pair."""
    if not pairs:
        raise missing_data(ours, f"quantity in common with the published numbers of {published.experiment.experiment}")
    models = [model for model, *_ in published.settings if any(pair.setting.model == model for pair in pairs)]
    columns = ["Quantity", *(["Published model"] if len(models) > 1 else []), "Method", *COLUMNS]
    mine, *others = (name_of(setting, ours.settings) for setting in ours.settings)
    about = f"Ours: {mine}" + (f" (not shown: {'; '.join(others)})" if others else "")
    about += f", preset {ours.source}. Published: {', '.join(models)}. Difference: ours minus published."
    return Table(
        pd.DataFrame([_row(pair) for pair in pairs]),
        f"{title} ({ours.experiment.experiment})",
        [about, SCALE_NOTE, *notes, *ours.notes(), *(f"Published: {note}" for note in dict.fromkeys(sources))],
        columns,
        numeric=COLUMNS,
    )


def _row(pair: Pair) -> dict[str, object]:
    difference = pair.ours.value - pair.published.value
    shown = _number(difference, pair)
    row: dict[str, object] = {"Published model": pair.setting.model, "Quantity": pair.quantity, "Method": pair.label}
    row |= {"Ours": _text(pair.ours, pair), "n": pair.ours.n}
    row |= {"Published": _text(pair.published, pair), "n pub.": pair.published.n}
    row["Difference"] = f"+{shown}" if math.isfinite(difference) and difference > 0 else shown
    row["method"] = pair.method
    for name, value in (("ours", pair.ours), ("published", pair.published)):
        row |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
    return row | {"difference": difference}


def _number(value: float, pair: Pair) -> str:
    if pair.digits is not None and math.isfinite(value):
        value = round(pair.scale * value, pair.digits) + 0.0  # avoids a negative zero
        return number(value, pair.digits)
    return number(pair.scale * value)


def _text(value: Value, pair: Pair) -> str:
    """Return the number with its interval; a dash for an end left open by the budget, no interval if both are open."""
    shown = value.text or _number(value.value, pair)
    if math.isnan(value.low) or not (math.isfinite(value.low) or math.isfinite(value.high)):
        return shown
    return f"{shown} [{_number(value.low, pair)}, {_number(value.high, pair)}]"


# Scores


def _scores(ours: View, published: View, metrics: Mapping[str, str], at: int) -> list[Pair]:
    """Return the common scores of both sources, the base model's too; none if a source has no such step."""
    found = _score_step(ours, published, metrics, at)
    pairs = []
    for metric, name in metrics.items() if found else ():
        for other in published.settings:
            for method in (BASE, *published.methods):
                mine = ours.score(metric, method, ours.settings[0], 0 if method == BASE else found)
                theirs = published.score(metric, method, other, 0 if method == BASE else at)
                if mine and theirs:
                    label = BASE_LABEL if method == BASE else ours.methods[method].label
                    values = [Value(e.value, or_nan(e.low), or_nan(e.high), runs_behind([e])) for e in (mine, theirs)]
                    pairs.append(Pair(f"{name} (%)", method, label, other, *values, 100, 1))
    return pairs


def _score_step(ours: View, published: View, metrics: Mapping[str, str], at: int) -> int | None:
    """Return the step of our runs to compare at; None if one of the sources has no such score."""
    try:
        steps_at(published, list(metrics), at)
        return steps_at(ours, list(metrics), at).get(ours.settings[0])
    except ValueError:
        return None


def _score_notes(ours: View, published: View, metrics: Mapping[str, str], at: int) -> list[str]:
    step = _score_step(ours, published, metrics, at)
    if step is None:
        return []
    return [
        f"{', '.join(metrics.values())}: ours at step {step} of {ours.budget(ours.settings[0])}, published at {at}."
    ]


# Crossings


def _crossings(ours: View, setting: Setting, published: View, other: Setting) -> list[Pair]:
    """Return median steps to the headline threshold, and steps saved against the baseline."""
    reward = ours.experiment.sparse_reward
    if reward not in HEADLINE:
        return []
    kind, threshold = HEADLINE[reward]
    mine, theirs = (
        {method: times_of(view.marks(kind, reward, threshold, method, where), kind) for method in published.methods}
        for view, where in ((ours, setting), (published, other))
    )
    both = [method for method in published.methods if mine[method] and theirs[method]]
    key, sources = ("side_by_side", reward, f"{threshold:g}"), (("ours", mine), ("published", theirs))
    steps, saved = [], []
    for method in both:
        label = ours.methods[method].label
        values = [_median(times[method], (*key, method, name)) for name, times in sources]
        steps.append(Pair(f"Steps to {reward} {threshold:g}", method, label, other, *values))
        if method != BASELINE and BASELINE in both:
            values = [_saved(times[method], times[BASELINE], (*key, "saved", method, name)) for name, times in sources]
            saved.append(Pair("Steps saved (%)", method, label, other, *values, 100, 1))
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
    return Value(middle, *percentile_interval(medians), n, text)


def _saved(times: CrossingTimes, baseline: CrossingTimes, key: tuple[str, ...]) -> Value:
    found = speed_up(times, baseline, key=key)
    ends = found.saved_ends or (math.nan, math.nan)
    text = "not estimable" if math.isnan(found.saved) else ""
    return Value(found.saved, *ends, f"{found.runs}+{found.baseline_runs}", text)


# Energies


def _energies(ours: View, setting: Setting, published: View) -> list[Pair]:
    """Return the energy of the sparse reward over that of correctness at the end, before and after DARA's weights."""
    rows = _energy_rows(published)
    if rows.empty or not {ENERGY_BATCHES, BASELINE} <= set(ours.methods):
        return []
    pairs = []
    for other in published.settings:
        for method, column in ((BASELINE, "energy"), (ENERGY_BATCHES, "contributed")):
            series = rows[(rows["model"] == other.model) & (rows["method"] == method)].sort_values("step")
            mine = _last_ratios(ours, setting, column)
            if len(series) and len(mine):
                interval = t_interval(mine)
                ends = (interval.low, interval.high) if interval else (math.nan, math.nan)
                value = Value(float(np.mean(mine)), *ends, str(len(mine)))
                theirs = Value(float(series["value"].tail(ENERGY_STEPS).median()), n="1")
                pairs.append(Pair(ENERGY, method, ours.methods[method].label, other, value, theirs, digits=2))
    return pairs


def _energy_rows(published: View) -> pd.DataFrame:
    rows = published_rows(published)
    return rows[(rows["experiment"] == published.experiment.experiment) & (rows["metric"] == "energy_ratio")]


def _last_ratios(ours: View, setting: Setting, column: str) -> list[float]:
    """Return, for each completed run of ENERGY_BATCHES, the median energy ratio over the last steps that have one."""
    frame = runs_view(ours).frames["energies"]
    sparse = ours.experiment.sparse_reward
    ratios = []
    for run_id in completed_runs(ours, setting, ENERGY_BATCHES)["run_id"]:
        mine = frame[frame["run_id"] == run_id]
        total = mine.assign(total=mine[f"{column}_pos"] + mine[f"{column}_neg"])
        wide = total.pivot(index="step", columns="reward", values="total").tail(ENERGY_STEPS)
        ratio = (wide[sparse] / wide["correctness"].where(wide["correctness"] > 0)).dropna()
        if len(ratio):
            ratios.append(float(ratio.median()))
    return ratios
