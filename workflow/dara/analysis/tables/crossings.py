"""Table: the steps at which the runs of each method cross each threshold, and how many got there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from dara.analysis.crossing import HOLD, WINDOW, first_crossing
from dara.analysis.intervals import median, wilson_interval
from dara.analysis.names import BASELINE
from dara.analysis.tables.cells import MISSING, WILSON_NOTE, number, signed
from dara.analysis.tables.render import Table
from dara.analysis.view import Mark, Setting, View, missing_data
from dara.analysis.view_runs import RunsView
from dara.config import MethodEntry

KINDS = {
    "first": "First crossing: first step whose reward is at least the threshold.",
    "stable": f"Stable crossing: first step at which the mean of the last {WINDOW} steps is at least the threshold and "
    f"stays there for {HOLD} more steps.",
}
"""The kinds of crossings that a source may have; the last one it has is what counts as getting there."""

CURVE_NOTE = "Median curve: first step at which the median of the runs at each step is at least the threshold."

RAW = ["median_first", "median_stable", "reached", "pending", "planned", "missing", "share", "share_low", "share_high"]


def build(view: View) -> Table:
    """One row a (setting, reward, threshold, method): crossings of each run, their medians, how many runs got there.

    Where a source has first crossings only, or stable ones only, the columns of the others are left out, and got there
    counts those it has. A run that did not get there counts as later than every crossing in a median. Raw columns: RAW
    (a median beyond the budget is empty), and `difference`, of the median crossing to GDPO's (stable where there are
    such). ValueError without any crossing.
    """
    experiment = view.experiment
    kinds = [kind for kind in KINDS if _has_marks(view, kind)]
    if not kinds:
        levels = (f"{reward} {', '.join(map(str, found))}" for reward, found in experiment.thresholds.items())
        raise missing_data(view, f"crossing of its thresholds ({'; '.join(levels)})")
    rows = []
    for setting in view.settings:
        for reward, thresholds in experiment.thresholds.items():
            for threshold in thresholds:
                rows += _block(view, kinds, setting, reward, threshold)
    reference = view.methods.get(BASELINE)
    display = [*(["Setting"] if len(view.settings) > 1 else []), "Reward", "Threshold", "Method"]
    display += [column for kind in kinds for column in (f"{kind.capitalize()} crossing", f"Median {kind}")]
    display += ["Median curve"] if any(row["median_curve"] > 0 for row in rows) else []
    display += ["Got there (%)", *([f"Difference to {reference.label}"] if reference else [])]
    frame = pd.DataFrame(rows).rename(columns={"Difference": display[-1]} if reference else {})
    title = f"Steps to cross a threshold of a training reward ({experiment.experiment})"
    return Table(frame, title, _notes(view, kinds, reference), display)


def _has_marks(view: View, kind: str) -> bool:
    return any(
        view.marks(kind, reward, threshold, method, setting)
        for reward, thresholds in view.experiment.thresholds.items()
        for threshold in thresholds
        for setting in view.settings
        for method in view.methods
    )


def _block(view: View, kinds: list[str], setting: Setting, reward: str, threshold: float) -> list[dict]:
    """The rows of all methods at one threshold of one reward; none where the source has no crossing of it."""
    found = {
        method: {kind: view.marks(kind, reward, threshold, method, setting) for kind in kinds}
        for method in view.methods
    }
    if not any(marks for of_method in found.values() for marks in of_method.values()):
        return []
    cells = {}
    for method, marks in found.items():
        if not isinstance(view, RunsView) and not any(marks.values()):
            continue  # nobody planned it
        head = {
            "Setting": view.setting_label(setting),
            "Reward": reward,
            "Threshold": f"{threshold:g}",
            "Method": view.methods[method].label,
            "method": method,
        }
        # Where the seeds of the planned runs are not known, they are those that were published.
        every = view.planned(method, setting) or [mark.seed for mark in marks[kinds[-1]]]
        curve = curve_crossing(view, reward, threshold, method, setting)
        cells[method] = head | cells_of(marks, every) | {"median_curve": curve, "Median curve": number(curve)}
    middle = cells[BASELINE][f"median_{kinds[-1]}"] if BASELINE in cells else math.nan
    for method, row in cells.items():
        row["difference"] = math.nan if method == BASELINE else row[f"median_{kinds[-1]}"] - middle
        row["Difference"] = signed(row["difference"])
    return list(cells.values())


def curve_crossing(view: View, reward: str, threshold: float, method: str, setting: Setting) -> float:
    """First step at which the median curve of a reward is at least the threshold; NaN where it is not, or unknown."""
    curve = view.curve(f"reward/{reward}/mean", method, setting)["middle"].dropna()
    step = first_crossing(curve.to_numpy(dtype=float), threshold) if len(curve) else None
    return math.nan if step is None else float(curve.index[step - 1])


def _summary(marks: dict[str, list[Mark]], planned: int) -> dict[str, float]:
    """RAW and the budget, of one method at one threshold; NaN where there is no run. What counts is the last kind."""
    decisive = list(marks.values())[-1]
    counts = {status: sum(mark.status == status for mark in decisive) for status in ("reached", "pending")}
    counts |= {"planned": planned, "missing": planned - len(decisive)}
    if not decisive:
        return dict.fromkeys([*RAW, "budget"], math.nan) | counts
    share = wilson_interval(counts["reached"], len(decisive))
    medians = {f"median_{kind}": _median(marks.get(kind, [])) for kind in KINDS}
    return counts | {
        **{name: value if math.isfinite(value) else math.nan for name, value in medians.items()},
        "share": counts["reached"] / len(decisive),
        "share_low": share.low,
        "share_high": share.high,
        "budget": max(mark.budget for mark in decisive),
    }


def _median(marks: Sequence[Mark]) -> float:
    """Median crossing, infinite where it is a run that did not get there; NaN without runs."""
    return median([math.inf if mark.step is None else mark.step for mark in marks]) if marks else math.nan


def cells_of(marks: dict[str, list[Mark]], planned: Sequence[int | None]) -> dict[str, object]:
    """The cells of one method."""
    summary = _summary(marks, len(planned))
    seen = summary["planned"] - summary["missing"]
    low, high = 100 * summary["share_low"], 100 * summary["share_high"]
    cells: dict[str, object] = {}
    for kind, of_kind in marks.items():
        cells[f"{kind.capitalize()} crossing"] = " ".join(_texts(of_kind, planned)) or "missing"
        watched = summary["budget"] - (HOLD if kind == "stable" else 0)
        cells[f"Median {kind}"] = _censored(summary[f"median_{kind}"], max(watched, 0.0))
    cells["Got there (%)"] = f"{summary['reached']}/{seen} [{low:.0f}, {high:.0f}]" if seen else "missing"
    return cells | {column: summary[column] for column in RAW}


def _texts(marks: Sequence[Mark], planned: Sequence[int | None]) -> list[str]:
    """One text a planned run, `?` for one that is missing."""
    left = list(marks)
    texts = []
    for seed in planned:
        mark = next((mark for mark in left if mark.seed == seed), None)
        if mark is None:
            texts.append("?")
            continue
        left.remove(mark)
        texts.append(_text(mark))
    return texts


def _text(mark: Mark) -> str:
    if mark.status == "pending":
        return f"({mark.pending_step})"
    return MISSING if mark.step is None else str(mark.step)


def _censored(median: float, watched: float) -> str:
    """A median; `>60` where it is a run that is only known not to cross until step 60, a dash where there is no run."""
    return f">{watched:g}" if math.isnan(median) and not math.isnan(watched) else number(median)


def _notes(view: View, kinds: list[str], reference: MethodEntry | None) -> list[str]:
    compared = (
        f"Difference: of the median {kinds[-1]} crossings, in steps; {MISSING} where one of them is not known."
        if reference
        else "No difference of medians: the experiment does not have GDPO."
    )
    pending = "; (n) pending since step n, too short to confirm" if "stable" in kinds else ""
    metrics = [
        f"{'first_step' if kind == 'first' else 'stable_crossing'}/{reward}/{threshold:g}"
        for kind in kinds
        for reward, thresholds in view.experiment.thresholds.items()
        for threshold in thresholds
    ]
    return [
        " ".join([*(KINDS[kind] for kind in kinds), CURVE_NOTE]),
        f"One value a run, in the order of the seeds: {MISSING} not reached{pending}; ? no such run. In a median, a "
        f"run that did not get there{' (pending included)' if pending else ''} is later than every crossing.",
        f"Got there: runs with a {kinds[-1]} crossing, of the runs that exist. {WILSON_NOTE}",
        compared,
        *view.notes(metrics),
    ]
