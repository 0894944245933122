"""Made-up score files of the paper's benchmarks, frames with what `summarise` and the analysis make of them, and tables.

Scores are shares: of each category (or set) so many of its cases are right, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pandas as pd

from dara.analysis.frames import rows_to_frame
from dara.analysis.scores import score_rows
from dara.analysis.tables import Table, build_table
from dara.analysis.view import View
from dara.config import Experiment
from dara.data.public import SETS
from dara.evaluation.bfcl import CATEGORIES
from dara.evaluation.grading import summarise
from dara.loading import read_yaml
from dara.registries import definition
from dara.table_options import TABLES, ScoreTable
from project import ROOT

CASES = 10
"""Of each category."""

Make = Callable[[Mapping[str, Any]], pd.DataFrame]
"""From what names a checkpoint (method, seed, step, ...; the base model has no seed) to its score file."""


def bfcl_v4(**shares: float) -> pd.DataFrame:
    """A score file of BFCL-v4; what is not given is 0 (think_words: 5)."""
    return _frame("bfcl_v4", {category: shares for category in CATEGORIES["bfcl_v4"]}, think_words=5)


def laptop_tools(**shares: float) -> pd.DataFrame:
    """A score file of the laptop's tool benchmark."""
    return _frame("laptop_tools", {category: shares for category in CATEGORIES["laptop_tools"]})


def math_five(shares: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """A score file of the five math sets: set -> column -> share."""
    return _frame("math_five", {name: shares.get(name, {}) for name in SETS})


def toolrl_validation(correctness: float, **shares: float) -> pd.DataFrame:
    """A score file of the validation rows; correctness is a reward."""
    return _frame("toolrl_validation", {"validation": shares}).assign(correctness=correctness)


def scored(frames: dict[str, pd.DataFrame], made: Mapping[str, Make]) -> dict[str, pd.DataFrame]:
    """The frames with scores of these benchmarks, at every checkpoint that has scores; the others are gone."""
    checkpoints = frames["checkpoint_scores"].drop_duplicates(["run_id", "step"])
    names = ["run_id", "task", "model", "method", "group_size", "seed", "step"]
    rows = []
    for _, checkpoint in checkpoints.iterrows():
        identity = {name: None if pd.isna(checkpoint[name]) else checkpoint[name] for name in names}
        for benchmark, make in made.items():
            metrics = summarise(make(identity), benchmark)
            for row in score_rows(metrics, (identity["run_id"], str(identity["step"]), benchmark)):
                rows.append(identity | {"benchmark": benchmark} | row)
    return frames | {"checkpoint_scores": rows_to_frame(rows, "checkpoint_scores")}


def _frame(benchmark: str, parts: Mapping[str, Mapping[str, float]], **constant: object) -> pd.DataFrame:
    columns = definition(benchmark).columns
    rows = []
    for category, shares in parts.items():
        for case in range(CASES):
            row = {column: int(case < round(CASES * shares.get(column, 0))) for column in columns} | constant
            place = {"case": f"{category}_{case}", "category": category, "sample": 0, "n_tokens": 9}
            rows.append(row | place | {"outcome": "scored"})
    return pd.DataFrame(rows, columns=list(columns))


def entry(output: str, kind: str = "tables") -> str | ScoreTable:
    """What config/experiments/ says of a table."""
    return next(made for one in _experiments().values() if (made := getattr(one, kind).get(output)))


@cache
def _experiments() -> dict[str, Experiment]:
    paths = (ROOT / "config/experiments").glob("*.yaml")
    return {path.stem: Experiment.model_validate(read_yaml(path)) for path in sorted(paths)}


def build(output: str, view: View) -> Table:
    """The table of this file name, or of this name, of made-up runs."""
    return build_table(output if output in TABLES else entry(output), view)


def cell(table: Table, column: str, **equal: str) -> Any:
    """The cell of a column in the one row that has these values."""
    rows = table.frame[(table.frame[list(equal)] == pd.Series(equal)).all(axis=1)]
    assert len(rows) == 1, equal
    return rows[column].iloc[0]
