"""Made-up frames for tests of tables and figures: logistic learning curves with noise, as small models give them.

The numbers are invented; nothing of them is a result.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Task:
    """How the sparse reward of a task is learned: from `start` to `end`, half way at step `middle` at speed 1."""

    name: str
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
        "tool_calling", "format", (0.5, 0.8, 0.9), 0.017, 0.975, 21.0, 0.28, (0.9, 2.6),
        {"average_accuracy": (0.05, 0.83), "average_format": (0.03, 0.97)},
    ),
    "math": Task(
        "math", "length", (0.8, 0.9, 0.95, 0.99), 0.58, 0.997, 12.0, 0.1, (0.67, 0.8),
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
        experiment=name or ("tool_main" if task == "tool_calling" else "math_main"),
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
    steps = steps or (80 if task == "tool_calling" else 110)
    rows: dict[str, list[dict]] = {
        name: [] for name in ("runs", "training_curves", "checkpoint_scores", "crossings", "energies")
    }
    for model, group_size in settings:
        for method in methods:
            for seed in seeds:
                run = {
                    "run_id": f"{task}-{model}-{method}-g{group_size}-s{seed}-0badcafe", "task": task, "model": model,
                    "method": method, "group_size": group_size, "seed": seed,
                }  # fmt: skip
                gone = (method, seed) in missing
                end = (diverged or {}).get((method, seed))
                _add_run(rows, TASKS[task], run, steps, gone, end)
        for metric, (start, _) in TASKS[task].scores.items():
            base = {
                "run_id": f"base-{model}-0badcafe",
                "task": task,
                "model": model,
                "method": "base",
                "group_size": None,
                "seed": None,
            }
            rows["checkpoint_scores"].append(base | _score(task, 0, metric, start))
    frames = {name: rows_to_frame(_unique(found), name) for name, found in rows.items()}
    return frames | {"score_intervals": _score_intervals(frames)}


def _score_intervals(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Scores at each step that all runs have, and differences of methods, with made-up intervals."""
    runs, scores, rows = frames["runs"], frames["checkpoint_scores"], []
    completed = runs.loc[runs["outcome"] == "completed", ["run_id", "experiment", "engine"]]
    scores = scores.merge(completed, on="run_id")
    steps = set.intersection(*(set(found) for _, found in scores.groupby("run_id")["step"])) if len(scores) else set()
    scores = scores[scores["step"].isin(steps)]
    names = ["experiment", "model", "group_size", "engine", "step", "benchmark", "metric", "method"]
    for key, values in scores.groupby(names)["value"]:
        row = dict(zip(names, key, strict=True)) | {"baseline": "", "n_seeds": len(values), "n_questions": 120}
        ends = dict.fromkeys(("t_low", "low"), values.min()) | dict.fromkeys(("t_high", "high"), values.max())
        rows.append(row | {"value": values.mean()} | (ends if len(values) > 1 else {}))
    keyed = {(row["model"], row["group_size"], row["step"], row["metric"], row["method"]): row for row in rows}
    pairs = compared_pairs(dict.fromkeys(row["method"] for row in rows))
    for (*place, method), row in keyed.items():
        for baseline in (other for mine, other in pairs if mine == method and (*place, other) in keyed):
            value = row["value"] - keyed[*place, baseline]["value"]
            ends = {
                name: value + shift
                for name, shift in zip(("t_low", "t_high", "low", "high"), (-0.1, 0.1, -0.05, 0.05), strict=True)
            }
            rows.append(row | {"baseline": baseline, "value": value} | (ends if row["n_seeds"] > 1 else {}))
    return rows_to_frame(rows, "score_intervals")


def _add_run(rows: dict[str, list[dict]], task: Task, run: dict, steps: int, gone: bool, end: int | None) -> None:
    outcome = "missing" if gone else "diverged" if end else "completed"
    name = "tool_main" if task.name == "tool_calling" else "math_main"
    origin = "missing" if gone else "cached" if run["seed"] == 100 else "trained"
    extra = {
        "experiment": name,
        "repeat": 0,
        "steps": 0 if gone else end or steps,
        "engine": "trl",
        "outcome": outcome,
        "origin": origin,
    }
    rows["runs"].append(run | extra)
    if gone:
        return
    rng = np.random.default_rng([run["seed"], list(METHODS).index(run["method"]), run["group_size"]])
    last = end or steps
    progress = _progress(task, run["method"], rng, last)
    sparse = np.clip(task.start + (task.end - task.start) * progress + rng.normal(0, 0.012, last), 0, 1)
    low, high = task.correctness
    dense = low + (high - low) * (1 - np.exp(-np.arange(1, last + 1) / 25)) + rng.normal(0, 0.03, last)
    _add_steps(rows, task, run, sparse, dense, high, rng)
    for threshold in task.thresholds:
        stable = stable_crossing(sparse, threshold)
        found = {"first_step": first_crossing(sparse, threshold), "stable_step": stable.step, "status": stable.status}
        found |= {"pending_step": stable.pending_step, "budget": steps}
        rows["crossings"].append(run | {"reward": task.sparse, "threshold": threshold} | found)
    for step in sorted({*range(10, last + 1, 10), *([] if end else [steps])}):
        for metric, (start, stop) in task.scores.items():
            value = float(np.clip(start + (stop - start) * progress[step - 1] + rng.normal(0, 0.012), 0, 1))
            rows["checkpoint_scores"].append(run | _score(task.name, step, metric, value))


def _progress(task: Task, method: str, rng: np.random.Generator, steps: int) -> np.ndarray:
    middle = task.middle / SPEED[method] * float(np.exp(rng.normal(0, 0.07)))
    return 1 / (1 + np.exp(-task.slope * SPEED[method] * (np.arange(1, steps + 1) - middle)))


def _add_steps(
    rows: dict[str, list[dict]], task: Task, run: dict, sparse: np.ndarray, dense: np.ndarray, top: float, rng
) -> None:
    G, B = run["group_size"], 32
    success = {
        task.sparse: sparse,
        "correctness": np.clip((dense + (3 if top > 1 else 0)) / (6 if top > 1 else 1), 0, 1),
    }
    for step in range(1, len(sparse) + 1):
        density = {
            k: float(rng.binomial(B, 1 - p[step - 1] ** G - (1 - p[step - 1]) ** G)) / B for k, p in success.items()
        }
        weights = {
            k: 1.0 if d == 0 else min(5.0, float(np.sqrt(max(density.values()) / d))) for k, d in density.items()
        }
        for reward, values in {task.sparse: sparse, "correctness": dense}.items():
            for metric, value in {
                f"reward/{reward}/mean": values[step - 1],
                f"density/{reward}": density[reward],
            }.items():
                rows["training_curves"].append(run | {"step": step, "metric": metric, "value": float(value)})
        energy = {
            k: (d * B * (G - 1) * (1 - success[k][step - 1]), d * B * (G - 1) * success[k][step - 1])
            for k, d in density.items()
        }
        rows["training_curves"].append(run | {"step": step, "metric": "groups", "value": float(B)})
        _add_energies(rows, run, step, density, weights, energy)


def _add_energies(
    rows: dict[str, list[dict]], run: dict, step: int, density: dict, weights: dict, energy: dict
) -> None:
    factors = {
        "dara_sym": lambda w: (w * w, w * w),
        "dara_asym": lambda w: (w * w, 1.0),
        "grpo": lambda w: (0.5, 0.5 / w),
    }
    factor = factors.get(run["method"], lambda w: (1.0, 1.0))
    after = {k: tuple(e * f for e, f in zip(pair, factor(weights[k]), strict=True)) for k, pair in energy.items()}
    total, total_after = (sum(sum(pair) for pair in found.values()) for found in (energy, after))
    for reward, pair in energy.items():
        rows["energies"].append(
            run
            | {"step": step, "reward": reward, "density": density[reward], "weight": weights[reward]}
            | {"energy_pos": pair[0], "energy_neg": pair[1]}
            | {"contributed_pos": after[reward][0], "contributed_neg": after[reward][1]}
            | {"share_before": sum(pair) / total if total else None}
            | {"share_after": sum(after[reward]) / total_after if total_after else None}
        )


def _score(task: str, step: int, metric: str, value: float) -> dict:
    name = "laptop_tools" if task == "tool_calling" else "laptop_math"
    found = {"step": step, "benchmark": name, "metric": metric, "value": value, "low": max(0.0, value - 0.04)}
    return found | {"high": min(1.0, value + 0.04), "n_questions": 120}


def _unique(rows: list[dict]) -> list[dict]:
    """Base models are the same for all group sizes: each row once."""
    return list({tuple(row.items()): row for row in rows}.values())
