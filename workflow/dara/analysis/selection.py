"""What an experiment shows: its own runs, its methods in their order, and what is missing.

Tables and figures both go through here, so that they never disagree about which runs they speak of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from dara.analysis.names import BASE, ENGINES, VALIDATION
from dara.analysis.view import Setting, name_of
from dara.benchmarks import names_of
from dara.config import Experiment, MethodEntry

Frames = Mapping[str, pd.DataFrame]

RUN = ("seed", "repeat")
"""What tells the runs of one method in one setting apart, and pairs them with those of another method."""


@dataclass(frozen=True)
class Selection:
    """The runs of one experiment.

    `planned` has one row a planned run, `present` those of them that exist (origin is not "missing"); `methods` is
    in the order of the experiment, and may hold a method without a run. Runs of one method in one of `settings` differ
    in seed or repeat, and in nothing else.
    """

    experiment: Experiment
    planned: pd.DataFrame
    present: pd.DataFrame
    methods: dict[str, MethodEntry]
    settings: tuple[Setting, ...]

    def of_setting(self, frame: pd.DataFrame, setting: Setting) -> pd.DataFrame:
        """The rows of `frame` that belong to one setting; the frames of runs know their engine from `planned`."""
        mine = (frame["model"] == setting.model) & (frame["group_size"] == setting.group_size)
        if "engine" in frame.columns:
            return frame[mine & (frame["engine"] == setting.engine)]
        trained = self.planned.loc[self.planned["engine"] == setting.engine, "run_id"]
        return frame[mine & frame["run_id"].isin(trained)]

    def setting_label(self, setting: Setting) -> str:
        """`model, G=4`, and the engine where there are several; empty where the experiment has one setting."""
        return name_of(setting, self.settings) if len(self.settings) > 1 else ""

    def method_label(self, method: str) -> str:
        """The method's label, with the number of its runs where some of the planned ones are missing."""
        planned = int((self.planned["method"] == method).sum())
        present = int((self.present["method"] == method).sum())
        label = self.methods[method].label
        if present == 0:
            return f"{label} (no runs)"
        return label if present == planned else f"{label} ({present} of {planned} runs)"


def select(frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> Selection:
    """The experiment's own runs, from the frame `runs`.

    Raises:
        ValueError: there is none, a method is unknown, or two runs of a method differ in more than seed and repeat.
    """
    runs = frames["runs"]
    planned = runs[runs["experiment"] == experiment.experiment]
    if planned.empty:
        raise ValueError(
            f"experiment {experiment.experiment}: the frame `runs` has no run of it (it has "
            f"{sorted(runs['experiment'].unique())}); add the experiment to the preset and collect again"
        )
    listed = list(methods) if experiment.methods == "all" else list(experiment.methods)
    others = sorted(set(planned["method"]) - set(listed))
    for method in [*listed, *others]:
        if method not in methods:
            raise ValueError(
                f"experiment {experiment.experiment}: method {method!r} has no row in the methods "
                f"({', '.join(methods)}); add it with a label and a color to config/methods.yaml"
            )
    order = ["model", "group_size", "engine", *RUN]
    planned = planned.sort_values(order, kind="stable", key=_ranked).reset_index(drop=True)
    _check_apart(planned, experiment)
    settings = planned[["model", "group_size", "engine"]].drop_duplicates().itertuples(index=False, name=None)
    return Selection(
        experiment=experiment,
        planned=planned,
        present=planned[planned["origin"] != "missing"],
        methods={method: methods[method] for method in [*listed, *others]},
        settings=tuple(Setting(str(model), int(size), str(engine)) for model, size, engine in settings),
    )


def _ranked(column: pd.Series) -> pd.Series:
    """A column as it is sorted: engines as in ENGINES."""
    return column.map({name: rank for rank, name in enumerate(ENGINES)}) if column.name == "engine" else column


def _check_apart(planned: pd.DataFrame, experiment: Experiment) -> None:
    """Runs that count as seeds of one thing must be that."""
    key = ["model", "group_size", "engine", "method", *RUN]
    repeated = planned[planned.duplicated(key, keep=False)]
    if len(repeated):
        first, second = repeated.sort_values([*key, "run_id"])["run_id"].iloc[:2]
        raise ValueError(
            f"experiment {experiment.experiment}: {first} and {second} are two runs of one method, model, group size, "
            "engine and seed, so they differ in another setting and cannot be pooled; give the other one an experiment "
            "of its own"
        )


def scores_of(frames: Frames) -> pd.DataFrame:
    """The frame checkpoint_scores, in which the name of a metric says its benchmark.

    A reward on validation rows is `validation/<reward>`; the others are the task's benchmark's, which is one.

    Raises:
        ValueError: a metric of two benchmarks at one step of a run.
    """
    scores = frames["checkpoint_scores"]
    validated = scores["benchmark"].isin(names_of("validation"))
    scores = scores.assign(metric=scores["metric"].where(~validated, VALIDATION + scores["metric"]))
    twice = scores[scores.duplicated(["run_id", "metric", "step"], keep=False)]
    if len(twice):
        row = twice.iloc[0]
        benchmarks = ", ".join(sorted(set(twice.loc[twice["metric"] == row["metric"], "benchmark"])))
        raise ValueError(
            f"checkpoint_scores: run {row['run_id']} has {row['metric']} of {benchmarks}; scores of a task come from "
            "one benchmark, and from its validation rows"
        )
    return scores


def rows_of(selection: Selection, frames: Frames, name: str, what: str, **equal: object) -> pd.DataFrame:
    """The rows of frame `name` for the selection's runs with the given column values; ValueError if none is left."""
    frame = frames[name]
    chosen = frame[frame["run_id"].isin(selection.present["run_id"])]
    for column, value in equal.items():
        chosen = chosen[chosen[column].isin(value)] if isinstance(value, list) else chosen[chosen[column] == value]
    if chosen.empty:
        raise ValueError(
            f"experiment {selection.experiment.experiment}: no {what} in the frame `{name}` for its "
            f"{len(selection.present)} finished of {len(selection.planned)} planned runs"
        )
    return chosen


def base_rows(selection: Selection, scores: pd.DataFrame, metrics: Iterable[str]) -> pd.DataFrame:
    """Of `scores_of`, those at step 0 of the base models that the runs start from; empty where none was scored."""
    models = {setting.model for setting in selection.settings}
    chosen = (scores["method"] == BASE) & (scores["task"] == selection.experiment.task) & scores["model"].isin(models)
    return scores[chosen & scores["metric"].isin(list(metrics))]


def run_name(run: object) -> str:
    """`seed 101`, or `seed 101 (repeat 1)`, of a row of the frame `runs` (named tuple)."""
    repeat = f" (repeat {run.repeat})" if run.repeat else ""
    return f"seed {run.seed}{repeat}"


def run_notes(selection: Selection) -> list[str]:
    """What stands under every table: the seeds, which planned runs are missing, and which ended early."""
    seeds = [str(seed) for seed in sorted(selection.planned["seed"].unique())]
    notes = [f"Seeds: {', '.join(seeds)}."]
    present, missing = selection.present, selection.planned[selection.planned["origin"] == "missing"]
    notes.append(_note(selection, "Missing", missing))
    notes.append(_note(selection, "Diverged", present[present["outcome"] == "diverged"]))
    unplanned = [m for m in selection.methods if m not in set(selection.planned["method"])]
    if unplanned:
        names = ", ".join(selection.methods[method].label for method in unplanned)
        notes.append(f"Without any run: {names}.")
    return notes


def _note(selection: Selection, title: str, runs: pd.DataFrame) -> str:
    """`Diverged: GRPO seed 101 at step 23.`; a missing run has no step."""
    parts = []
    for run in runs.itertuples():
        setting = selection.setting_label(Setting(run.model, run.group_size, run.engine))
        where = f" ({setting})" if setting else ""
        at = "" if run.origin == "missing" else f" at step {run.steps}"
        parts.append(f"{selection.methods[run.method].label} {run_name(run)}{where}{at}")
    return f"{title}: {', '.join(parts) if parts else 'none'}."
