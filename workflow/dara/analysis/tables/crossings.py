"""Tables of crossings: the steps at which the runs of each method cross each threshold, by run, threshold or engine."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Sequence

import pandas as pd

from dara.analysis.crossing import (
    HOLD,
    CrossingEvent,
    CrossingTimes,
    first_crossing,
    median_step,
    median_text,
    speed_up,
    times_of,
)
from dara.analysis.intervals import median, wilson_interval
from dara.analysis.names import BASELINE, ENGINES
from dara.analysis.tables.render import MISSING, Table, number, saved_text, signed
from dara.analysis.tables.rows import setting_cells, setting_columns, title_of
from dara.analysis.view import Setting, View, missing_data, name_of
from dara.analysis.view_runs import RunsView

KINDS = ("first", "stable")
"""The kinds of crossings that a source may have; the last available one counts as reached."""

METRICS = {"first": "first_step", "stable": "stable_crossing"}
"""Kind -> metric of the published rows."""

RAW = ["median_first", "median_stable", "reached", "pending", "planned", "missing", "share", "share_low", "share_high"]
RUNS_NOTE = (
    "One value a run, in the order of the seeds: – not reached, (n) pending since step n, ? no such run. In a median, "
    "a run that did not cross is later than every crossing. docs/statistics.md explains it under Crossings."
)


def build(view: View) -> Table:
    """Return one row a (setting, reward, threshold, method): crossings of each run, their medians, how many crossed.

    If a source has first crossings only, or stable ones only, the columns of the others are left out. A run that did
    not cross counts as later than every crossing in a median. Raw columns: RAW (a median beyond the budget is empty),
    and `difference`, of the median crossing to GDPO's (stable if there are such). Raise ValueError without any
    crossing.
    """
    experiment = view.experiment
    levels = [(reward, threshold) for reward, found in experiment.thresholds.items() for threshold in found]
    kinds = [
        kind
        for kind in KINDS
        if any(
            view.marks(kind, *level, method, s) for level in levels for s in view.settings for method in view.methods
        )
    ]
    if not kinds:
        named = (f"{reward} {', '.join(map(str, found))}" for reward, found in experiment.thresholds.items())
        raise missing_data(view, f"crossing of its thresholds ({'; '.join(named)})")
    rows = [row for setting in view.settings for level in levels for row in _block(view, kinds, setting, *level)]
    reference = view.methods.get(BASELINE)
    display = [*(["Setting"] if len(view.settings) > 1 else []), "Reward", "Threshold", "Method"]
    display += [column for kind in kinds for column in (f"{kind.capitalize()} crossing", f"Median {kind}")]
    display += ["Median curve"] if any(row["median_curve"] > 0 for row in rows) else []
    display += ["Reached (%)", *([f"Difference to {reference.label}"] if reference else [])]
    frame = pd.DataFrame(rows).rename(columns={"Difference": display[-1]} if reference else {})
    metrics = [f"{METRICS[kind]}/{reward}/{threshold:g}" for kind in kinds for reward, threshold in levels]
    title = f"Steps to cross a threshold of a training reward ({experiment.experiment})"
    return Table(frame, title, [RUNS_NOTE, *view.notes(metrics)], display)


def _block(view: View, kinds: list[str], setting: Setting, reward: str, threshold: float) -> list[dict]:
    """Return the rows of all methods at one threshold; none if the source has no crossing at it."""
    found = {
        method: {kind: view.marks(kind, reward, threshold, method, setting) for kind in kinds}
        for method in view.methods
    }
    if not any(marks for of_method in found.values() for marks in of_method.values()):
        return []
    cells = {}
    for method, marks in found.items():
        if not isinstance(view, RunsView) and not any(marks.values()):
            continue  # not a planned method
        head = {"Setting": view.setting_label(setting), **_head(view, reward, threshold, method)}
        # If the seeds of the planned runs are unknown, use the published ones.
        every = view.planned(method, setting) or [mark.seed for mark in marks[kinds[-1]]]
        curve = curve_crossing(view, reward, threshold, method, setting)
        cells[method] = head | _cells(marks, every) | {"median_curve": curve, "Median curve": number(curve)}
    middle = cells[BASELINE][f"median_{kinds[-1]}"] if BASELINE in cells else math.nan
    for method, row in cells.items():
        row["difference"] = math.nan if method == BASELINE else row[f"median_{kinds[-1]}"] - middle
        row["Difference"] = signed(row["difference"])
    return list(cells.values())


def _head(view: View, reward: str, threshold: float, method: str) -> dict[str, object]:
    label = view.methods[method].label
    return {"Reward": reward, "Threshold": f"{threshold:g}", "Method": label, "method": method}


def curve_crossing(view: View, reward: str, threshold: float, method: str, setting: Setting) -> float:
    """Return the first step at which the median curve of a reward is at least the threshold; NaN without one."""
    curve = view.curve(f"reward/{reward}/mean", method, setting)["middle"].dropna()
    step = first_crossing(curve.to_numpy(dtype=float), threshold) if len(curve) else None
    return math.nan if step is None else float(curve.index[step - 1])


def _cells(marks: dict[str, list[CrossingEvent]], planned: Sequence[int | None]) -> dict[str, object]:
    """Return the cells of one method and RAW (NaN without a run), which is of the last kind."""
    decisive = list(marks.values())[-1]
    raw = dict.fromkeys(RAW, math.nan)
    raw |= {status: sum(mark.status == status for mark in decisive) for status in ("reached", "pending")}
    raw |= {"planned": len(planned), "missing": len(planned) - len(decisive)}
    budget, reached = math.nan, "missing"
    if decisive:
        budget, share = max(mark.budget for mark in decisive), wilson_interval(raw["reached"], len(decisive))
        raw |= {f"median_{kind}": _median(marks.get(kind, [])) for kind in KINDS}
        raw |= {"share": raw["reached"] / len(decisive), "share_low": share.low, "share_high": share.high}
        reached = f"{raw['reached']}/{len(decisive)} [{100 * share.low:.0f}, {100 * share.high:.0f}]"
    cells: dict[str, object] = {}
    for kind, of_kind in marks.items():
        cells[f"{kind.capitalize()} crossing"] = " ".join(_texts(of_kind, planned)) or "missing"
        watched, middle = max(budget - (HOLD if kind == "stable" else 0), 0.0), raw[f"median_{kind}"]
        beyond = math.isnan(middle) and not math.isnan(budget)
        cells[f"Median {kind}"] = f">{watched:g}" if beyond else number(middle)
    return cells | {"Reached (%)": reached} | raw


def _median(marks: Sequence[CrossingEvent]) -> float:
    """Return the median crossing; NaN if the middle run did not cross, or there is no run."""
    found = median([math.inf if mark.step is None else mark.step for mark in marks]) if marks else math.nan
    return found if math.isfinite(found) else math.nan


def _texts(marks: Sequence[CrossingEvent], planned: Sequence[int | None]) -> list[str]:
    """Return one text for each planned run, `?` for a missing one."""
    left = list(marks)
    texts = []
    for seed in planned:
        mark = next((mark for mark in left if mark.seed == seed), None)
        if mark is None:
            texts.append("?")
            continue
        left.remove(mark)
        pending = mark.status == "pending"
        texts.append(f"({mark.pending_step})" if pending else MISSING if mark.step is None else str(mark.step))
    return texts


# Thresholds


def build_thresholds(view: View) -> Table:
    """Return one row a (setting, method), one column a threshold of the sparse reward: the step, or `median (k/n)`.

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
                rows.append(_threshold_row(view, setting, method, cells, baseline, several))
    columns = [f"{100 * threshold:g} %" for threshold in thresholds] + ["Saved (%)"] * (BASELINE in view.methods)
    hidden = [name_of(setting, view.settings) for setting in view.settings if setting not in shown]
    notes = [
        f"Step of the stable crossing{', median over runs (k of n crossed)' if several else ''}; saved: steps fewer "
        "than GDPO's at the highest threshold. docs/statistics.md explains it under Comparing two methods.",
        *([f"Without stable crossings in this source: {'; '.join(hidden)}."] if hidden else []),
        *view.notes([f"stable_crossing/{reward}/{threshold:g}" for threshold in thresholds]),
    ]
    title = title_of(view, f"Stable crossings of the {reward} reward by threshold")
    display = [*setting_columns(view), "Method", *columns]
    return Table(pd.DataFrame(rows), title, notes, display, numeric=("G", *columns))


def _threshold_row(
    view: View,
    setting: Setting,
    method: str,
    cells: dict[float, CrossingTimes | None],
    baseline: CrossingTimes | None,
    several: bool,
) -> dict[str, object]:
    row: dict[str, object] = {**setting_cells(setting), "Method": view.method_label(method), "method": method}
    for threshold, times in cells.items():
        text = median_text(times) if times else MISSING
        count = f" ({times.reached}/{len(times.steps)})" if times and several else ""
        middle = median_step(times) if times else math.nan
        row[f"{100 * threshold:g} %"] = text + count
        row[f"stable_{threshold:g}"] = middle if math.isfinite(middle) else math.nan
        row[f"stable_{threshold:g}_reached"] = times.reached if times else 0
        row[f"stable_{threshold:g}_runs"] = len(times.steps) if times else 0
    top, saved = max(cells), None
    if method != BASELINE and cells[top] and baseline:
        place = (setting.model, str(setting.group_size))
        key = ("threshold_crossings", view.source, view.experiment.experiment, *place, f"{top:g}", method)
        saved = speed_up(cells[top], baseline, key=key)
    low, high = saved.saved_interval if saved and saved.saved_interval else (math.nan, math.nan)
    row["Saved (%)"] = saved_text(saved)
    return row | {"saved": saved.saved if saved else math.nan, "saved_low": low, "saved_high": high}


# Engines


def build_engines(view: View) -> Table:
    """Return one row a (setting, reward, threshold, method): of each engine the stable crossings and their median.

    Raw columns: `median_<engine>`, `reached_<engine>`, `planned_<engine>`, and `difference` of the medians, the second
    engine's minus the first's. Raise ValueError for a source without runs of two engines.
    """
    engines = _by_engine(view)
    if len(engines) < 2:
        raise missing_data(view, f"runs of two engines (there are runs of {', '.join(engines) or 'none'})")
    places = list(dict.fromkeys(setting._replace(engine=None) for setting in view.settings))
    rows = [
        {"Setting": name_of(place, places)} | _engine_row(engines, place, reward, threshold, method)
        for place in places
        for reward, thresholds in view.experiment.thresholds.items()
        for threshold in thresholds
        for method in view.methods
    ]
    first, second = (ENGINES[engine] for engine in list(engines)[:2])
    display = [*(["Setting"] if len(places) > 1 else []), "Reward", "Threshold", "Method"]
    display += [f"{ENGINES[engine]}: {column}" for engine in engines for column in ("crossing", "median")]
    display.append(f"Difference {second} - {first}")
    frame = pd.DataFrame(rows).rename(columns={"Difference": display[-1]})
    notes = [RUNS_NOTE, *(f"{ENGINES[engine]}: {' '.join(own.notes())}" for engine, own in engines.items())]
    return Table(frame, f"Two training stacks ({view.experiment.experiment})", notes, display)


def _by_engine(view: View) -> dict[str, RunsView]:
    """Return a view of each engine's runs; empty for published numbers, which have one engine."""
    if not isinstance(view, RunsView):
        return {}
    runs = view.frames["runs"]
    mine = runs[runs["experiment"] == view.experiment.experiment]
    frames = {engine: ChainMap({"runs": mine[mine["engine"] == engine]}, view.frames) for engine in ENGINES}
    return {
        engine: RunsView(own, view.experiment, view.entries, view.source)
        for engine, own in frames.items()
        if len(own["runs"])
    }


def _engine_row(engines: dict[str, RunsView], place: Setting, reward: str, threshold: float, method: str) -> dict:
    """Return the runs of every engine at one model and group size."""
    row: dict[str, object] = _head(next(iter(engines.values())), reward, threshold, method)
    for engine, own in engines.items():
        setting = place._replace(engine=engine)
        marks = {"stable": own.marks("stable", reward, threshold, method, setting)}
        cells = _cells(marks, own.planned(method, setting))
        row |= {f"{ENGINES[engine]}: crossing": cells["Stable crossing"]}
        row |= {f"{ENGINES[engine]}: median": cells["Median stable"]}
        row |= {f"{column}_{engine}": cells[column] for column in ("reached", "planned")}
        row |= {f"median_{engine}": cells["median_stable"]}
    first, second = list(engines)[:2]
    row["difference"] = row[f"median_{second}"] - row[f"median_{first}"]
    return row | {"Difference": signed(row["difference"])}
