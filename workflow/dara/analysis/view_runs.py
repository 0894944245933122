"""Numbers of a preset's own runs, computed from its tidy frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from dara.analysis.intervals import t_interval
from dara.analysis.names import BASE
from dara.analysis.selection import Frames, Selection, run_notes, scores_of, select
from dara.analysis.summary import quartiles
from dara.analysis.view import CURVE, Estimate, Mark, Setting, View
from dara.config import Experiment, MethodEntry


class RunsView:
    """The runs of one experiment; see `View`.

    Args:
        frames: the tidy frames of the preset by name.
        experiment: the experiment with the preset's methods.
        methods: all rows of config/methods.yaml.
        source: name of the preset.

    Raises:
        ValueError: the preset has no run of the experiment, a method has no row, or runs that are not alike would be
            pooled.
    """

    def __init__(self, frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry], source: str) -> None:
        self.frames = frames
        self.source = source
        self.experiment = experiment
        self.entries = methods
        self.selection: Selection = select(frames, experiment, methods)
        self.methods = self.selection.methods
        self.settings: tuple[Setting, ...] = self.selection.settings
        self._by_metric: dict[str, pd.DataFrame] = {}

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The frame checkpoint_scores with the names of metrics that a view knows (`scores_of`)."""
        return scores_of(self.frames)

    def setting_label(self, setting: Setting) -> str:
        """`model, G=4`, and the engine where there are several; empty where there is one setting."""
        return self.selection.setting_label(setting)

    def method_label(self, method: str) -> str:
        """The method's label, with the number of its runs where planned ones are missing."""
        return self.selection.method_label(method)

    def budget(self, setting: Setting) -> int:
        """Planned steps; those of the longest run where no crossing was analysed."""
        planned = self.selection.of_setting(self._own("crossings"), setting)["budget"]
        ran = self.selection.of_setting(self.selection.planned, setting)["steps"]
        return int(planned.max() if len(planned) else ran.max())

    def planned(self, method: str, setting: Setting) -> list[int | None]:
        """The seed of each planned run, in order."""
        return [int(seed) for seed in self._planned(method, setting)["seed"]]

    def curve(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        """Median and quartiles over runs at each step (`CURVE`); a run that ended early counts at the steps it has."""
        return curve_over_runs(self._values(metric, method, setting))

    def curve_note(self, metric: str) -> str:
        """`median and quartiles over 5 runs`, or `over 3 to 5 runs` where some are missing or were not scored."""
        ids = set(self._rows_of_metric(metric)["run_id"])
        present = self.selection.present
        counts = present[present["run_id"].isin(ids)].groupby(["method", "model", "group_size", "engine"]).size()
        if counts.empty:
            return ""
        few, many = int(counts.min()), int(counts.max())
        if many == 1:
            return "one run"
        return f"median and quartiles over {many if few == many else f'{few} to {many}'} runs"

    def marks(
        self, kind: Literal["first", "stable"], reward: str, threshold: float, method: str, setting: Setting
    ) -> list[Mark]:
        """One mark a run that exists, in the order of seeds."""
        crossings = self._own("crossings")
        near = (crossings["reward"] == reward) & np.isclose(crossings["threshold"].astype(float), threshold)
        by_run = crossings[near].set_index("run_id")
        return [
            _mark(kind, int(run.seed), int(run.repeat), by_run.loc[run.run_id])
            for run in self._planned(method, setting).itertuples()
            if run.run_id in by_run.index
        ]

    def score(self, metric: str, method: str, setting: Setting, step: int | None) -> Estimate | None:
        """Mean over seeds with Student's t interval, without diverged runs; one run (and `base`) has none."""
        rows = self._values(metric, method, setting)
        present = self.selection.present
        diverged = present.loc[present["outcome"] == "diverged", "run_id"]
        rows = rows[(rows["step"] == step) & ~rows["run_id"].isin(diverged)]
        values = np.sort(rows["value"].to_numpy(float))
        if not len(values):
            return None
        interval = t_interval(values)
        questions = [None, None]
        if len(rows) == 1 and "low" in rows.columns:  # a score, not a training metric
            questions = [None if pd.isna(rows[end].iloc[0]) else float(rows[end].iloc[0]) for end in ("low", "high")]
        return Estimate(
            value=float(values.mean()),
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            sd=float(values.std(ddof=1)) if len(values) > 1 else None,
            n=len(values),
            question_low=questions[0],
            question_high=questions[1],
        )

    def last_step(self, metrics: Sequence[str], setting: Setting) -> int | None:
        """The last step at which every completed run that was scored has all of these scores."""
        present = self.selection.present
        completed = present.loc[present["outcome"] != "diverged", "run_id"]
        scores = self.selection.of_setting(self.scores, setting)
        scores = scores[scores["run_id"].isin(completed) & scores["metric"].isin(list(metrics))]
        steps = [set(found) for _, found in scores.groupby(["run_id", "metric"])["step"]]
        common = set.intersection(*steps) if steps else set()
        return int(max(common)) if common else None

    def notes(self, metrics: Sequence[str] | None = None, steps: Sequence[int | None] | None = None) -> list[str]:
        """The seeds, and which planned runs are missing or diverged; the same whatever is shown."""
        return run_notes(self.selection)

    def _own(self, name: str) -> pd.DataFrame:
        frame = self.frames[name]
        return frame[frame["run_id"].isin(self.selection.present["run_id"])]

    def _planned(self, method: str, setting: Setting) -> pd.DataFrame:
        planned = self.selection.of_setting(self.selection.planned, setting)
        return planned[planned["method"] == method]

    def _rows_of_metric(self, metric: str) -> pd.DataFrame:
        """Rows of a training metric, or of a score where no run has such a training metric; kept, as all curves ask."""
        if metric not in self._by_metric:
            self._by_metric[metric] = self._find_metric(metric)
        return self._by_metric[metric]

    def _find_metric(self, metric: str) -> pd.DataFrame:
        for frame in (self.frames["training_curves"], self.scores):
            rows = frame[(frame["metric"] == metric) & frame["run_id"].isin(self.selection.present["run_id"])]
            if len(rows):
                return rows
        return rows

    def _values(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        if method == BASE:
            scores = self.scores
            mine = (scores["task"] == self.experiment.task) & (scores["model"] == setting.model)
            return scores[mine & (scores["method"] == BASE) & (scores["metric"] == metric)]
        rows = self.selection.of_setting(self._rows_of_metric(metric), setting)
        return rows[rows["method"] == method]


def curve_over_runs(rows: pd.DataFrame, value: str = "value") -> pd.DataFrame:
    """Median and quartiles of the column `value` at each step: `CURVE`, indexed by step.

    `rows` has one row a run and step. A run that ended early counts at the steps it has; undefined values (NaN) do not.
    """
    defined = rows.dropna(subset=[value]).sort_values(["step", "run_id"])
    found = {
        int(step): (*quartiles(values.to_numpy(dtype=float)), len(values))
        for step, values in defined.groupby("step")[value]
    }
    steps = pd.Index(list(found), dtype=int, name="step")
    return pd.DataFrame(list(found.values()), index=steps, columns=list(CURVE), dtype=float)


def no_numbers(view: View, what: str) -> ValueError:
    """The error of a source that lacks what a table or figure shows."""
    of_runs = ""
    if isinstance(view, RunsView):
        of_runs = f" for its {len(view.selection.present)} finished of {len(view.selection.planned)} planned runs"
    return ValueError(f"{view.source}: experiment {view.experiment.experiment}: no {what}{of_runs}")


def _mark(kind: Literal["first", "stable"], seed: int, repeat: int, row: pd.Series) -> Mark:
    budget = int(row["budget"])
    if kind == "first":
        step = None if pd.isna(row["first_step"]) else int(row["first_step"])
        return Mark(seed, step, "not_reached" if step is None else "reached", None, budget, repeat)
    step, pending = (None if pd.isna(row[name]) else int(row[name]) for name in ("stable_step", "pending_step"))
    return Mark(seed, step, row["status"], pending, budget, repeat)
