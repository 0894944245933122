"""Table: the steps at which the runs of each method cross each threshold, and how many got there."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from dara.analysis.crossing import HOLD, WINDOW
from dara.analysis.intervals import wilson_interval
from dara.analysis.summary import median
from dara.analysis.tables.cells import MISSING, WILSON_NOTE, number, signed
from dara.analysis.tables.render import Table
from dara.analysis.tables.selection import Frames, Selection, Setting, rows_of, run_notes, select
from dara.config import Experiment, MethodEntry

REFERENCE = "gdpo"
RAW = ["median_first", "median_stable", "reached", "pending", "planned", "missing", "share", "share_low", "share_high"]


def build(frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> Table:
    """One row a (setting, reward, threshold, method): crossings of each run, their medians, how many runs got there.

    A run that did not get there counts as later than every crossing in a median. Raw columns: RAW
    (a median beyond the budget is empty), and `difference`, of the median stable crossing to GDPO's. ValueError
    without any crossing.
    """
    selection = select(frames, experiment, methods)
    crossings = rows_of(selection, frames, "crossings", "crossing", reward=list(experiment.thresholds))
    rows = []
    for setting in selection.settings:
        for reward, thresholds in experiment.thresholds.items():
            for threshold in thresholds:
                near = np.isclose(crossings["threshold"], threshold) & (crossings["reward"] == reward)
                rows += _block(selection, setting, crossings[near], reward, threshold)
    reference = selection.methods.get(REFERENCE)
    columns = ["Reward", "Threshold", "Method", "First crossing", "Median first", "Stable crossing", "Median stable"]
    display = [*(["Setting"] if len(selection.settings) > 1 else []), *columns, "Got there (%)"]
    display += [f"Difference to {reference.label}"] if reference else []
    frame = pd.DataFrame(rows).rename(columns={"Difference": display[-1]} if reference else {})
    title = f"Steps to cross a threshold of a training reward ({experiment.experiment})"
    return Table(frame, title, _notes(selection, reference), display)


def _block(
    selection: Selection, setting: Setting, crossings: pd.DataFrame, reward: str, threshold: float
) -> list[dict]:
    """The rows of all methods at one threshold of one reward."""
    planned = selection.of_setting(selection.planned, setting)
    by_run = crossings.set_index("run_id")
    cells = {}
    for method in selection.methods:
        runs = list(planned.loc[planned["method"] == method, "run_id"])
        found = crossings[crossings["run_id"].isin(runs)]
        head = {
            "Setting": selection.setting_label(setting),
            "Reward": reward,
            "Threshold": f"{threshold:g}",
            "Method": selection.methods[method].label,
            "method": method,
        }
        cells[method] = head | _cells(runs, by_run, _summary(found, len(runs)))
    middle = cells[REFERENCE]["median_stable"] if REFERENCE in cells else math.nan
    for method, row in cells.items():
        row["difference"] = math.nan if method == REFERENCE else row["median_stable"] - middle
        row["Difference"] = signed(row["difference"])
    return list(cells.values())


def _summary(found: pd.DataFrame, planned: int) -> dict[str, float]:
    """RAW and the budget, of the crossings of one method at one threshold; NaN where there is no run."""
    counts = {status: int((found["status"] == status).sum()) for status in ("reached", "pending")}
    counts |= {"planned": planned, "missing": planned - len(found)}
    if found.empty:
        return dict.fromkeys([*RAW, "budget"], math.nan) | counts
    share = wilson_interval(counts["reached"], len(found))
    medians = {kind: median(found[f"{kind}_step"].astype("float64").fillna(np.inf)) for kind in ("first", "stable")}
    return counts | {
        **{f"median_{kind}": value if math.isfinite(value) else math.nan for kind, value in medians.items()},
        "share": counts["reached"] / len(found),
        "share_low": share.low,
        "share_high": share.high,
        "budget": int(found["budget"].max()),
    }


def _cells(runs: list[str], by_run: pd.DataFrame, summary: dict[str, float]) -> dict[str, object]:
    """The cells of one method; `by_run` has the crossings at this threshold by run_id."""
    seen = summary["planned"] - summary["missing"]
    low, high = 100 * summary["share_low"], 100 * summary["share_high"]
    return {
        "First crossing": " ".join(_first(by_run, run_id) for run_id in runs) or "missing",
        "Median first": _censored(summary["median_first"], summary["budget"]),
        "Stable crossing": " ".join(_stable(by_run, run_id) for run_id in runs) or "missing",
        "Median stable": _censored(summary["median_stable"], summary["budget"]),
        "Got there (%)": f"{summary['reached']}/{seen} [{low:.0f}, {high:.0f}]" if seen else "missing",
        **{column: summary[column] for column in RAW},
    }


def _censored(median: float, budget: float) -> str:
    """A median; `>80` where it is a run that did not get there in 80 steps, a dash where there is no run."""
    return f">{budget:g}" if math.isnan(median) and not math.isnan(budget) else number(median)


def _first(by_run: pd.DataFrame, run_id: str) -> str:
    if run_id not in by_run.index:
        return "?"
    step = by_run.loc[run_id, "first_step"]
    return MISSING if pd.isna(step) else f"{step:g}"


def _stable(by_run: pd.DataFrame, run_id: str) -> str:
    if run_id not in by_run.index:
        return "?"
    run = by_run.loc[run_id]
    if run["status"] == "pending":
        return f"({run['pending_step']:g})"
    return f"{run['stable_step']:g}" if run["status"] == "reached" else MISSING


def _notes(selection: Selection, reference: MethodEntry | None) -> list[str]:
    compared = (
        f"Difference: of the median stable crossings, in steps; {MISSING} where one of them is not known."
        if reference
        else "No difference of medians: the experiment does not have GDPO."
    )
    return [
        "First crossing: first step whose reward is at least the threshold. Stable crossing: first step at which the "
        f"mean of the last {WINDOW} steps is at least the threshold and stays there for {HOLD} more steps.",
        f"One value a run, in the order of the seeds: {MISSING} not reached; (n) pending since step n, too short to "
        "confirm; ? no such run. In a median, a run that did not get there (pending included) is later than "
        "every crossing.",
        f"Got there: runs with a stable crossing, of the runs that exist. {WILSON_NOTE}",
        compared,
        *run_notes(selection),
    ]
