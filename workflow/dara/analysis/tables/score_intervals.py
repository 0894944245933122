"""Table: held-out scores, and differences of methods, with intervals over seeds and over questions too."""

from __future__ import annotations

from itertools import product

import pandas as pd

from dara.analysis.intervals import LEVEL, RESAMPLES
from dara.analysis.names import SCORES
from dara.analysis.tables.at_step import setting_cells, setting_columns
from dara.analysis.tables.cells import MISSING, number
from dara.analysis.tables.render import Table
from dara.analysis.view import View, missing_data
from dara.analysis.view_runs import RunsView

OVER_SEEDS = "t over seeds"
OVER_BOTH = "seeds and questions"
RAW = (
    *("metric", "method", "baseline", "step", "value", "t_low", "t_high", "low", "high"),
    *("n_seeds", "n_questions"),
)


def build(view: View) -> Table:
    """One row a (setting, step, score, method), then the differences of methods.

    Raw columns: those of the frame `score_intervals`, scores as fractions.

    Raises:
        ValueError: nothing was scored, or the source has no answers to single questions.
    """
    if not isinstance(view, RunsView):
        raise missing_data(view, "scores of single questions; only runs of a preset have them")
    frame = view.frames["score_intervals"]
    frame = frame[frame["experiment"] == view.experiment.experiment]
    rows = []
    for setting in view.settings:
        here = view.selection.of_setting(frame, setting)
        for step, (metric, title) in product(sorted(here["step"].unique()), SCORES[view.experiment.task].items()):
            shown = here[(here["step"] == step) & (here["metric"] == metric)]
            rows += [setting_cells(setting) | _row(view, title, found) for found in _ordered(shown, list(view.methods))]
    if not rows:
        raise missing_data(view, "score at a step that all runs have")
    columns = ["Step", "Score", "Method", "Seeds", "Questions", "Mean (%)", OVER_SEEDS, OVER_BOTH]
    return Table(
        pd.DataFrame(rows),
        f"Held-out scores with intervals over seeds and questions ({view.experiment.experiment})",
        _notes(view),
        [*setting_columns(view), *columns],
        numeric=("G", "Step", "Seeds", "Questions", "Mean (%)"),
    )


def _ordered(rows: pd.DataFrame, methods: list[str]) -> list[dict]:
    """The scores, then the differences, both in the order of the methods."""
    found = rows.to_dict("records")
    return sorted(found, key=lambda row: (bool(row["baseline"]), methods.index(row["method"]), row["baseline"]))


def _row(view: View, title: str, found: dict) -> dict[str, object]:
    method = view.methods[found["method"]].label
    if found["baseline"]:
        method = f"{method} − {view.methods[found['baseline']].label}"
    sign = "+" if found["baseline"] and found["value"] > 0 else ""
    shown = {
        "Step": str(found["step"]),
        "Score": title,
        "Method": method,
        "Seeds": str(found["n_seeds"]),
        "Questions": str(found["n_questions"]),
        "Mean (%)": sign + number(100 * found["value"], 1),
        OVER_SEEDS: _ends(found["t_low"], found["t_high"]),
        OVER_BOTH: _ends(found["low"], found["high"]),
    }
    return shown | {name: found[name] for name in RAW}


def _ends(low: float, high: float) -> str:
    return MISSING if pd.isna(low) else f"[{number(100 * low, 1)}, {number(100 * high, 1)}]"


def _notes(view: RunsView) -> list[str]:
    steps = ", ".join(map(str, view.experiment.score_steps))
    at = f"At the authors' steps {steps} (of a shorter training at the same share of it), and at" if steps else "At"
    return [
        f"{at} the last step of which all completed runs have scores. In percent, "
        "differences in percentage points (CSV: fractions). Diverged runs are left out.",
        f"{OVER_SEEDS}: {100 * LEVEL:g} % Student's t of the mean over seeds, for these questions; none for one seed.",
        f"{OVER_BOTH}: {100 * LEVEL:g} % hierarchical bootstrap, {RESAMPLES:,} resamples of seeds, then of questions "
        "within their category, the same questions for all seeds; percentiles, so it is too narrow for few seeds (of 3 "
        "about 86 %, of 5 about 90 % where seeds differ much: docs/statistics.md). Of one seed: over questions alone.",
        "Differences are taken question by question within each seed that both methods have.",
        *view.notes(),
    ]
