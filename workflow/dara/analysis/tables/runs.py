"""Table: every planned run of the experiment, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from dara.analysis.tables.cells import MISSING
from dara.analysis.tables.render import Table
from dara.analysis.tables.selection import Frames, run_notes, select
from dara.config import Experiment, MethodEntry

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


def build(frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> Table:
    """One row a planned run, in the order of the methods; the raw columns are those of the frame `runs`."""
    selection = select(frames, experiment, methods)
    rows = []
    for method, entry in selection.methods.items():
        for run in selection.planned[selection.planned["method"] == method].to_dict("records"):
            shown = {title: _text(run[column]) for title, column in COLUMNS.items()}
            rows.append({"Method": entry.label, **shown, **run})
    notes = [
        "Steps: those the run has. Origin: trained here by this workflow, taken from the cached results "
        "(same identity), or missing.",
        "Interval: none, the table has no estimate.",
        *run_notes(selection),
    ]
    return Table(pd.DataFrame(rows), f"Runs ({experiment.experiment})", notes, ["Method", *COLUMNS])


def _text(value: object) -> str:
    if pd.isna(value) or value == "":
        return MISSING
    return str(value)
