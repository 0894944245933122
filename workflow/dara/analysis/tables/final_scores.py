"""Table: held-out scores at the last step that was scored of all runs, and training rewards up to that step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from dara.analysis.intervals import summarise_seeds
from dara.analysis.names import SCORES
from dara.analysis.tables.at_step import hidden_note, last_steps_note
from dara.analysis.tables.cells import MISSING, T_NOTE, with_interval
from dara.analysis.tables.render import Table
from dara.analysis.view import Setting, View, missing_data
from dara.analysis.view_runs import RunsView

LAST_STEPS = 10
"""Training steps in the mean of a training reward, up to the step whose checkpoints are compared."""

RAW = ("t_low", "t_high", "bootstrap_low", "bootstrap_high")
NO_REWARDS = pd.DataFrame({"run_id": [], "metric": [], "value": []})
"""A base model was not trained."""


def build(view: View) -> Table:
    """One row a (setting, method), the base model first; mean over seeds with the t-interval, and the number of runs.

    Diverged runs are not in it, and are named in the notes; so is a setting without any score. Raw columns, scores as
    fractions: for each metric and each train_<reward> the mean, and _t_low, _t_high, _bootstrap_low, _bootstrap_high,
    _n. ValueError where nothing was scored, or for a source without single runs (its scores at one step are the tables
    tool_scores and math_scores).
    """
    if not isinstance(view, RunsView):
        raise ValueError(
            f"{view.source}: experiment {view.experiment.experiment}: final_scores needs the scores of single runs; "
            "the tables tool_scores and math_scores show what was published"
        )
    selection, metrics = view.selection, metrics_of(view)
    scores = view.rows("checkpoint_scores", "checkpoint score", metric=list(metrics))
    completed = selection.present.loc[selection.present["outcome"] != "diverged", "run_id"]
    scores = scores[scores["run_id"].isin(completed)]
    base = view.base_rows(metrics)
    rows, steps = [], {}
    for setting in view.settings:
        here = selection.of_setting(scores, setting)
        if here.empty:  # none of its runs exists, or all of them diverged
            continue
        steps[setting] = last_common_step(here)
        rows.append(_row(view, setting, "Base", base[base["model"] == setting.model], 0, NO_REWARDS))
        rows += _rows(view, setting, here[here["step"] == steps[setting]], steps[setting])
    if not rows:
        raise missing_data(view, "checkpoint score of a run that did not diverge")
    trained = [f"Train {reward}" for reward in view.experiment.rewards]
    return _table(view, rows, [*metrics.values(), *trained], _notes(view, steps))


def metrics_of(view: View) -> dict[str, str]:
    """The scores of the view's task -> header."""
    return {metric: f"{name} (%)" for metric, name in SCORES[view.experiment.task].items()}


def _rows(view: RunsView, setting: Setting, scores: pd.DataFrame, step: int) -> list[dict[str, object]]:
    """One row a method, from the scores of its completed runs at a step."""
    runs = view.selection.of_setting(view.selection.present, setting)
    runs = runs[runs["outcome"] != "diverged"]
    rows = []
    for method, entry in view.methods.items():
        mine = runs.loc[runs["method"] == method, "run_id"]
        rewards = _training_rewards(view.frames, mine, view.experiment.rewards, step)
        planned = len(view.planned(method, setting))
        rows.append(_row(view, setting, entry.label, scores[scores["method"] == method], step, rewards, planned))
    return rows


def _table(view: View, rows: list[dict[str, object]], columns: list[str], notes: list[str]) -> Table:
    title = f"Held-out scores at equal steps ({view.experiment.experiment})"
    setting = ["Setting"] if len(view.settings) > 1 else []
    return Table(pd.DataFrame(rows), title, notes, [*setting, "Method", "Step", "Runs", *columns])


def last_common_step(scores: pd.DataFrame) -> int:
    """The last step at which every run has a score. ValueError where the runs share no step.

    `scores` has columns run_id and step; runs that stop early are not comparable at their own ends.
    """
    steps = [set(group) for _, group in scores.groupby("run_id")["step"]]
    common = set.intersection(*steps) if steps else set()
    if not common:
        raise ValueError(
            f"the {len(steps)} runs of {sorted(scores['method'].unique())} share no scored step; "
            "score the same checkpoints of all"
        )
    return int(max(common))


def _training_rewards(
    frames: Mapping[str, pd.DataFrame], run_ids: pd.Series, rewards: tuple[str, ...], step: int
) -> pd.DataFrame:
    """The mean of each reward over the last LAST_STEPS steps up to `step`: columns run_id, metric, value."""
    curves = frames["training_curves"]
    window = (curves["step"] <= step) & (curves["step"] > step - LAST_STEPS) & curves["run_id"].isin(run_ids)
    named = curves["metric"].isin([f"reward/{reward}/mean" for reward in rewards])
    return curves[window & named].groupby(["run_id", "metric"])["value"].mean().reset_index()


def _row(
    view: RunsView,
    setting: Setting,
    label: str,
    scores: pd.DataFrame,
    step: int,
    rewards: pd.DataFrame,
    planned: int | None = None,
) -> dict[str, object]:
    """One row, of `scores` and `rewards` with one row a run and metric; `planned` is None for a base model."""
    n = scores["run_id"].nunique()
    row: dict[str, object] = {"Setting": view.setting_label(setting), "Method": label, "Step": str(step)}
    row["Runs"] = ("1" if planned is None else f"{n} of {planned}") if n else "missing"
    values = pd.concat([scores, rewards], ignore_index=True)
    summary = summarise_seeds(values, "final_scores", by=("metric",)).set_index("metric") if len(values) else None
    for metric, title in metrics_of(view).items():
        row |= _cells(title, metric, metric, summary, digits=1, scale=100)
    for reward in view.experiment.rewards:
        row |= _cells(f"Train {reward}", f"train_{reward}", f"reward/{reward}/mean", summary, digits=3, scale=1)
    return row


def _cells(title: str, raw: str, metric: str, summary: pd.DataFrame | None, *, digits: int, scale: float) -> dict:
    """The display cell `title` and the raw columns of one metric, a row of `summarise_seeds`."""
    if summary is None or metric not in summary.index:
        return {title: MISSING, raw: math.nan} | {f"{raw}_{name}": math.nan for name in RAW} | {f"{raw}_n": 0}
    found = summary.loc[metric]
    shown = with_interval(found["mean"], found["t_low"], found["t_high"], digits, scale)
    return (
        {title: shown, raw: found["mean"]}
        | {f"{raw}_{name}": found[name] for name in RAW}
        | {f"{raw}_n": int(found["n"])}
    )


def _notes(view: RunsView, steps: dict[Setting, int]) -> list[str]:
    return [
        last_steps_note(view, steps),
        *hidden_note(view, steps),
        T_NOTE,
        "Scores in percent (CSV: fractions). Train: mean training reward over the last "
        f"{min(LAST_STEPS, *steps.values())} steps up to that step, in the reward's own unit.",
        "Diverged runs are left out of the means.",
        *view.notes(),
    ]
