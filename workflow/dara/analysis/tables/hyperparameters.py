"""Table: the settings of an experiment: the authors' own, or those of a preset."""

from __future__ import annotations

import re

import pandas as pd

from dara.analysis.paper_numbers import SETTING
from dara.analysis.tables.at_step import is_published
from dara.analysis.tables.render import Table
from dara.analysis.tables.sources import published_rows
from dara.analysis.view import View, missing_data
from dara.config import Benchmark, DataSpec, HubData, Matrix, OwnData, Preset, TaskSettings
from dara.specs import checkpoint_steps

ALL = "all"

Settings = dict[tuple[str, str], tuple[str, str]]
"""(setting, what it is for) -> (value, remark); the names are those of results/published/data/hyperparameters.csv."""


def build(view: View, preset: Preset | None = None) -> Table:
    """One row a setting of the view's experiment.

    Args:
        view: any view of the experiment.
        preset: the preset with the settings of our runs; not needed for the published source.

    Returns:
        Raw columns: setting, for, value (as text).

    Raises:
        ValueError: the source has no settings of the experiment, or our preset is not given.
    """
    rows = [
        {"Setting": _shown(name), "For": whom, "Value": value, "Remark": remark, "setting": name}
        for (name, whom), (value, remark) in settings_of(view, preset).items()
    ]
    frame = pd.DataFrame(rows)
    columns = ["Setting", "Value"]
    columns[1:1] = ["For"] if frame["For"].ne("").any() else []
    columns += ["Remark"] if frame["Remark"].ne("").any() else []
    return Table(
        frame,
        f"Settings ({view.experiment.experiment}, {view.source})",
        _notes(view, frame),
        columns,
    )


def build_side_by_side(ours: View, published: View, preset: Preset | None = None) -> Table:
    """One row a setting that both sources have under one name; raw columns: setting."""
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
    notes = [
        f"Ours: preset {ours.source}. Settings that only one source has are in the tables of each.",
        "Interval: none, the table has no estimate.",
    ]
    return Table(pd.DataFrame(rows), f"Settings, ours and published ({ours.experiment.experiment})", notes, columns)


def settings_of(view: View, preset: Preset | None = None) -> Settings:
    """The settings of a view's experiment, in order. ValueError where there are none."""
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
    flat: dict[str, object] = {
        "models": ", ".join(matrix.models),
        **_data(task.data),
        "rewards": ", ".join(experiment.rewards),
        "seeds": " ".join(map(str, matrix.seeds)),
        "steps": steps,
        "checkpoint_every": task.checkpoint_every,
        "group_size": ", ".join(map(str, matrix.group_sizes)),
        **_batch(task.prompts_per_step, matrix),
        **_optimisation(task, matrix),
        "temperature": task.sampling.temperature,
        "top_p": task.sampling.top_p,
        "max_response_tokens": task.sampling.max_response_tokens,
        **_evaluation(task.benchmark),
        "evaluation/at_steps": " ".join(map(str, matrix.evaluate_at or checkpoint_steps(steps, task.checkpoint_every))),
    }
    for reward, params in task.reward_params.items():
        if reward in experiment.rewards:
            unit = "_tokens" if experiment.task == "math" else ""
            flat |= {f"{reward}_{name}{unit}": value for name, value in params.items()}
    remarks = {"kl_reward_coefficient": "only GRPO feels it"} if task.kl.placement == "reward_grpo" else {}
    settings: Settings = {(name, ""): (_text(value), remarks.get(name, "")) for name, value in flat.items()}
    params: dict[tuple[str, str], list[str]] = {}
    for entry in view.methods.values():
        for name, value in entry.params.items():
            params.setdefault((name, _text(value)), []).append(entry.label)
    return settings | {(name, ", ".join(labels)): (value, "") for (name, value), labels in params.items()}


def _data(data: DataSpec | HubData | OwnData) -> dict[str, object]:
    """What is trained on: generated problems, or a published data set."""
    if isinstance(data, DataSpec):
        rows = {"train_rows": data.train_rows, "held_out_rows": data.held_out_rows}
        return {"dataset": f"{data.source} (seed {data.seed})", **rows}
    if isinstance(data, OwnData):
        return {"dataset": data.source, "max_prompt_tokens": data.max_prompt_tokens}
    rows = {"validation_rows": data.validation_rows, "max_prompt_tokens": data.max_prompt_tokens}
    return {"dataset": f"{data.source} at {data.revision[:7]}", **rows}


def _optimisation(task: TaskSettings, matrix: Matrix) -> dict[str, object]:
    """The optimiser and the loss; what only larger trainings have (such as a KL penalty) where it is set."""
    optimizer, kl = task.optimizer, task.kl
    flat: dict[str, object] = {
        "updates_per_step": optimizer.updates_per_step,
        "learning_rate": matrix.learning_rate or optimizer.learning_rate,
        "lr_schedule": "constant",
        "optimizer": f"AdamW, betas {optimizer.betas[0]:g} and {optimizer.betas[1]:g}",
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "clip_low": optimizer.clip_low,
        "clip_high": optimizer.clip_high,
    }
    if optimizer.dual_clip is not None:
        flat["dual_clip"] = optimizer.dual_clip
    if kl.placement != "none":
        flat[f"kl_{'loss' if kl.placement == 'loss' else 'reward'}_coefficient"] = kl.coefficient
    if task.filter:
        flat["candidate_groups"] = task.filter.candidate_prompts
    for name in ("entropy_coefficient", "final_normalization", "precision", "sampler_seed"):
        if getattr(task, name) != TaskSettings.model_fields[name].default:
            flat[name] = getattr(task, name)
    return flat


def _evaluation(benchmark: Benchmark) -> dict[str, object]:
    flat: dict[str, object] = {
        "benchmark": benchmark.name,
        "samples": benchmark.samples,
        "temperature": benchmark.sampling.temperature,
        "top_p": benchmark.sampling.top_p,
        "max_response_tokens": benchmark.sampling.max_response_tokens,
        "seed": benchmark.seed,
    }
    if benchmark.max_context is not None:
        flat["max_context_tokens"] = benchmark.max_context
    if benchmark.length_limit is not None:
        flat["length_limit_tokens"] = benchmark.length_limit
    return {f"evaluation/{name}": value for name, value in flat.items()}


def _batch(prompts: int, matrix: Matrix) -> dict[str, object]:
    """Prompts and responses of a step; of each group size where it decides the number of prompts."""
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
    """`2048`, `0.001`, `1e-06`."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"


def _notes(view: View, frame: pd.DataFrame) -> list[str]:
    if is_published(view):
        text = " ".join(frame["Value"] + " " + frame["Remark"])
        numbers = sorted({int(number) for number in re.findall(r"Contradiction (\d+)", text)})
        named = f" Contradictions explained there: {', '.join(map(str, numbers))}." if numbers else ""
        return [
            f"What the authors' repository and page say (docs/published.md).{named}",
            "Interval: none, the table has no estimate. The seeds are a row of the table.",
        ]
    return [
        f"Settings of the preset {view.source} (config/presets/); the base models' shapes and warm starts stand in "
        "config/models.yaml. A row for some methods only is a parameter of those.",
        "Interval: none, the table has no estimate. The seeds are a row of the table.",
    ]
