"""Tables of crossings: the steps at which runs cross thresholds, by run, threshold or engine, and methods compared."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from dara.analysis.compare import compare_crossings, compared_pairs, energy_shares
from dara.analysis.crossing import (
    HOLD,
    CrossingEvent,
    CrossingTimes,
    Kind,
    first_crossing,
    median_step,
    median_text,
    speed_up,
    times_of,
)
from dara.analysis.intervals import Interval, median, wilson_interval
from dara.analysis.names import BASELINE, ENGINES
from dara.analysis.tables.render import MISSING, Table, number, saved_text, signed, with_interval
from dara.analysis.tables.rows import setting_cells, setting_columns, title_of
from dara.analysis.view import Setting, View, missing_data, name_of
from dara.analysis.view_published import MARK_METRIC
from dara.analysis.view_runs import RunsView

KINDS: tuple[Kind, ...] = ("first", "stable")
"""The kinds of crossings that a source may have; the last available one counts as reached."""

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
    places = [(*level, method, setting) for level in levels for setting in view.settings for method in view.methods]
    kinds = [kind for kind in KINDS if any(view.marks(kind, *place) for place in places)]
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
    notes = view.notes([f"{MARK_METRIC[kind]}/{reward}/{level:g}" for kind in kinds for reward, level in levels])
    title = f"Steps to cross a threshold of a training reward ({experiment.experiment})"
    return Table(frame, title, [RUNS_NOTE, *notes], display)


def _block(view: View, kinds: list[Kind], setting: Setting, reward: str, threshold: float) -> list[dict]:
    """Return the rows of all methods at one threshold; none if the source has no crossing at it."""
    cells = {}
    some = False
    for method in view.methods:
        marks = {kind: view.marks(kind, reward, threshold, method, setting) for kind in kinds}
        some = some or any(marks.values())
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
    return list(cells.values()) if some else []


def _head(view: View, reward: str, threshold: float, method: str) -> dict[str, object]:
    label = view.methods[method].label
    return {"Reward": reward, "Threshold": f"{threshold:g}", "Method": label, "method": method}


def curve_crossing(view: View, reward: str, threshold: float, method: str, setting: Setting) -> float:
    """Return the first step at which the median curve of a reward is at least the threshold; NaN without one."""
    curve = view.curve(f"reward/{reward}/mean", method, setting)["middle"].dropna()
    step = first_crossing(curve.to_numpy(dtype=float), threshold) if len(curve) else None
    return math.nan if step is None else float(curve.index[step - 1])


def _cells(marks: Mapping[Kind, list[CrossingEvent]], planned: Sequence[int | None]) -> dict[str, object]:
    """Return the cells of one method and RAW (NaN without a run), which is of the last kind."""
    decisive = list(marks.values())[-1]
    count = {status: sum(mark.status == status for mark in decisive) for status in ("reached", "pending")}
    raw = dict.fromkeys(RAW, math.nan) | count | {"planned": len(planned), "missing": len(planned) - len(decisive)}
    cells: dict[str, object] = {}
    for kind, of_kind in marks.items():
        steps = [math.inf if mark.step is None else mark.step for mark in of_kind]
        middle = median(steps) if steps and decisive else math.inf
        raw[f"median_{kind}"] = _finite(middle)
        left, texts = list(of_kind), []
        for seed in planned:
            mark = next((mark for mark in left if mark.seed == seed), None)
            if mark is None:
                texts.append("?")  # a missing run
            else:
                left.remove(mark)
                texts.append(f"({mark.pending_step})" if mark.status == "pending" else number(mark.step))
        cells[f"{kind.capitalize()} crossing"] = " ".join(texts) or "missing"
        cells[f"Median {kind}"] = number(raw[f"median_{kind}"])
        if decisive and middle == math.inf:
            watched = max(mark.budget for mark in decisive) - (HOLD if kind == "stable" else 0)
            cells[f"Median {kind}"] = f">{max(watched, 0):g}"
    cells["Reached (%)"] = "missing"
    if decisive:
        share, cells["Reached (%)"] = _reached(count["reached"], len(decisive))
        raw |= {"share": count["reached"] / len(decisive), "share_low": share.low, "share_high": share.high}
    return cells | raw


def _reached(count: int, runs: int) -> tuple[Interval, str]:
    """Return the interval of the share of runs that crossed, and `2/3 [21, 94]`."""
    share = wilson_interval(count, runs)
    return share, f"{count}/{runs} [{100 * share.low:.0f}, {100 * share.high:.0f}]"


# Thresholds


def build_thresholds(view: View) -> Table:
    """Return one row a (setting, method), one column a threshold of the sparse reward: the step, or `median (k/n)`.

    Raw columns, for each threshold t: stable_<t> (median; empty beyond the budget), stable_<t>_reached and _runs;
    saved, saved_low, saved_high: steps saved against GDPO at the highest threshold, as a share. Raise ValueError if the
    experiment has no thresholds of its sparse reward, or the source no stable crossing at them.
    """
    reward = view.experiment.sparse_reward
    thresholds = view.experiment.thresholds.get(reward, ())
    times: dict[tuple[Setting, str], dict[float, CrossingTimes]] = {}
    for setting in view.settings:
        for method in view.methods:
            of_method = {t: times_of(view.marks("stable", reward, t, method, setting), "stable") for t in thresholds}
            if any(of_method.values()):
                times[setting, method] = of_method
    if not times:
        raise missing_data(view, f"stable crossing of {reward} at {', '.join(f'{t:g}' for t in thresholds) or 'any'}")
    several = any(found and len(found.steps) > 1 for of_method in times.values() for found in of_method.values())
    rows = [
        _threshold_row(view, setting, method, cells, times.get((setting, BASELINE), {}), several)
        for (setting, method), cells in times.items()
    ]
    columns = [f"{100 * threshold:g} %" for threshold in thresholds] + ["Saved (%)"] * (BASELINE in view.methods)
    shown = {setting for setting, _ in times}
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
    cells: Mapping[float, CrossingTimes | None],
    baseline: Mapping[float, CrossingTimes | None],
    several: bool,
) -> dict[str, object]:
    row: dict[str, object] = {**setting_cells(setting), "Method": view.method_label(method), "method": method}
    for threshold, times in cells.items():
        name, title = f"stable_{threshold:g}", f"{100 * threshold:g} %"
        row |= {title: MISSING, name: math.nan, f"{name}_reached": 0, f"{name}_runs": 0}
        if times:
            row[title] = median_text(times) + (f" ({times.reached}/{len(times.steps)})" if several else "")
            row[name] = _finite(median_step(times))
            row |= {f"{name}_reached": times.reached, f"{name}_runs": len(times.steps)}
    top, saved = max(cells), None
    if method != BASELINE and cells[top] and baseline.get(top):
        place = (setting.model, str(setting.group_size))
        key = ("threshold_crossings", view.source, view.experiment.experiment, *place, f"{top:g}", method)
        saved = speed_up(cells[top], baseline[top], key=key)
    low, high = (saved and saved.saved_interval) or (math.nan, math.nan)
    row["Saved (%)"] = saved_text(saved)
    return row | {"saved": saved.saved if saved else math.nan, "saved_low": low, "saved_high": high}


def _finite(step: float) -> float:
    return step if math.isfinite(step) else math.nan


# Engines


def build_engines(view: View) -> Table:
    """Return one row a (setting, reward, threshold, method): of each engine the stable crossings and their median.

    Raw columns: `median_<engine>`, `reached_<engine>`, `planned_<engine>`, and `difference` of the medians, the second
    engine's minus the first's. Raise ValueError for a source without runs of two engines.
    """
    engines: dict[str, RunsView] = {}
    if isinstance(view, RunsView):
        runs = view.selection.planned
        for engine in (engine for engine in ENGINES if engine in set(runs["engine"])):
            frames = ChainMap({"runs": runs[runs["engine"] == engine]}, view.frames)
            engines[engine] = RunsView(frames, view.experiment, view.entries, view.source)
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


def _engine_row(engines: dict[str, RunsView], place: Setting, reward: str, threshold: float, method: str) -> dict:
    """Return the runs of every engine at one model and group size."""
    row: dict[str, object] = _head(next(iter(engines.values())), reward, threshold, method)
    for engine, own in engines.items():
        setting = place._replace(engine=engine)
        marks = {"stable": own.marks("stable", reward, threshold, method, setting)}
        cells, title = _cells(marks, own.planned(method, setting)), ENGINES[engine]
        row |= {f"{title}: crossing": cells["Stable crossing"], f"{title}: median": cells["Median stable"]}
        row |= {f"reached_{engine}": cells["reached"], f"planned_{engine}": cells["planned"]}
        row |= {f"median_{engine}": cells["median_stable"]}
    first, second = list(engines)[:2]
    row["difference"] = row[f"median_{second}"] - row[f"median_{first}"]
    return row | {"Difference": signed(row["difference"])}


# Comparisons

OWN = ["Reached (%)", "Median", "Energy share (%)"]
COMPARED = ["Pairs", "First: difference", "Stable: difference", "Speed-up (%)"]
RAW_OWN = ["runs", "reached", "median", "energy_share"]
RAW_COMPARED = [
    "pairs",
    *(f"{kind}_{part}" for kind in KINDS for part in ("difference", "low", "high", "tau", "late")),
    *("saved", "saved_low", "saved_high", "not_estimable"),
]


def build_comparisons(view: View) -> Table:
    """Return one row a (setting, threshold of the sparse reward, method, method that it is compared with).

    Raw columns: RAW_OWN and RAW_COMPARED, of stable crossings unless named first_; steps as steps, shares as fractions,
    empty where a number is not estimable. A method that is compared with none has one row, with its own numbers. Raise
    ValueError if the view is not of our runs, or the experiment has no pair of methods to compare, no thresholds of its
    sparse reward, or no crossing at them.
    """
    name = view.experiment.experiment
    if not isinstance(view, RunsView):
        raise ValueError(
            f"{view.source}: experiment {name}: comparisons needs first and stable crossings of single runs; the table "
            "threshold_crossings shows what was published"
        )
    reward, pairs = view.experiment.sparse_reward, compared_pairs(view.methods)
    if not pairs:
        raise ValueError(
            f"experiment {name}: the table comparisons has nothing to compare among its methods "
            f"({', '.join(view.methods)}); add gdpo, or leave the table out"
        )
    if reward not in view.experiment.thresholds:
        raise ValueError(f"experiment {name}: no thresholds of its sparse reward {reward!r}")
    nothing = dict.fromkeys(["Against", *COMPARED], MISSING) | dict.fromkeys(["baseline", *RAW_COMPARED], math.nan)
    rows = []
    for setting in view.settings:
        for level in ((reward, threshold) for threshold in view.experiment.thresholds[reward]):
            for method in view.methods:
                own = _own(view, setting, level, method)
                compared = [_compared(view, setting, level, pair) for pair in pairs if pair[0] == method]
                rows += [own | against for against in compared or [nothing]]
    if not any(row["runs"] for row in rows):
        raise missing_data(view, f"crossing of {reward}")
    display = [*(["Setting"] if len(view.settings) > 1 else []), "Threshold", "Method", *OWN, "Against", *COMPARED]
    notes = [
        "Of stable crossings, except First; differences are paired, Method minus Against, in steps. docs/statistics.md "
        "explains it under Comparing two methods.",
        *view.notes(),
    ]
    return Table(pd.DataFrame(rows), f"Crossings of {reward}, compared ({name})", notes, display)


def _own(view: RunsView, setting: Setting, level: tuple[str, float], method: str) -> dict[str, object]:
    """Return the cells and raw columns of one method, all of stable crossings."""
    row = {"Setting": view.setting_label(setting), "Threshold": f"{level[1]:g}", "Method": view.methods[method].label}
    row |= {"method": method, "Reached (%)": "missing", "Median": MISSING, "Energy share (%)": MISSING}
    row |= {"runs": 0, "reached": 0, "median": math.nan, "energy_share": math.nan}
    times = times_of(view.marks("stable", *level, method, setting), "stable")
    if times is None:
        return row
    shares = list(energy_shares(view, level[0], method, setting).values())
    share = float(np.mean(shares)) if shares else math.nan
    row |= {"Reached (%)": _reached(times.reached, len(times.steps))[1], "Energy share (%)": number(100 * share, 1)}
    row |= {"Median": median_text(times)} if times.horizon > 0 else {}
    raw = {"runs": len(times.steps), "reached": times.reached, "median": _finite(median_step(times))}
    return row | raw | {"energy_share": share}


def _compared(view: RunsView, setting: Setting, level: tuple[str, float], pair: tuple[str, str]) -> dict[str, object]:
    """Return the cells and raw columns of a pair of methods; dashes if one of them has no run."""
    row: dict[str, object] = {"Against": view.methods[pair[1]].label, "baseline": pair[1]}
    found = {kind: compare_crossings(view, kind, level, pair, setting) for kind in KINDS}
    stable = found["stable"]
    if stable is None:
        return row | dict.fromkeys(COMPARED, MISSING) | dict.fromkeys(RAW_COMPARED, math.nan)
    row |= {"Pairs": str(stable.difference.pairs), "pairs": stable.difference.pairs}
    for kind, made in found.items():
        value, low, high = made.difference.value, made.difference.low, made.difference.high
        late = f", {made.late} late" if made.late else ""  # runs that had not crossed by tau
        known = made.difference.pairs and made.tau > 0
        row[f"{kind.capitalize()}: difference"] = with_interval(value, low, high, 1) + late if known else MISSING
        row |= {f"{kind}_difference": value, f"{kind}_low": low, f"{kind}_high": high}
        row |= {f"{kind}_tau": made.tau, f"{kind}_late": made.late}
    saved = stable.speed_up
    low, high = saved.saved_interval or (math.nan, math.nan)
    row["Speed-up (%)"] = saved_text(saved, "not estimable")
    return row | {"saved": saved.saved, "saved_low": low, "saved_high": high, "not_estimable": saved.reason}
