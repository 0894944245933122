"""Table: held-out scores at the last step that all runs have, and training rewards up to that step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from dara.analysis.summary import summarise_seeds
from dara.analysis.tables.cells import MISSING, T_NOTE, with_interval
from dara.analysis.tables.render import Table
from dara.analysis.tables.selection import Frames, Selection, Setting, base_rows, rows_of, run_notes, select
from dara.config import Experiment, MethodEntry

METRICS = {
    "tool_calling": {"average_accuracy": "Average Accuracy (%)", "average_format": "Average Format (%)"},
    "math": {
        "acc": "Acc (%)",
        "exceed": "Exceed (%)",
        "joint": "Joint (%)",
        "strict": "strict (%)",
        "math_verify": "math-verify (%)",
    },
}
LAST_STEPS = 10
"""Training steps in the mean of a training reward, up to the step whose checkpoints are compared."""

RAW = ("t_low", "t_high", "bootstrap_low", "bootstrap_high")


def build(frames: Frames, experiment: Experiment, methods: Mapping[str, MethodEntry]) -> Table:
    """One row a (setting, method), the base model first; mean over seeds with the t-interval, and the number of runs.

    Diverged runs are not in it, and are named in the notes. Raw columns, scores as fractions: for each metric and each
    train_<reward> the mean, and _t_low, _t_high, _bootstrap_low, _bootstrap_high, _n. ValueError where nothing
    was scored.
    """
    selection = select(frames, experiment, methods)
    metrics = METRICS[experiment.task]
    completed = selection.present[selection.present["outcome"] != "diverged"]
    scores = rows_of(selection, frames, "checkpoint_scores", "checkpoint score", metric=list(metrics))
    scores = scores[scores["run_id"].isin(completed["run_id"])]
    base = base_rows(selection, frames, metrics)
    no_rewards = pd.DataFrame({"run_id": [], "metric": [], "value": []})  # a base model was not trained
    rows, steps = [], {}
    for setting in selection.settings:
        here = selection.of_setting(scores, setting)
        steps[setting] = last_common_step(here)
        start = base[base["model"] == setting[0]]
        runs = selection.of_setting(completed, setting)
        rows.append(_row(selection, setting, "Base", start, 0, no_rewards))
        for method in selection.methods:
            mine = runs[runs["method"] == method]["run_id"]
            planned = selection.of_setting(selection.planned, setting)["method"].eq(method).sum()
            rewards = _training_rewards(frames, mine, experiment.rewards, steps[setting])
            chosen = here[(here["method"] == method) & (here["step"] == steps[setting])]
            label = selection.methods[method].label
            rows.append(_row(selection, setting, label, chosen, steps[setting], rewards, int(planned)))
    display = [*(["Setting"] if len(selection.settings) > 1 else []), "Method", "Step", "Runs", *metrics.values()]
    display += [f"Train {reward}" for reward in experiment.rewards]
    return Table(
        pd.DataFrame(rows),
        f"Held-out scores at equal steps ({experiment.experiment})",
        _notes(selection, steps),
        display,
    )


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


def _training_rewards(frames: Frames, run_ids: pd.Series, rewards: tuple[str, ...], step: int) -> pd.DataFrame:
    """The mean of each reward over the last LAST_STEPS steps up to `step`: columns run_id, metric, value."""
    curves = frames["training_curves"]
    window = (curves["step"] <= step) & (curves["step"] > step - LAST_STEPS) & curves["run_id"].isin(run_ids)
    named = curves["metric"].isin([f"reward/{reward}/mean" for reward in rewards])
    return curves[window & named].groupby(["run_id", "metric"])["value"].mean().reset_index()


def _row(
    selection: Selection,
    setting: Setting,
    label: str,
    scores: pd.DataFrame,
    step: int,
    rewards: pd.DataFrame,
    planned: int | None = None,
) -> dict[str, object]:
    """One row, of `scores` and `rewards` with one row a run and metric; `planned` is None for a base model."""
    n = scores["run_id"].nunique()
    row: dict[str, object] = {"Setting": selection.setting_label(setting), "Method": label, "Step": str(step)}
    row["Runs"] = ("1" if planned is None else f"{n} of {planned}") if n else "missing"
    values = pd.concat([scores, rewards], ignore_index=True)
    summary = summarise_seeds(values, "final_scores", by=("metric",)).set_index("metric") if len(values) else None
    for metric, title in METRICS[selection.experiment.task].items():
        row |= _cells(title, metric, metric, summary, digits=1, scale=100)
    for reward in selection.experiment.rewards:
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


def _notes(selection: Selection, steps: dict[Setting, int]) -> list[str]:
    last = {selection.setting_label(setting): step for setting, step in steps.items()}
    where = "; ".join(f"{label}: {step}" if label else str(step) for label, step in last.items())
    return [
        f"Mean over seeds at the last step that all completed runs have ({where}); "
        "the base model at step 0, scored once.",
        T_NOTE,
        "Scores in percent (CSV: fractions). Train: mean training reward over the last "
        f"{min(LAST_STEPS, *steps.values())} steps up to that step, in the reward's own unit.",
        "Diverged runs are left out of the means.",
        *run_notes(selection),
    ]
