"""Table: the steps of stable crossings by threshold, methods x thresholds, for each model."""

from __future__ import annotations

import math

import pandas as pd

from dara.analysis.crossing import HOLD, WINDOW
from dara.analysis.names import BASELINE
from dara.analysis.speed_up import speed_up
from dara.analysis.survival import CrossingTimes, median_step, median_text, times_of
from dara.analysis.tables.at_step import setting_cells, setting_columns, title_of
from dara.analysis.tables.cells import MISSING, saved_text
from dara.analysis.tables.render import Table
from dara.analysis.view import Setting, View, missing_data, name_of


def build(view: View) -> Table:
    """One row a (setting, method), one column a threshold of the sparse reward: the step, or `median (k/n)` over runs.

    Raw columns, for each threshold t: stable_<t> (median; empty beyond the budget), stable_<t>_reached and _runs;
    saved, saved_low, saved_high: steps saved against GDPO at the highest threshold, as a share.

    Raises:
        ValueError: the experiment has no thresholds of its sparse reward, or the source no stable crossing at them.
    """
    reward = view.experiment.sparse_reward
    thresholds = view.experiment.thresholds.get(reward, ())
    times = {
        (setting, threshold, method): times_of(view.marks("stable", reward, threshold, method, setting), "stable")
        for setting in view.settings
        for threshold in thresholds
        for method in view.methods
    }
    several = any(found and len(found.steps) > 1 for found in times.values())
    shown = [s for s in view.settings if any(found for (setting, *_), found in times.items() if setting == s)]
    if not shown:
        raise missing_data(view, f"stable crossing of {reward} at {', '.join(f'{t:g}' for t in thresholds) or 'any'}")
    rows = []
    for setting in shown:
        for method in view.methods:
            cells = {threshold: times[setting, threshold, method] for threshold in thresholds}
            if any(cells.values()):
                baseline = times.get((setting, max(thresholds), BASELINE))
                rows.append(_row(view, setting, method, cells, baseline, several))
    headers = [_header(threshold) for threshold in thresholds]
    compared = ["Saved (%)"] if BASELINE in view.methods else []
    return Table(
        pd.DataFrame(rows),
        title_of(view, f"Stable crossings of the {reward} reward by threshold"),
        _notes(view, shown, several, [f"stable_crossing/{reward}/{threshold:g}" for threshold in thresholds]),
        [*setting_columns(view), "Method", *headers, *compared],
        numeric=("G", *headers, *compared),
    )


def _row(
    view: View,
    setting: Setting,
    method: str,
    cells: dict[float, CrossingTimes | None],
    baseline: CrossingTimes | None,
    several: bool,
) -> dict[str, object]:
    row: dict[str, object] = {**setting_cells(setting), "Method": view.method_label(method), "method": method}
    for threshold, times in cells.items():
        row[_header(threshold)] = _cell(times, several)
        middle = median_step(times) if times else math.nan
        row[f"stable_{threshold:g}"] = middle if math.isfinite(middle) else math.nan
        row[f"stable_{threshold:g}_reached"] = times.reached if times else 0
        row[f"stable_{threshold:g}_runs"] = len(times.steps) if times else 0
    top = max(cells)
    saved = None
    if method != BASELINE and cells[top] and baseline:
        place = (setting.model, str(setting.group_size))
        key = ("threshold_crossings", view.source, view.experiment.experiment, *place, f"{top:g}", method)
        saved = speed_up(cells[top], baseline, key=key)
    ends = saved.saved_interval if saved and saved.saved_interval else (math.nan, math.nan)
    row["Saved (%)"] = saved_text(saved)
    return row | {"saved": saved.saved if saved else math.nan, "saved_low": ends[0], "saved_high": ends[1]}


def _header(threshold: float) -> str:
    return f"{100 * threshold:g} %"


def _cell(times: CrossingTimes | None, several: bool) -> str:
    if times is None:
        return MISSING
    text = median_text(times)
    return f"{text} ({times.reached}/{len(times.steps)})" if several else text


def _notes(view: View, shown: list[Setting], several: bool, metrics: list[str]) -> list[str]:
    cells = (
        "Median step over runs, in which a run that did not get there counts as later than every crossing, and (k/n): "
        "k of n runs got there; `>60` is only known to be later than step 60."
        if several
        else "The step of one run."
    )
    notes = [
        f"Stable crossing: first step at which the mean of the last {WINDOW} steps is at least the threshold and stays "
        f"there for {HOLD} more steps. {cells}",
    ]
    if BASELINE in view.methods:
        label = view.methods[BASELINE].label
        interval = (
            "Interval: 95 % percentile bootstrap over runs, rough for few runs; a dash as an end: open."
            if several
            else "No interval: one run each."
        )
        notes.append(
            f"Saved: steps fewer than {label}'s (median), in percent of them, at the highest threshold; negative: more "
            f"steps. {interval}"
        )
    hidden = [name_of(setting, view.settings) for setting in view.settings if setting not in shown]
    if hidden:
        notes.append(f"Without stable crossings in this source: {'; '.join(hidden)}.")
    return [*notes, *view.notes(metrics)]
