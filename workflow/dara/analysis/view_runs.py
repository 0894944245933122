"""Numbers of a preset's own runs, computed from its tidy frames.

Both tables and figures use this view, so that they show the same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from dara.analysis.frames import MISSING
from dara.analysis.intervals import quartiles, t_interval
from dara.analysis.names import BASE, ENGINES, VALIDATION
from dara.analysis.view import (
    CURVE,
    Estimate,
    Kind,
    Mark,
    Setting,
    View,
    common_steps,
    first_event,
    known,
    shown_methods,
)
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


class RunsView(View):
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
        planned = _planned_runs(frames, experiment)
        self.methods = shown_methods(experiment, methods, sorted(set(planned["method"])))
        self.selection = Selection(planned, planned[planned["origin"] != MISSING])
        settings = planned[_SETTING].drop_duplicates().itertuples(index=False, name=None)
        self.settings = tuple(Setting(str(model), int(size), str(engine)) for model, size, engine in settings)
        self.coverage = f" for its {len(self.selection.present)} finished of {len(planned)} planned runs"
        self._found: dict[tuple[object, ...], pd.DataFrame] = {}

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Return the frame checkpoint_scores, with metric names that mark scores on validation rows.

        A reward on validation rows is `validation/<reward>`; the others are the task's benchmark's, which is one.

        Raises:
            ValueError: a metric of two benchmarks at one step of a run.
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

    def rows(self, name: str, what: str, **equal: object) -> pd.DataFrame:
        """Return the rows of frame `name` for runs that exist, with the given column values.

        checkpoint_scores are `scores`, which use the metric names of a view.

        Raises:
            ValueError: there is no such row; `what` names them.
        """
        chosen = self.scores if name == "checkpoint_scores" else self.frames[name]
        chosen = chosen[chosen["run_id"].isin(self.selection.present["run_id"])]
        for column, value in equal.items():
            chosen = chosen[chosen[column].isin(value)] if isinstance(value, list) else chosen[chosen[column] == value]
        if chosen.empty:
            raise ValueError(f"experiment {self.experiment.experiment}: no {what} in the frame `{name}`{self.coverage}")
        return chosen

    def base_rows(self, metrics: Iterable[str]) -> pd.DataFrame:
        """Return the scores at step 0 of the base models of the runs; empty if none was scored."""
        scores, models = self.scores, {setting.model for setting in self.settings}
        chosen = (scores["method"] == BASE) & (scores["task"] == self.experiment.task) & scores["model"].isin(models)
        return scores[chosen & scores["metric"].isin(list(metrics))]

    def method_label(self, method: str) -> str:
        planned, present = (
            (runs["method"] == method).sum() for runs in (self.selection.planned, self.selection.present)
        )
        label = self.methods[method].label
        if present == 0:
            return f"{label} (no runs)"
        return label if present == planned else f"{label} ({present} of {planned} runs)"

    def budget(self, setting: Setting) -> int:
        """Return the planned steps, or those of the longest run if no crossing was analysed."""
        planned = self.selection.of_setting(self._crossings, setting)["budget"]
        ran = self.selection.of_setting(self.selection.planned, setting)["steps"]
        return int(planned.max() if len(planned) else ran.max())

    def planned(self, method: str, setting: Setting) -> list[int | None]:
        return [int(seed) for seed in self._planned(method, setting)["seed"]]

    def curve(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        """Return median and quartiles over runs at each step; a run that ended early counts at the steps it has."""
        rows = self._values(metric, method, setting)
        return self._once(("curve", metric, method, setting), lambda: curve_over_runs(rows))

    def curve_note(self, metric: str) -> str:
        """Return `median and quartiles over 5 runs`, or `over 3 to 5 runs` if some are missing or were not scored."""
        ids = set(self._rows_of_metric(metric)["run_id"])
        present = self.selection.present
        counts = present[present["run_id"].isin(ids)].groupby(["method", *_SETTING]).size()
        if counts.empty:
            return ""
        few, many = int(counts.min()), int(counts.max())
        if many == 1:
            return "one run"
        return f"median and quartiles over {many if few == many else f'{few} to {many}'} runs"

    def marks(self, kind: Kind, reward: str, threshold: float, method: str, setting: Setting) -> list[Mark]:
        """Return one crossing for each run that exists, in the order of seeds."""
        by_run = self._once(("crossings", reward, threshold), lambda: self._crossings_of(reward, threshold))
        return [
            _event(kind, int(run.seed), int(run.repeat), by_run.loc[run.run_id])
            for run in self._planned(method, setting).itertuples()
            if run.run_id in by_run.index
        ]

    def score(self, metric: str, method: str, setting: Setting, step: int | None) -> Estimate | None:
        """Return the mean over seeds that did not diverge, with Student's t interval; one run (and `base`) has none."""
        rows = self._values(metric, method, setting)
        rows = rows[(rows["step"] == step) & ~rows["run_id"].isin(self._diverged)]
        values = np.sort(rows["value"].to_numpy(float))
        if not len(values):
            return None
        interval = t_interval(values)
        several, score = len(values) > 1, "low" in rows.columns  # training metrics have no interval over questions
        return Estimate(
            value=float(values.mean()),
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            sd=float(values.std(ddof=1)) if several else None,
            n=len(values),
            question_low=known(rows["low"].iloc[0], float) if score and not several else None,
            question_high=known(rows["high"].iloc[0], float) if score and not several else None,
        )

    def last_step(self, metrics: Sequence[str], setting: Setting) -> int | None:
        """Return the last step at which every completed run that was scored has all of these scores."""
        scores = self.selection.of_setting(self.scores, setting)
        completed = set(self.selection.present["run_id"]) - set(self._diverged)
        scores = scores[scores["run_id"].isin(completed) & scores["metric"].isin(list(metrics))]
        return max(common_steps(found for _, found in scores.groupby(["run_id", "metric"])["step"]), default=None)

    def notes(self, metrics: Sequence[str] | None = None, steps: Sequence[int | None] | None = None) -> list[str]:
        """Return the seeds, and which planned runs are missing or diverged; the same for all metrics and steps."""
        planned, present = self.selection.planned, self.selection.present
        notes = [
            f"Seeds: {', '.join(map(str, sorted(planned['seed'].unique())))}.",
            self._note("Missing", planned[planned["origin"] == MISSING]),
            self._note("Diverged", present[present["outcome"] == "diverged"]),
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

    def _once(self, key: tuple[object, ...], find: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Return what `find` gives, found once: a report asks for the same rows hundreds of times."""
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def _crossings_of(self, reward: str, threshold: float) -> pd.DataFrame:
        """Return the crossings of one threshold, by run id."""
        crossings = self._crossings
        near = (crossings["reward"] == reward) & np.isclose(crossings["threshold"].astype(float), threshold)
        return crossings[near].set_index("run_id")

    @cached_property
    def _crossings(self) -> pd.DataFrame:
        crossings = self.frames["crossings"]
        return crossings[crossings["run_id"].isin(self.selection.present["run_id"])]

    @cached_property
    def _diverged(self) -> pd.Series:
        present = self.selection.present
        return present.loc[present["outcome"] == "diverged", "run_id"]

    def _planned(self, method: str, setting: Setting) -> pd.DataFrame:
        return self._once(("planned", method, setting), lambda: self._of(self.selection.planned, method, setting))

    def _of(self, frame: pd.DataFrame, method: str, setting: Setting) -> pd.DataFrame:
        rows = self.selection.of_setting(frame, setting)
        return rows[rows["method"] == method]

    def _rows_of_metric(self, metric: str) -> pd.DataFrame:
        """Return the rows of a training metric, or else of a score."""
        return self._once(("metric", metric), lambda: self._find_metric(metric))

    def _find_metric(self, metric: str) -> pd.DataFrame:
        present = self.selection.present["run_id"]
        for frame in (self.frames["training_curves"], self.scores):
            rows = frame[(frame["metric"] == metric) & frame["run_id"].isin(present)]
            if len(rows):
                break
        return rows

    def _values(self, metric: str, method: str, setting: Setting) -> pd.DataFrame:
        if method == BASE:
            rows = self.base_rows([metric])
            return rows[rows["model"] == setting.model]
        rows = self._rows_of_metric(metric)
        return self._once(("values", metric, method, setting), lambda: self._of(rows, method, setting))


def curve_over_runs(rows: pd.DataFrame, value: str = "value") -> pd.DataFrame:
    """Return median and quartiles of the column `value` at each step: `CURVE`, indexed by step.

    `rows` has one row a run and step. A run that ended early counts at the steps it has; undefined values (NaN) do not.
    """
    defined = rows.dropna(subset=[value]).sort_values(["step", "run_id"])
    found = {
        int(step): (*quartiles(values.to_numpy(dtype=float)), len(values))
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
    order = [*_SETTING, *RUN]
    planned = planned.sort_values(
        order, kind="stable", key=lambda column: column.map(ranks) if column.name == "engine" else column
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


def _event(kind: Kind, seed: int, repeat: int, row: pd.Series) -> Mark:
    step, budget = known(row[f"{kind}_step"]), int(row["budget"])
    if kind == "first":
        return first_event(seed, step, budget, repeat)
    return Mark(seed, step, row["status"], known(row["pending_step"]), budget, repeat)
