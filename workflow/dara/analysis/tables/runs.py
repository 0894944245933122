"""Table: every planned run of the experiment, and where it comes from."""

from __future__ import annotations

import pandas as pd

from dara.analysis.tables.render import MISSING, Table
from dara.analysis.view import View
from dara.analysis.view_runs import RunsView

COLUMNS = {
    "Model": "model",
    "G": "group_size",
    "Seed": "seed",
    "Repeat": "repeat",
    "Steps": "steps",
    "Outcome": "outcome",
    "Origin": "origin",
    "Engine": "engine",
    "Run": "run_id",
}


def build(view: View) -> Table:
    """Return one row a planned run, in the order of the methods; the raw columns are those of the frame `runs`.

    Raise ValueError for a source without own runs.
    """
    if not isinstance(view, RunsView):
        raise ValueError(
            f"{view.source}: experiment {view.experiment.experiment}: it has no runs to list, only numbers"
        )
    planned = view.selection.planned
    rows = []
    for method, entry in view.methods.items():
        for run in planned[planned["method"] == method].to_dict("records"):
            shown = {title: _text(run[column]) for title, column in COLUMNS.items()}
            rows.append({"Method": entry.label, **shown, **run})
    notes = [
        "Steps: those the run has. Origin: trained here, taken from the cached results (same identity), or missing.",
        *view.notes(),
    ]
    return Table(pd.DataFrame(rows), f"Runs ({view.experiment.experiment})", notes, ["Method", *COLUMNS])


def _text(value: object) -> str:
    if pd.isna(value) or value == "":
        return MISSING
    return str(value)
