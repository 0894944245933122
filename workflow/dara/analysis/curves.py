"""Training curves: the check of their steps, and single series."""

from __future__ import annotations

import numpy as np
import pandas as pd


def check_steps(curves: pd.DataFrame, where: str = "training_curves") -> None:
    """Raise ValueError unless every run has its steps 1, 2, ... for every metric without a gap and without a repeat.

    Args:
        curves: columns run_id, metric, step; in any order of rows.
        where: what the message starts with.
    """
    ordered = curves.sort_values(["run_id", "metric", "step"], kind="stable")
    groups = ordered.groupby(["run_id", "metric"], sort=False)
    steps, expected = ordered["step"].to_numpy(), groups.cumcount().to_numpy() + 1
    wrong = np.flatnonzero(steps != expected)
    if not len(wrong):
        return
    row, step, due = ordered.iloc[wrong[0]], int(steps[wrong[0]]), int(expected[wrong[0]])
    repeated = step == due - 1
    problem = f"step {step} stands twice" if repeated else f"step {due} is missing, step {step} stands in its place"
    raise ValueError(f"{where}: run {row['run_id']}, metric {row['metric']}: {problem}; steps must be 1, 2, 3, ...")


def series_of(curves: pd.DataFrame, run_id: str, metric: str) -> np.ndarray:
    """Values (N,) of one metric of one run, step 1 first.

    Raises:
        ValueError: there is no such run and metric, or its steps have a gap or a repeat.
    """
    rows = curves[(curves["run_id"] == run_id) & (curves["metric"] == metric)]
    if rows.empty:
        raise ValueError(f"training_curves: run {run_id} has no metric {metric!r}")
    check_steps(rows)
    return rows.sort_values("step")["value"].to_numpy()
