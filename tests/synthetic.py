"""Made-up frames for tests of tables and figures: logistic learning curves with noise, as small models give them.

The numbers are invented; nothing of them is a result.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from dara.analysis.compare import compared_pairs
from dara.analysis.crossing import first_crossing, stable_crossing
from dara.analysis.frames import rows_to_frame
from dara.analysis.view_runs import RunsView
from dara.config import Experiment, MethodEntry

METHODS = {
    "grpo": MethodEntry(label="GRPO", color="#7f7f7f"),
    "gdpo": MethodEntry(label="GDPO", color="#2ca02c"),
    "dvao": MethodEntry(label="DVAO", color="#ff7f0e"),
    "gd2po_hard": MethodEntry(label="GD2PO-Hard", color="#9467bd"),
    "dara_asym": MethodEntry(label="DARA-Asym", color="#d62728"),
    "dara_sym": MethodEntry(label="DARA-Sym", color="#1f77b4"),
}
COMPARED = ("grpo", "gdpo", "dara_sym", "dara_asym")
SPEED = {"grpo": 0.55, "gdpo": 0.9, "dvao": 0.7, "gd2po_hard": 0.8, "dara_asym": 1.15, "dara_sym": 1.25}
ENERGY_FACTORS = {
    "dara_sym": lambda weight: (weight**2, weight**2),
    "dara_asym": lambda weight: (weight**2, 1.0),
    "grpo": lambda weight: (0.5, 0.5 / weight),
}
"""Method -> what its weight does to the energies of positive and of negative advantages; 1 for others."""


class Task(NamedTuple):
    """How the sparse reward of a task is learned: from `start` to `end`, half way at step `middle` at speed 1."""

    experiment: str
    benchmark: str
    steps: int
    sparse: str
    thresholds: tuple[float, ...]
    start: float
    end: float
    middle: float
    slope: float
    correctness: tuple[float, float]
    scores: dict[str, tuple[float, float]]


TASKS = {
    "tool_calling": Task(
        "tool_main", "laptop_tools", 80, "format", (0.5, 0.8, 0.9), 0.017, 0.975, 21.0, 0.28, (0.9, 2.6),
        {"average_accuracy": (0.05, 0.83), "average_format": (0.03, 0.97)},
    ),
    "math": Task(
        "math_main", "laptop_math", 110, "length", (0.8, 0.9, 0.95, 0.99), 0.58, 0.997, 12.0, 0.1, (0.67, 0.8),
        {"acc": (0.66, 0.79), "exceed": (0.43, 0.02), "joint": (0.4, 0.78), "strict": (0.66, 0.78),
         "math_verify": (0.66, 0.79)},
    ),
}  # fmt: skip


def experiment(
    task: str = "tool_calling", methods: tuple[str, ...] | str = COMPARED, name: str | None = None
) -> Experiment:
    """An experiment of `task` with every figure and table."""
    made = TASKS[task]
    return Experiment(
        experiment=name or made.experiment,
        question="Is the sparse reward learned in fewer steps?",
        task=task,
        rewards=("correctness", made.sparse),
        sparse_reward=made.sparse,
        methods=methods,
        thresholds={made.sparse: made.thresholds},
        tables={},
        figures={},
    )


def view(
    frames: dict[str, pd.DataFrame], asked: Experiment | None = None, methods: dict[str, MethodEntry] = METHODS
) -> RunsView:
    """The view of made-up frames, of the tool-calling experiment unless another is asked for."""
    return RunsView(frames, asked or experiment(), methods, "laptop")


def simulate(
    task: str = "tool_calling",
    *,
    steps: int | None = None,
    seeds: tuple[int, ...] = (100, 101, 102),
    methods: tuple[str, ...] = COMPARED,
    missing: tuple[tuple[str, int], ...] = (),
    diverged: dict[tuple[str, int], int] | None = None,
    settings: tuple[tuple[str, int], ...] = (("laptop-base", 4),),
) -> dict[str, pd.DataFrame]:
    """The frames of an experiment: `missing` runs were planned only, `diverged` ones end after the given step."""
    made = TASKS[task]
    steps = steps or made.steps
    names = ("runs", "training_curves", "checkpoint_scores", "crossings", "energies")
    rows: dict[str, list[dict]] = {name: [] for name in names}
    for (model, size), method, seed in product(settings, methods, seeds):
        run = {"run_id": f"{task}-{model}-{method}-g{size}-s{seed}-0badcafe", "task": task, "model": model}
        run |= {"method": method, "group_size": size, "seed": seed}
        gone, end = (method, seed) in missing, (diverged or {}).get((method, seed))
        state = {"experiment": made.experiment, "repeat": 0, "engine": "trl", "steps": 0 if gone else end or steps}
        state |= {"outcome": "missing" if gone else "diverged" if end else "completed"}
        rows["runs"].append(run | state | {"origin": "missing" if gone else "cached" if seed == 100 else "trained"})
        if not gone:
            _add_run(rows, made, run, steps, end)
    for model in dict(settings):
        base = {"run_id": f"base-{model}-0badcafe", "task": task, "model": model, "method": "base"}
        rows["checkpoint_scores"] += [
            base | _score(made, 0, metric, start) for metric, (start, _) in made.scores.items()
        ]
    frames = {name: rows_to_frame(found, name) for name, found in rows.items()}
    return frames | {"score_intervals": _score_intervals(frames)}


def _score_intervals(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Scores at each step that all runs have, and differences of methods, with made-up intervals."""
    runs, scores, rows = frames["runs"], frames["checkpoint_scores"], {}
    scores = scores.merge(runs.loc[runs["outcome"] == "completed", ["run_id", "experiment", "engine"]], on="run_id")
    steps = set.intersection(*(set(found) for _, found in scores.groupby("run_id")["step"])) if len(scores) else set()
    names = ["experiment", "model", "group_size", "engine", "step", "benchmark", "metric", "method"]
    for key, values in scores[scores["step"].isin(steps)].groupby(names)["value"]:
        row = dict(zip(names, key, strict=True)) | {"baseline": "", "n_seeds": len(values), "n_questions": 120}
        ends = dict.fromkeys(("t_low", "low"), values.min()) | dict.fromkeys(("t_high", "high"), values.max())
        rows[key] = row | {"value": values.mean()} | (ends if len(values) > 1 else {})
    differences = []
    for (method, baseline), (*place, mine) in product(compared_pairs(runs["method"].unique()), rows):
        if mine == method and (*place, baseline) in rows:
            row, other = rows[*place, mine], rows[*place, baseline]
            value = row["value"] - other["value"]
            ends = {"t_low": value - 0.1, "t_high": value + 0.1, "low": value - 0.05, "high": value + 0.05}
            ends = ends if row["n_seeds"] > 1 else {}
            differences.append(row | {"baseline": baseline, "value": value} | ends)
    return rows_to_frame([*rows.values(), *differences], "score_intervals")


def _add_run(rows: dict[str, list[dict]], task: Task, run: dict, steps: int, end: int | None) -> None:
    last = end or steps
    rng = np.random.default_rng([run["seed"], list(METHODS).index(run["method"]), run["group_size"]])
    speed = SPEED[run["method"]]
    middle = task.middle / speed * float(np.exp(rng.normal(0, 0.07)))
    progress = 1 / (1 + np.exp(-task.slope * speed * (np.arange(1, last + 1) - middle)))
    sparse = np.clip(task.start + (task.end - task.start) * progress + rng.normal(0, 0.012, last), 0, 1)
    low, high = task.correctness
    dense = low + (high - low) * (1 - np.exp(-np.arange(1, last + 1) / 25)) + rng.normal(0, 0.03, last)
    success = np.clip((dense + 3) / 6 if high > 1 else dense, 0, 1)
    for step, (mean, dense_mean, right) in enumerate(zip(sparse, dense, success, strict=True), start=1):
        means, shares = {task.sparse: mean, "correctness": dense_mean}, {task.sparse: mean, "correctness": right}
        _add_step(rows, run, step, means, shares, rng)
    for threshold in task.thresholds:
        stable = stable_crossing(sparse, threshold)
        found = {"first_step": first_crossing(sparse, threshold), "stable_step": stable.step, "status": stable.status}
        found |= {"pending_step": stable.pending_step, "budget": steps}
        rows["crossings"].append(run | {"reward": task.sparse, "threshold": threshold} | found)
    for step in sorted({*range(10, last + 1, 10), *([] if end else [steps])}):
        for metric, (start, stop) in task.scores.items():
            value = float(np.clip(start + (stop - start) * progress[step - 1] + rng.normal(0, 0.012), 0, 1))
            rows["checkpoint_scores"].append(run | _score(task, step, metric, value))


def _add_step(
    rows: dict[str, list[dict]], run: dict, step: int, means: dict[str, float], success: dict[str, float], rng
) -> None:
    """Add curves and energies of one step; `success`: the probability of each reward to be given."""
    G, B = run["group_size"], 32
    density = {k: float(rng.binomial(B, 1 - p**G - (1 - p) ** G)) / B for k, p in success.items()}
    weights = {k: 1.0 if d == 0 else min(5.0, float(np.sqrt(max(density.values()) / d))) for k, d in density.items()}
    curves = {"groups": float(B)} | {f"reward/{reward}/mean": float(mean) for reward, mean in means.items()}
    curves |= {f"density/{reward}": value for reward, value in density.items()}
    rows["training_curves"] += [run | {"step": step, "metric": name, "value": value} for name, value in curves.items()]
    energy = {k: np.array([1 - success[k], success[k]]) * d * B * (G - 1) for k, d in density.items()}
    factor = ENERGY_FACTORS.get(run["method"], lambda _: (1.0, 1.0))
    after = {reward: pair * factor(weights[reward]) for reward, pair in energy.items()}
    total, total_after = (sum(sum(pair) for pair in found.values()) for found in (energy, after))
    for reward, pair in energy.items():
        row = {"step": step, "reward": reward, "density": density[reward], "weight": weights[reward]}
        row |= dict(zip(("energy_pos", "energy_neg"), map(float, pair), strict=True))
        row |= dict(zip(("contributed_pos", "contributed_neg"), map(float, after[reward]), strict=True))
        row |= {"share_before": float(sum(pair) / total) if total else None}
        rows["energies"].append(
            run | row | {"share_after": float(sum(after[reward]) / total_after) if total_after else None}
        )


def _score(task: Task, step: int, metric: str, value: float) -> dict:
    found = {"step": step, "benchmark": task.benchmark, "metric": metric, "value": value, "low": max(0.0, value - 0.04)}
    return found | {"high": min(1.0, value + 0.04), "n_questions": 120}
