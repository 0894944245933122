"""Table: the settings of an experiment: the authors' own, or those of a preset."""

from __future__ import annotations

import re

import pandas as pd

from dara.analysis.paper_numbers import SETTING
from dara.analysis.tables.render import Table
from dara.analysis.tables.rows import is_published, published_rows
from dara.analysis.view import View, missing_data
from dara.config import DataSpec, Matrix, OwnData, Preset, TaskSettings
from dara.specs import checkpoint_steps

ALL = "all"

Settings = dict[tuple[str, str], tuple[str, str]]
"""(setting, its subject) -> (value, remark); the names are those of results/published/data/hyperparameters.csv."""


def build(view: View, preset: Preset | None = None) -> Table:
    """Return one row a setting of the view's experiment; raw columns: setting, value and whom it is for (as text).

    `preset` has the settings of our runs; the published source needs none. Raise ValueError if a source has no
    settings.
    """
    rows = [
        {"Setting": _shown(name), "For": whom, "Value": value, "Remark": remark, "setting": name}
        for (name, whom), (value, remark) in settings_of(view, preset).items()
    ]
    frame = pd.DataFrame(rows)
    columns = ["Setting", "Value"]
    columns[1:1] = ["For"] if frame["For"].ne("").any() else []
    columns += ["Remark"] if frame["Remark"].ne("").any() else []
    title = f"Settings ({view.experiment.experiment}, {view.source})"
    return Table(frame, title, _notes(view, frame), columns)


def build_side_by_side(ours: View, published: View, preset: Preset | None = None) -> Table:
    """Return one row a setting that both sources have under one name; raw columns: setting."""
    mine, theirs = settings_of(ours, preset), settings_of(published)
    rows = [
        {"Setting": _shown(name), "For": whom, "Ours": mine[name, whom][0], "Published": value, "setting": name}
        for (name, whom), (value, _) in theirs.items()
        if (name, whom) in mine
    ]
    if not rows:
        raise missing_data(ours, "setting that the authors published too")
    columns = ["Setting", "For", "Ours", "Published"]
    if not any(row["For"] for row in rows):
        columns.remove("For")
    notes = [f"Ours: preset {ours.source}. Settings that only one source has are in the tables of each."]
    return Table(pd.DataFrame(rows), f"Settings, ours and published ({ours.experiment.experiment})", notes, columns)


def settings_of(view: View, preset: Preset | None = None) -> Settings:
    """Return the settings of a view's experiment, in order. Raise ValueError without settings."""
    if is_published(view):
        return _published(view)
    if preset is None or view.experiment.experiment not in preset.experiments:
        given = "no preset was given" if preset is None else f"the preset {preset.preset} has no such experiment"
        raise missing_data(view, f"settings of our runs: they stand in their preset, and {given}")
    return _ours(view, preset)


def _published(view: View) -> Settings:
    rows = published_rows(view)
    rows = rows[(rows["unit"] == SETTING) & (rows["experiment"] == view.experiment.experiment)]
    rows = rows[rows["method"].isin([ALL, *view.methods])]
    if rows.empty:
        raise missing_data(view, "settings that were published of it and its methods")
    whom: dict[tuple[str, str, str], list[str]] = {}
    for row in rows.itertuples():
        value, remark = (row.note, "") if pd.isna(row.value) else (_number(row.value), row.note)
        parts = [] if row.model == ALL else [row.model]
        parts += [] if row.method == ALL else [view.methods[row.method].label]
        parts += [] if pd.isna(row.group_size) else [f"G={row.group_size}"]
        whom.setdefault((row.metric, value, remark), []).append(" ".join(parts))
    return {(name, ", ".join(names)): (value, remark) for (name, value, remark), names in whom.items()}


def _ours(view: View, preset: Preset) -> Settings:
    experiment, matrix = view.experiment, preset.experiments[view.experiment.experiment]
    task = preset.tasks[experiment.task]
    steps = matrix.steps or task.steps
    benchmark = task.benchmark
    flat: dict[str, object] = {
        "models": ", ".join(matrix.models),
        **_data(task),
        "rewards": ", ".join(experiment.rewards),
        "seeds": " ".join(map(str, matrix.seeds)),
        "steps": steps,
        "checkpoint_every": task.checkpoint_every,
        "group_size": ", ".join(map(str, matrix.group_sizes)),
        **_batch(task.prompts_per_step, matrix),
        **_optimisation(task, matrix),
        **dict(task.sampling),
        "evaluation/benchmark": benchmark.name,
        "evaluation/samples": benchmark.samples,
        **{f"evaluation/{name}": value for name, value in benchmark.sampling},
        "evaluation/seed": benchmark.seed,
        "evaluation/max_context_tokens": benchmark.max_context,
        "evaluation/length_limit_tokens": benchmark.length_limit,
        "evaluation/at_steps": " ".join(map(str, matrix.evaluate_at or checkpoint_steps(steps, task.checkpoint_every))),
    }
    for reward, params in task.reward_params.items():
        if reward in experiment.rewards:
            unit = "_tokens" if experiment.task == "math" else ""
            flat |= {f"{reward}_{name}{unit}": value for name, value in params.items()}
    remarks = {"kl_reward_coefficient": "only GRPO feels it"} if task.kl.placement == "reward_grpo" else {}
    known = {name: value for name, value in flat.items() if value is not None}
    settings: Settings = {(name, ""): (_text(value), remarks.get(name, "")) for name, value in known.items()}
    # Methods with the same value of a parameter share a row.
    params: dict[tuple[str, str], list[str]] = {}
    for entry in view.methods.values():
        for name, value in entry.params.items():
            params.setdefault((name, _text(value)), []).append(entry.label)
    return settings | {(name, ", ".join(labels)): (value, "") for (name, value), labels in params.items()}


def _data(task: TaskSettings) -> dict[str, object]:
    """Return the training data: generated problems, or a published data set."""
    data = task.data
    if isinstance(data, DataSpec):
        rows = {"train_rows": data.train_rows, "held_out_rows": data.held_out_rows}
        return {"dataset": f"{data.source} (seed {data.seed})", **rows}
    if isinstance(data, OwnData):
        return {"dataset": data.source, "max_prompt_tokens": data.max_prompt_tokens}
    rows = {"validation_rows": data.validation_rows, "max_prompt_tokens": data.max_prompt_tokens}
    return {"dataset": f"{data.source} at {data.revision[:7]}", **rows}


def _optimisation(task: TaskSettings, matrix: Matrix) -> dict[str, object]:
    """Return the optimiser and the loss; None for unset values; of the task, only differences from its default."""
    optimizer, kl = task.optimizer, task.kl
    flat: dict[str, object] = {
        "updates_per_step": optimizer.updates_per_step,
        "learning_rate": matrix.learning_rate or optimizer.learning_rate,
        "lr_schedule": "constant",
        "optimizer": f"AdamW, betas {optimizer.betas[0]:g} and {optimizer.betas[1]:g}",
        **{name: value for name, value in optimizer if name not in ("betas", "learning_rate", "updates_per_step")},
    }
    if kl.placement != "none":
        flat[f"kl_{'loss' if kl.placement == 'loss' else 'reward'}_coefficient"] = kl.coefficient
    flat["candidate_groups"] = task.filter.candidate_prompts if task.filter else None
    for name in ("entropy_coefficient", "final_normalization", "precision", "sampler_seed"):
        if getattr(task, name) != TaskSettings.model_fields[name].default:
            flat[name] = getattr(task, name)
    return flat


def _batch(prompts: int, matrix: Matrix) -> dict[str, object]:
    """Return prompts and responses of a step, for each group size if the number of prompts depends on it."""
    total = matrix.responses_per_step
    each = [total // size if total else prompts for size in matrix.group_sizes]
    responses = [prompts * size for prompts, size in zip(each, matrix.group_sizes, strict=True)]
    return {
        "prompts_per_step": ", ".join(map(str, dict.fromkeys(each))),
        "responses_per_step": ", ".join(map(str, dict.fromkeys(responses))),
    }


def _shown(name: str) -> str:
    return name.replace("/", ": ").replace("_", " ")


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " and ".join(_text(one) for one in value)
    return _number(value) if isinstance(value, (int, float)) else str(value)


def _number(value: float) -> str:
    """Return a number as text: `2048`, `0.001`, `1e-06`."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"


def _notes(view: View, frame: pd.DataFrame) -> list[str]:
    if is_published(view):
        text = " ".join(frame["Value"] + " " + frame["Remark"])
        numbers = sorted({int(number) for number in re.findall(r"Contradiction (\d+)", text)})
        named = f" Contradictions explained there: {', '.join(map(str, numbers))}." if numbers else ""
        return [f"What the authors' repository and page say (docs/published.md).{named}"]
    return [
        f"Settings of the preset {view.source} (config/presets/); the base models are in config/models.yaml. A row for "
        "some methods is a parameter of those."
    ]
