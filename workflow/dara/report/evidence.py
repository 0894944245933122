"""What claims are measured on: the frames of a preset, and the published numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from dara.analysis.paired import PairedDifference, paired_scores
from dara.analysis.survival import CrossingTimes, Kind, crossing_times
from dara.config import MethodEntry

KEY = ("seed", "repeat")
"""What pairs a run with one of another method."""

Setting = tuple[str, int]
"""Model and group size."""


@dataclass(frozen=True)
class Evidence:
    """Frames by name, published numbers (`read_published`), and the rows of config/methods.yaml."""

    frames: Mapping[str, pd.DataFrame]
    published: pd.DataFrame
    methods: Mapping[str, MethodEntry]

    def label(self, method: str) -> str:
        """The method's name in tables, or its own where config/methods.yaml has no row for it."""
        return self.methods[method].label if method in self.methods else method

    def experiments(self) -> list[str]:
        """The experiments that have a run, in alphabetical order."""
        runs = self.frames["runs"]
        return sorted(runs.loc[runs["origin"] != "missing", "experiment"].unique())

    def runs(self, experiment: str, method: str | None = None) -> pd.DataFrame:
        """The finished (and diverged) runs of an experiment, and of one method."""
        runs = self.frames["runs"]
        chosen = runs[(runs["experiment"] == experiment) & (runs["origin"] != "missing")]
        return chosen if method is None else chosen[chosen["method"] == method]

    def settings(self, experiment: str) -> list[Setting]:
        """Model and group size of each setting that has runs."""
        pairs = self.runs(experiment)[["model", "group_size"]].drop_duplicates()
        return sorted((str(model), int(size)) for model, size in pairs.itertuples(index=False, name=None))

    def rows(self, frame: str, experiment: str, method: str | None, setting: Setting, **equal: object) -> pd.DataFrame:
        """The rows of a frame that belong to runs of a method at a setting, with the column `repeat`."""
        runs = self.runs(experiment, method)
        runs = runs[(runs["model"] == setting[0]) & (runs["group_size"] == setting[1])]
        chosen = self.frames[frame].merge(runs[["run_id", "repeat"]], on="run_id")
        for column, value in equal.items():
            chosen = chosen[chosen[column] == value]
        return chosen

    def times(
        self, experiment: str, reward: str, threshold: float, kind: Kind, method: str, setting: Setting
    ) -> CrossingTimes | None:
        """When the runs cross a threshold; None where it was not analysed, or without runs."""
        rows = self.rows("crossings", experiment, method, setting, reward=reward)
        rows = rows[np.isclose(rows["threshold"], threshold)]
        return crossing_times(rows, kind, key=KEY) if len(rows) else None

    def scores(
        self, experiment: str, metric: str, methods: tuple[str, str], setting: Setting
    ) -> tuple[int, dict[tuple, float], dict[tuple, float]] | None:
        """A score of the runs of two methods at the last step that all of these runs have; None without one."""
        rows = [self.rows("checkpoint_scores", experiment, m, setting, metric=metric) for m in methods]
        steps = [set(run["step"]) for found in rows for _, run in found.groupby("run_id")]
        common = set.intersection(*steps) if steps else set()
        if not common or any(found.empty for found in rows):
            return None
        first, second = (_by_key(found[found["step"] == max(common)]) for found in rows)
        return max(common), first, second

    def density(self, experiment: str, reward: str, steps: int, method: str, setting: Setting) -> dict[tuple, float]:
        """The mean density of a reward over the first steps, by run."""
        rows = self.rows("training_curves", experiment, method, setting, metric=f"density/{reward}")
        rows = rows[(rows["step"] <= steps) & rows["value"].notna()]
        return {key: float(values.mean()) for key, values in rows.groupby(list(KEY))["value"]}

    def paper(self, file: str, **equal: object) -> pd.DataFrame:
        """The published numbers of a file; a value None asks for an empty cell."""
        rows = self._files.get(file, self.published.iloc[:0])
        for column, value in equal.items():
            rows = rows[rows[column].isna() if value is None else (rows[column] == value).fillna(False)]
        return rows

    @cached_property
    def _files(self) -> dict[str, pd.DataFrame]:
        return dict(list(self.published.groupby("file")))

    def number(self, file: str, **equal: object) -> float:
        """The one published number with these columns; ValueError where there is none, or several."""
        values = self.paper(file, **equal)["value"]
        if len(values) != 1:
            raise ValueError(f"published numbers, {file}.csv: {len(values)} rows with {equal}; one is needed")
        return float(values.iloc[0])

    def by_seed(self, file: str, **equal: object) -> dict[int, float]:
        """Published numbers of single runs by seed; NaN where there is none."""
        rows = self.paper(file, **equal)
        rows = rows[rows["seed"].notna()]
        return {int(seed): float(value) for seed, value in zip(rows["seed"], rows["value"], strict=True)}


def paired_steps(first: CrossingTimes, second: CrossingTimes) -> tuple[PairedDifference, float, int]:
    """Paired differences of min(crossing, tau), so that a run which does not cross is not left out.

    Returns:
        The differences; tau, the last step at which a crossing could be seen in all runs; how many of the paired runs
        did not cross by then.
    """
    tau = min(first.horizon, second.horizon)
    common = set(first.keys) & set(second.keys)
    steps, late = [], 0
    for times in (first, second):
        values = zip(times.keys, times.steps, times.crossed, strict=True)
        found = {key: step if crossed else math.inf for key, step, crossed in values}
        late += sum(step > tau for key, step in found.items() if key in common)
        steps.append({key: min(step, tau) for key, step in found.items()})
    return paired_scores(*steps), tau, late


def published_times(steps: Mapping[int, float], budget: float) -> CrossingTimes:
    """Crossing times from published first steps by seed; NaN is a run that did not cross within the budget."""
    seeds = sorted(steps)
    crossed = tuple(math.isfinite(steps[seed]) for seed in seeds)
    found = tuple(steps[seed] if ok else budget for seed, ok in zip(seeds, crossed, strict=True))
    return CrossingTimes(tuple(seeds), found, crossed, budget)


def _by_key(rows: pd.DataFrame) -> dict[tuple, float]:
    return {(seed, repeat): float(value) for seed, repeat, value in rows[[*KEY, "value"]].itertuples(index=False)}
