"""Numbers of a preset's own runs, computed from its tidy frames.

Both tables and figures use this view, so that they show the same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

import numpy as np
import pandas as pd

from dara.analysis.crossing import CrossingEvent, Kind
from dara.analysis.frames import MISSING
from dara.analysis.intervals import t_interval
from dara.analysis.names import BASE, ENGINES, VALIDATION
from dara.analysis.view import CURVE, Estimate, Setting, View, common_steps, first_event, known, shown_methods
from dara.config import Experiment, MethodEntry
from dara.registries import names_of

Frames = Mapping[str, pd.DataFrame]

RUN = ("seed", "repeat")
"""Columns that distinguish the runs of one method in one setting, and pair them with those of another method."""

_SETTING = ["model", "group_size", "engine"]


@dataclass(frozen=True)
class Selection:
    """The runs of one experiment: `planned` has one row a planned run, `present` those that exist (origin not missing).

    Runs of one method in one setting differ only in seed or repeat.
    """

    planned: pd.DataFrame
    present: pd.DataFrame

    def of_setting(self, frame: pd.DataFrame, setting: Setting) -> pd.DataFrame:
        """Return the rows of `frame` of one setting; frames without an engine have that of their run in `planned`."""
        mine = (frame["model"] == setting.model) & (frame["group_size"] == setting.group_size)
        if "engine" in frame.columns:
            return frame[mine & (frame["engine"] == setting.engine)]
        trained = self.planned.loc[self.planned["engine"] == setting.engine, "run_id"]
        return frame[mine & frame["run_id"].isin(trained)]


def _once(find: Callable[..., pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """Keep what a method gives: a report asks for the same rows hundreds of times."""

    @wraps(find)
    def found(view: RunsView, *arguments: Any) -> pd.DataFrame:
        key = (find.__name__, *arguments)
        if key not in view.found:
            view.found[key] = find(view, *arguments)
        return view.found[key]

    return found


class RunsView(View):
    """The runs of one experiment; see `View`.

    It is made of the tidy frames of the preset by name, the experiment with the preset's methods, all rows of
    config/methods.yaml, and the name of the preset. Raise ValueError if the preset has no run of the experiment, a
    method has no row, or runs that are not alike would be pooled.
    """

    def __init__(self, frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry], source: str) -> None:
        self.frames = frames
        self.source = source
        self.experiment = experiment
        self.entries = methods
        planned = _planned_runs(frames, experiment)
        self.methods = shown_methods(experiment, methods, sorted(set(planned["method"])))
        present = planned[planned["origin"] != MISSING]
        self.selection = Selection(planned, present)
        self.diverged = set(present.loc[present["outcome"] == "diverged", "run_id"])
        settings = planned[_SETTING].drop_duplicates().itertuples(index=False, name=None)
        self.settings = tuple(Setting(str(model), int(size), str(engine)) for model, size, engine in settings)
        self.coverage = f" for its {len(present)} finished of {len(planned)} planned runs"
        self.found: dict[tuple[Any, ...], pd.DataFrame] = {}

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Return the frame checkpoint_scores, with metric names that mark scores on validation rows.

        A reward on validation rows is `validation/<reward>`; the others are the task's benchmark's, which is one. Raise
        ValueError for a metric of two benchmarks at one step of a run.
        """
        scores = self.frames["checkpoint_scores"]
        validated = scores["benchmark"].isin(names_of("validation"))
        scores = scores.assign(metric=scores["metric"].where(~validated, VALIDATION + scores["metric"]))
        twice = scores[scores.duplicated(["run_id", "metric", "step"], keep=False)]
        if len(twice):
            row = twice.iloc[0]
            benchmarks = ", ".join(sorted(set(twice.loc[twice["metric"] == row["metric"], "benchmark"])))
            raise ValueError(
                f"checkpoint_scores: run {row['run_id']} has {row['metric']} of {benchmarks}; scores of a task come "
                "from one benchmark, and from its validation rows"
            )
        return scores

    def rows(self, name: str, what: str, **among: Sequence[str]) -> pd.DataFrame:
        """Return the rows of frame `name` for runs that exist, with column values among the given ones.

        Raise ValueError if there is no such row; `what` names them.
        """
        chosen = self._present(self.frames[name])
        for column, values in among.items():
            chosen = chosen[chosen[column].isin(values)]
        if chosen.empty:
            raise ValueError(f"experiment {self.experiment.experiment}: no {what} in the frame `{name}`{self.coverage}")
        return chosen

    def method_label(self, method: str) -> str:
        runs = self.selection.planned, self.selection.present
        planned, present = ((each["method"] == method).sum() for each in runs)
        label = self.methods[method].label
        if present == 0:
            return f"{label} (no runs)"
        return label if present == planned else f"{label} ({present} of {planned} runs)"

    def budget(self, setting: Setting) -> int:
        """Return the planned steps, or those of the longest run if no crossing was analysed."""
        planned = self.selection.of_setting(self._present(self.frames["crossings"]), setting)["budget"]
        ran = self.selection.of_setting(self.selection.planned, setting)["steps"]
        return int(planned.max() if len(planned) else ran.max())

    def planned(self, method: str, setting: Setting) -> list[int | None]:
        return [int(seed) for seed in self._planned(method, setting)["seed"]]

    @_once
    def curve(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        """Return median and quartiles over runs at each step; a run that ended early counts at the steps it has."""
        return curve_over_runs(self._values(metric, method, setting))

    def curve_note(self, metric: str) -> str:
        """Return `median and quartiles over 5 runs`, or `over 3 to 5 runs` if some are missing or were not scored."""
        present = self.selection.present
        present = present[present["run_id"].isin(self._rows_of_metric(metric)["run_id"].unique())]
        if present.empty:
            return ""
        counts = present.groupby(["method", *_SETTING]).size()
        few, many = int(counts.min()), int(counts.max())
        if many == 1:
            return "one run"
        return f"median and quartiles over {many if few == many else f'{few} to {many}'} runs"

    def marks(self, kind: Kind, reward: str, threshold: float, method: str, setting: Setting) -> list[CrossingEvent]:
        """Return one crossing for each run that exists, in the order of seeds."""
        crossings, events = self._crossings(reward, threshold), []
        for run in self._planned(method, setting).itertuples():
            if run.run_id in crossings.index:
                row = crossings.loc[run.run_id]
                seed, step, budget = int(run.seed), known(row[f"{kind}_step"]), int(row["budget"])
                event = first_event(seed, step, budget, int(run.repeat))
                if kind == "stable":
                    event = replace(event, status=row["status"], pending_step=known(row["pending_step"]))
                events.append(event)
        return events

    def score(self, metric: str, method: str, setting: Setting, step: int | None) -> Estimate | None:
        """Return the mean over seeds that did not diverge, with Student's t interval; one run (and `base`) has none."""
        rows = self._values(metric, method, setting)
        rows = rows[(rows["step"] == step) & ~rows["run_id"].isin(self.diverged)]
        values = np.sort(rows["value"].to_numpy(float))
        if not len(values):
            return None
        if len(values) == 1:
            score = "low" in rows.columns  # training metrics have no interval over questions
            ends = (known(rows[end].iloc[0], float) for end in ("low", "high")) if score else (None, None)
            return Estimate(float(values[0]), None, None, None, 1, *ends)
        interval = t_interval(values)
        return Estimate(float(values.mean()), interval.low, interval.high, float(values.std(ddof=1)), len(values))

    def last_step(self, metrics: Sequence[str], setting: Setting) -> int | None:
        """Return the last step at which every completed run that was scored has all of these scores."""
        scores = self._present(self.selection.of_setting(self.scores, setting))
        scores = scores[~scores["run_id"].isin(self.diverged) & scores["metric"].isin(list(metrics))]
        return max(common_steps(found for _, found in scores.groupby(["run_id", "metric"])["step"]), default=None)

    def notes(self, metrics: Sequence[str] | None = None, steps: Sequence[int | None] | None = None) -> list[str]:
        """Return the seeds, and which planned runs are missing or diverged; the same for all metrics and steps."""
        planned = self.selection.planned
        notes = [
            f"Seeds: {', '.join(map(str, sorted(planned['seed'].unique())))}.",
            self._note("Missing", planned[planned["origin"] == MISSING]),
            self._note("Diverged", planned[planned["run_id"].isin(self.diverged)]),
        ]
        if unplanned := [entry.label for method, entry in self.methods.items() if method not in set(planned["method"])]:
            notes.append(f"Without any run: {', '.join(unplanned)}.")
        return notes

    def _note(self, title: str, runs: pd.DataFrame) -> str:
        """Return `Diverged: GRPO seed 101 (repeat 1) at step 23.`; a missing run has no step."""
        parts = []
        for run in runs.itertuples():
            repeat = f" (repeat {run.repeat})" if run.repeat else ""
            setting = self.setting_label(Setting(run.model, run.group_size, run.engine))
            where = f" ({setting})" if setting else ""
            at = "" if run.origin == MISSING else f" at step {run.steps}"
            parts.append(f"{self.methods[run.method].label} seed {run.seed}{repeat}{where}{at}")
        return f"{title}: {', '.join(parts) or 'none'}."

    def _present(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of runs that exist."""
        return frame[frame["run_id"].isin(self.selection.present["run_id"])]

    @_once
    def _crossings(self, reward: str, threshold: float) -> pd.DataFrame:
        """Return the crossings of one threshold, by run id."""
        crossings = self._present(self.frames["crossings"])
        near = (crossings["reward"] == reward) & np.isclose(crossings["threshold"].astype(float), threshold)
        return crossings[near].set_index("run_id")

    @_once
    def _planned(self, method: str, setting: Setting) -> pd.DataFrame:
        planned = self.selection.of_setting(self.selection.planned, setting)
        return planned[planned["method"] == method]

    @_once
    def _rows_of_metric(self, metric: str) -> pd.DataFrame:
        """Return the rows of a training metric, or else of a score."""
        curves = self.frames["training_curves"]
        rows = self._present(curves[curves["metric"] == metric])
        return rows if len(rows) else self._present(self.scores[self.scores["metric"] == metric])

    @_once
    def _values(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        if method == BASE:
            scores = self.scores[self.scores["task"] == self.experiment.task]
            return scores[
                (scores["metric"] == metric) & (scores["method"] == BASE) & (scores["model"] == setting.model)
            ]
        rows = self.selection.of_setting(self._rows_of_metric(metric), setting)
        return rows[rows["method"] == method]


def curve_over_runs(rows: pd.DataFrame, value: str = "value") -> pd.DataFrame:
    """Return median and quartiles of the column `value` at each step: `CURVE`, indexed by step.

    `rows` has one row a run and step. A run that ended early counts at the steps it has; undefined values (NaN) do not.
    """
    defined = rows.dropna(subset=[value]).sort_values(["step", "run_id"])
    found = {
        int(step): (*np.quantile(values.to_numpy(dtype=float), [0.25, 0.5, 0.75]), len(values))
        for step, values in defined.groupby("step")[value]
    }
    steps = pd.Index(list(found), dtype=int, name="step")
    return pd.DataFrame(list(found.values()), index=steps, columns=list(CURVE), dtype=float)


def _planned_runs(frames: Frames, experiment: Experiment) -> pd.DataFrame:
    """Return the experiment's rows of the frame `runs`, sorted by setting, seed and repeat.

    Raise ValueError if there are none, or if two runs share method, setting, seed and repeat.
    """
    runs = frames["runs"]
    planned = runs[runs["experiment"] == experiment.experiment]
    if planned.empty:
        raise ValueError(
            f"experiment {experiment.experiment}: the frame `runs` has no run of it (it has "
            f"{sorted(runs['experiment'].unique())}); add the experiment to the preset and collect again"
        )
    ranks = {engine: rank for rank, engine in enumerate(ENGINES)}
    planned = planned.sort_values(
        [*_SETTING, *RUN], kind="stable", key=lambda column: column.map(ranks) if column.name == "engine" else column
    ).reset_index(drop=True)
    key = [*_SETTING, "method", *RUN]
    repeated = planned[planned.duplicated(key, keep=False)]
    if len(repeated):
        first, second = repeated.sort_values([*key, "run_id"])["run_id"].iloc[:2]
        raise ValueError(
            f"experiment {experiment.experiment}: {first} and {second} are two runs of one method, model, group size, "
            "engine and seed, so they differ in another setting and cannot be pooled; give the other one an experiment "
            "of its own"
        )
    return planned
