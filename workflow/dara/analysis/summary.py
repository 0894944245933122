"""Summaries over seeds: medians and quartiles, and means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dara.analysis.intervals import bootstrap_interval, t_interval


def median(values: Sequence[float] | np.ndarray) -> float:
    """Median of runs, where infinity stands for a run that did not get there: it is later than every crossing.

    Infinite where the middle of the runs did not get there (also where one of the two middle ones did not).

    Raises:
        ValueError: no values, or NaN among them.
    """
    ordered = np.sort(_not_nan(values))
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def quartiles(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """25 %, 50 % and 75 % quantiles over runs, linear between order statistics (of five runs: the 2nd, 3rd and 4th).

    Args:
        values: (runs, ...) finite; runs are the first axis.

    Returns:
        q25, median, q75, each of the shape (...).

    Raises:
        ValueError: no run, or a value that is not finite.
    """
    array = _not_nan(values)
    if not np.isfinite(array).all():
        raise ValueError("quartiles need finite values; take `median` where some runs did not get there")
    low, middle, high = np.quantile(array, [0.25, 0.5, 0.75], axis=0)
    return low, middle, high


def summarise_seeds(frame: pd.DataFrame, name: str, by: Sequence[str]) -> pd.DataFrame:
    """Mean, spread and both intervals over seeds of the column `value`, for each cell.

    Args:
        frame: one row a seed and cell, for example checkpoint_scores.
        name: name of the table or figure; with the cell it keys the bootstrap.
        by: columns that make a cell, for example ("method", "step", "metric").

    Returns:
        Columns *by, n, mean, sd (n - 1), median, t_low, t_high, bootstrap_low, bootstrap_high, degenerate; NaN where
        one value has no spread.
    """
    groups = frame.groupby(list(by), sort=True, dropna=False)
    rows = [
        dict(zip(by, cell, strict=True)) | _seed_row(rows["value"].to_numpy(), (name, *map(str, cell)))
        for cell, rows in groups
    ]
    return pd.DataFrame(rows)


def _seed_row(values: np.ndarray, key: tuple[str, ...]) -> dict[str, float]:
    values = np.sort(values)  # so that sums, too, do not depend on the order of rows
    student, resampled = t_interval(values), bootstrap_interval(values, key=key)
    return {
        "n": len(values),
        "mean": math.fsum(values) / len(values),
        "sd": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
        "median": float(np.median(values)),
        "t_low": student.low if student else math.nan,
        "t_high": student.high if student else math.nan,
        "bootstrap_low": resampled.low if resampled else math.nan,
        "bootstrap_high": resampled.high if resampled else math.nan,
        "degenerate": bool(student and student.degenerate),
    }


def _not_nan(values: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or not len(array) or np.isnan(array).any():
        raise ValueError(f"need at least one run and no NaN (given: shape {array.shape})")
    return array
