"""Tables of an experiment's settings (the authors' own, or those of a preset), and of its planned runs."""

from __future__ import annotations

import re

import pandas as pd

from dara.analysis.tables.render import Table
from dara.analysis.view import View, missing_data
from dara.analysis.view_published import SETTING, PublishedView
from dara.analysis.view_runs import RunsView
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
        for (name, whom), (value, remark) in _settings(view, preset).items()
    ]
    columns = ["Setting", *(["For"] if any(row["For"] for row in rows) else []), "Value"]
    columns += ["Remark"] if any(row["Remark"] for row in rows) else []
    if isinstance(view, PublishedView):
        text = " ".join(f"{row['Value']} {row['Remark']}" for row in rows)
        numbers = sorted({int(number) for number in re.findall(r"Contradiction (\d+)", text)})
        named = f" Contradictions explained there: {', '.join(map(str, numbers))}." if numbers else ""
        note = f"What the authors' repository and page say (docs/published.md).{named}"
    else:
        note = (
            f"Settings of the preset {view.source} (config/presets/); the base models are in config/models.yaml. A row "
            "for some methods is a parameter of those."
        )
    return Table(pd.DataFrame(rows), f"Settings ({view.experiment.experiment}, {view.source})", [note], columns)


def build_side_by_side(ours: View, published: View, preset: Preset | None = None) -> Table:
    """Return one row a setting that both sources have under one name; raw columns: setting."""
    mine, theirs = _settings(ours, preset), _settings(published)
    rows = [
        {"Setting": _shown(name), "For": whom, "Ours": mine[name, whom][0], "Published": value, "setting": name}
        for (name, whom), (value, _) in theirs.items()
        if (name, whom) in mine
    ]
    if not rows:
        raise missing_data(ours, "setting that the authors published too")
    columns = ["Setting", *(["For"] if any(row["For"] for row in rows) else []), "Ours", "Published"]
    notes = [f"Ours: preset {ours.source}. Settings that only one source has are in the tables of each."]
    return Table(pd.DataFrame(rows), f"Settings, ours and published ({ours.experiment.experiment})", notes, columns)


def build_runs(view: View) -> Table:
    """Return one row a planned run, in the order of the methods; the raw columns are those of the frame `runs`.

    Raise ValueError for a source without own runs.
    """
    if not isinstance(view, RunsView):
        raise ValueError(
            f"{view.source}: experiment {view.experiment.experiment}: it has no runs to list, only numbers"
        )
    columns = {"Model": "model", "G": "group_size"}
    columns |= {name.capitalize(): name for name in ("seed", "repeat", "steps", "outcome", "origin", "engine")}
    columns |= {"Run": "run_id"}
    planned = view.selection.planned
    rows = []
    for method, entry in view.methods.items():
        for run in planned[planned["method"] == method].to_dict("records"):
            shown = {title: str(run[name]) for title, name in columns.items()}
            rows.append({"Method": entry.label, **shown, **run})
    notes = [
        "Steps: those the run has. Origin: trained here, taken from the cached results (same identity), or missing.",
        *view.notes(),
    ]
    return Table(pd.DataFrame(rows), f"Runs ({view.experiment.experiment})", notes, ["Method", *columns])


def _settings(view: View, preset: Preset | None = None) -> Settings:
    """Return the settings of a view's experiment, in order. Raise ValueError without settings."""
    if isinstance(view, PublishedView):
        return _published(view)
    if preset is None or view.experiment.experiment not in preset.experiments:
        given = "no preset was given" if preset is None else f"the preset {preset.preset} has no such experiment"
        raise missing_data(view, f"settings of our runs: they stand in their preset, and {given}")
    return _ours(view, preset)


def _published(view: PublishedView) -> Settings:
    rows = view.published
    rows = rows[(rows["unit"] == SETTING) & (rows["experiment"] == view.experiment.experiment)]
    rows = rows[rows["method"].isin([ALL, *view.methods])]
    if rows.empty:
        raise missing_data(view, "settings that were published of it and its methods")
    whom: dict[tuple[str, str, str], list[str]] = {}
    for row in rows.itertuples():
        value, remark = (row.note, "") if pd.isna(row.value) else (_text(row.value), row.note)
        parts = [] if row.model == ALL else [row.model]
        parts += [] if row.method == ALL else [view.methods[row.method].label]
        parts += [] if pd.isna(row.group_size) else [f"G={row.group_size}"]
        whom.setdefault((row.metric, value, remark), []).append(" ".join(parts))
    return {(name, ", ".join(names)): (value, remark) for (name, value, remark), names in whom.items()}


def _ours(view: View, preset: Preset) -> Settings:
    experiment, matrix = view.experiment, preset.experiments[view.experiment.experiment]
    task = preset.tasks[experiment.task]
    flat = _training(task, matrix, experiment.rewards) | _evaluation(task, matrix)
    for reward, params in task.reward_params.items():
        if reward in experiment.rewards:
            unit = "_tokens" if experiment.task == "math" else ""
            flat |= {f"{reward}_{name}{unit}": value for name, value in params.items()}
    remarks = {"kl_reward_coefficient": "only GRPO feels it"} if task.kl.placement == "reward_grpo" else {}
    settings: Settings = {
        (name, ""): (_text(value), remarks.get(name, "")) for name, value in flat.items() if value is not None
    }
    # Methods with the same value of a parameter share a row.
    params: dict[tuple[str, str], list[str]] = {}
    for entry in view.methods.values():
        for name, value in entry.params.items():
            params.setdefault((name, _text(value)), []).append(entry.label)
    return settings | {(name, ", ".join(labels)): (value, "") for (name, value), labels in params.items()}


def _training(task: TaskSettings, matrix: Matrix, rewards: tuple[str, ...]) -> dict[str, object]:
    """Return the settings of a training; None for unset values; of the task, only differences from its default."""
    data, optimizer, kl, sizes = task.data, task.optimizer, task.kl, matrix.group_sizes
    if isinstance(data, DataSpec):
        dataset, counts = f"{data.source} (seed {data.seed})", ("train_rows", "held_out_rows")
    elif isinstance(data, OwnData):
        dataset, counts = data.source, ("max_prompt_tokens",)
    else:
        dataset, counts = f"{data.source} at {data.revision[:7]}", ("validation_rows", "max_prompt_tokens")
    # The number of prompts may depend on the group size.
    total = matrix.responses_per_step
    prompts = {size: total // size if total else task.prompts_per_step for size in sizes}
    flat: dict[str, object] = {
        "models": ", ".join(matrix.models),
        "dataset": dataset,
        **{name: getattr(data, name) for name in counts},
        "rewards": ", ".join(rewards),
        "seeds": " ".join(map(str, matrix.seeds)),
        "steps": matrix.steps or task.steps,
        "checkpoint_every": task.checkpoint_every,
        "group_size": ", ".join(map(str, sizes)),
        "prompts_per_step": ", ".join(map(str, dict.fromkeys(prompts.values()))),
        "responses_per_step": ", ".join(map(str, dict.fromkeys(size * count for size, count in prompts.items()))),
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
    return flat | dict(task.sampling)


def _evaluation(task: TaskSettings, matrix: Matrix) -> dict[str, object]:
    benchmark, steps = task.benchmark, matrix.steps or task.steps
    return {
        "evaluation/benchmark": benchmark.name,
        "evaluation/samples": benchmark.samples,
        **{f"evaluation/{name}": value for name, value in benchmark.sampling},
        "evaluation/seed": benchmark.seed,
        "evaluation/max_context_tokens": benchmark.max_context,
        "evaluation/length_limit_tokens": benchmark.length_limit,
        "evaluation/at_steps": " ".join(map(str, matrix.evaluate_at or checkpoint_steps(steps, task.checkpoint_every))),
    }


def _shown(name: str) -> str:
    return name.replace("/", ": ").replace("_", " ")


def _text(value: object) -> str:
    """Return a value as text; a number as `2048`, `0.001`, `1e-06`."""
    if isinstance(value, (list, tuple)):
        return " and ".join(_text(one) for one in value)
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"
