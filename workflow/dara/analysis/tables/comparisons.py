"""Table: the crossings of the sparse reward, each method against those that it is compared with."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from dara.analysis.compare import Crossings, compare_crossings, compared_pairs, energy_shares
from dara.analysis.crossing import CrossingTimes, Kind, median_step, median_text, times_of
from dara.analysis.intervals import wilson_interval
from dara.analysis.tables.render import MISSING, Table, number, saved_text, with_interval
from dara.analysis.view import Setting, View, missing_data
from dara.analysis.view_runs import RunsView

KINDS: tuple[Kind, ...] = ("first", "stable")
OWN = ["Reached (%)", "Median", "Energy share (%)"]
COMPARED = ["Pairs", "First: difference", "Stable: difference", "Speed-up (%)"]
DISPLAY = ["Threshold", "Method", *OWN, "Against", *COMPARED]
RAW_OWN = ["runs", "reached", "median", "energy_share"]
RAW_COMPARED = [
    "pairs",
    *(f"{kind}_{part}" for kind in KINDS for part in ("difference", "low", "high", "tau", "late")),
    *("saved", "saved_low", "saved_high", "not_estimable"),
]


def build(view: View) -> Table:
    """Return one row a (setting, threshold of the sparse reward, method, method that it is compared with).

    Raw columns: RAW_OWN and RAW_COMPARED, of stable crossings unless named first_; steps as steps, shares as fractions,
    empty where a number is not estimable. A method that is compared with none has one row, with its own numbers.

    Raises:
        ValueError: the view is not of our runs, or the experiment has no pair of methods to compare, no thresholds of
            its sparse reward, or no crossing at them.
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
    rows = [
        row
        for setting in view.settings
        for threshold in view.experiment.thresholds[reward]
        for method in view.methods
        for row in _rows(view, setting, threshold, method, [pair for pair in pairs if pair[0] == method])
    ]
    if not any(row["runs"] for row in rows):
        raise missing_data(view, f"crossing of {reward}")
    display = [*(["Setting"] if len(view.settings) > 1 else []), *DISPLAY]
    notes = [
        "Of stable crossings, except First; differences are paired, Method minus Against, in steps. docs/statistics.md "
        "explains it under Comparing two methods.",
        *view.notes(),
    ]
    return Table(pd.DataFrame(rows), f"Crossings of {reward}, compared ({name})", notes, display)


def _rows(view: RunsView, setting: Setting, threshold: float, method: str, pairs: list[tuple[str, str]]) -> list[dict]:
    """Return the rows of one method at one threshold."""
    level = (view.experiment.sparse_reward, threshold)
    head = {
        "Setting": view.setting_label(setting),
        "Threshold": f"{threshold:g}",
        "Method": view.methods[method].label,
        "method": method,
    }
    head |= _own(view, setting, level, method)
    rows = []
    for pair in pairs:
        found = {kind: compare_crossings(view, kind, level, pair, setting) for kind in KINDS}
        rows.append(head | {"Against": view.methods[pair[1]].label, "baseline": pair[1]} | _compared(found))
    nothing = dict.fromkeys(["Against", *COMPARED], MISSING) | dict.fromkeys(["baseline", *RAW_COMPARED], math.nan)
    return rows or [head | nothing]


def _own(view: RunsView, setting: Setting, level: tuple[str, float], method: str) -> dict[str, object]:
    """Return the cells and raw columns of one method, all of stable crossings."""
    times = times_of(view.marks("stable", *level, method, setting), "stable")
    if times is None:
        cells = {"Reached (%)": "missing", "Median": MISSING, "Energy share (%)": MISSING}
        return cells | {"runs": 0, "reached": 0, "median": math.nan, "energy_share": math.nan}
    shares = list(energy_shares(view, level[0], method, setting).values())
    share = float(np.mean(shares)) if shares else math.nan
    middle = median_step(times)
    return {
        "Reached (%)": _reached(times),
        "Median": median_text(times) if times.horizon > 0 else MISSING,
        "Energy share (%)": number(100 * share, 1),
        "runs": len(times.steps),
        "reached": times.reached,
        "median": middle if math.isfinite(middle) else math.nan,
        "energy_share": share,
    }


def _reached(times: CrossingTimes) -> str:
    interval = wilson_interval(times.reached, len(times.steps))
    return f"{times.reached}/{len(times.steps)} [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def _compared(found: dict[Kind, Crossings | None]) -> dict[str, object]:
    """Return the cells and raw columns of a pair of methods; dashes if one of them has no run."""
    stable = found["stable"]
    if stable is None:
        return dict.fromkeys(COMPARED, MISSING) | dict.fromkeys(RAW_COMPARED, math.nan)
    row: dict[str, object] = {"Pairs": str(stable.difference.pairs), "pairs": stable.difference.pairs}
    for kind, made in found.items():
        row[f"{kind.capitalize()}: difference"] = _difference_text(made)
        row |= {f"{kind}_difference": made.difference.value, f"{kind}_low": made.difference.low}
        row |= {f"{kind}_high": made.difference.high, f"{kind}_tau": made.tau, f"{kind}_late": made.late}
    saved = stable.speed_up
    low, high = saved.saved_interval or (math.nan, math.nan)
    row["Speed-up (%)"] = saved_text(saved, "not estimable")
    return row | {"saved": saved.saved, "saved_low": low, "saved_high": high, "not_estimable": saved.reason}


def _difference_text(made: Crossings) -> str:
    """Return `−12.5 [−20.1, −4.9]`, and `, 2 late` if runs had not crossed by tau; a dash if it is unknown."""
    found = made.difference
    if not found.pairs or made.tau <= 0:
        return MISSING
    late = f", {made.late} late" if made.late else ""
    return with_interval(found.value, found.low, found.high, 1) + late
