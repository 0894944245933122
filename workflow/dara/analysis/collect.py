"""Tidy frames from the files of runs and of their scores."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dara.analysis.crossing import first_crossing, stable_crossing
from dara.analysis.energy import EPS, TAU, Energies, active_density, energies, group_z_scores
from dara.analysis.frames import MISSING, joined_frame, rows_to_frame, write_frame
from dara.analysis.records import RecordError, Run, read_metrics, read_rewards, read_run
from dara.analysis.scores import Evaluations, ScoreDirectories, checkpoint_scores_frame, score_intervals_frame

log = logging.getLogger(__name__)

Experiments = Mapping[str, Sequence[str]]
Thresholds = Mapping[str, Mapping[str, Sequence[float]]]


def write_frames(
    run_dirs: Mapping[str, Path],
    score_dirs: ScoreDirectories,
    experiments: Experiments,
    thresholds: Thresholds,
    evaluations: Evaluations,
    score_steps: Mapping[str, Sequence[int]],
    out: Path,
    cached: Collection[str] = (),
) -> None:
    """Write the frames (`frames.FRAMES`) as CSV files into `out`.

    Args:
        run_dirs: for each run id, the directory with its spec.json; without a manifest.json the run counts as missing.
        score_dirs: for each run id and each base id, the directories of its evaluations, by benchmark.
        experiments: for each experiment, the run ids of its matrix. A run may be in several.
        thresholds: for each experiment, the levels whose crossing is reported, by reward.
        evaluations: for each run id and each base id, the steps at which it was evaluated, by benchmark.
        score_steps: for each experiment, the authors' steps at which its scores are compared.
        out: directory of the frames.
        cached: ids of runs whose results were not trained here now.

    Raises:
        RecordError: a file of a run or of its scores is missing, damaged, or belongs to something else.
    """
    runs = _read_runs(run_dirs, experiments)
    levels = _thresholds_of_runs(experiments, thresholds)
    finished = [run for run in runs.values() if run.outcome]
    made = {
        "runs": lambda: rows_to_frame(_run_rows(runs, experiments, cached), "runs"),
        "training_curves": lambda: joined_frame(map(_curve_columns, finished), "training_curves"),
        "crossings": lambda: rows_to_frame(
            [row for run in finished for row in _crossing_rows(run, levels)], "crossings"
        ),
        "energies": lambda: joined_frame([_energy_columns(run) for run in finished if run.steps], "energies"),
        "checkpoint_scores": lambda: checkpoint_scores_frame(runs.values(), score_dirs, evaluations),
        "score_intervals": lambda: score_intervals_frame(runs, score_dirs, experiments, evaluations, score_steps),
    }
    for name, make in made.items():
        write_frame(make(), name, out / f"{name}.csv")


def _read_runs(run_dirs: Mapping[str, Path], experiments: Experiments) -> dict[str, Run]:
    runs = {}
    for name in sorted({name for names in experiments.values() for name in names}):
        if name not in run_dirs:
            raise RecordError(f"run {name} is planned by an experiment, but its directory is not given")
        run = runs[name] = read_run(name, Path(run_dirs[name]))
        if run.outcome != "completed":
            log.warning("run %s: %s after %d of %d steps", name, run.outcome or MISSING, run.steps, run.spec.steps)
    return runs


def _run_rows(runs: Mapping[str, Run], experiments: Experiments, cached: Collection[str]) -> list[dict]:
    """Return a row for each experiment and run, including missing and diverged runs."""
    rows = []
    for experiment, names in experiments.items():
        for run in (runs[name] for name in names):
            row = {"repeat": run.spec.repeat, "steps": run.steps, "engine": run.spec.engine}
            row["outcome"] = run.outcome or MISSING
            row["origin"] = MISSING if run.outcome is None else "cached" if run.run_id in cached else "trained"
            rows.append({"experiment": experiment} | run.identity | row)
    return rows


def _curve_columns(run: Run) -> dict[str, Any]:
    """Return the columns of the training curves of one run, metric by metric; a value may be an empty cell."""
    metrics = read_metrics(run)
    steps, names = np.array(metrics.index), np.array(metrics.columns, dtype=object)
    values = metrics.to_numpy().ravel(order="F")
    places = {"step": np.tile(steps, len(names)), "metric": np.repeat(names, len(steps))}
    return run.identity | places | {"value": np.where(np.isfinite(values), values, np.nan)}


def _thresholds_of_runs(experiments: Experiments, thresholds: Thresholds) -> dict[str, dict[str, set[float]]]:
    """Return for each run and reward the thresholds of all experiments that have the run."""
    levels: dict[str, dict[str, set[float]]] = {}
    for experiment, names in experiments.items():
        if experiment not in thresholds:
            raise RecordError(f"experiment {experiment}: its thresholds are not given")
        for name in names:
            mine = levels.setdefault(name, {})
            for reward, values in thresholds[experiment].items():
                mine.setdefault(reward, set()).update(values)
    return levels


def _crossing_rows(run: Run, levels: Mapping[str, Mapping[str, Collection[float]]]) -> list[dict]:
    """Return a row for each reward and threshold; a run that diverged is judged by its steps before."""
    metrics = read_metrics(run)
    rows = []
    for reward, thresholds in levels[run.run_id].items():
        if reward not in run.spec.rewards:
            raise RecordError(
                f"run {run.run_id}: a threshold of {reward!r}, which is not one of its rewards {list(run.spec.rewards)}"
            )
        series = _logged(metrics, "reward/{}/mean", [reward], run)[:, 0]
        series = series[np.logical_and.accumulate(np.isfinite(series))]
        for threshold in thresholds:
            stable = stable_crossing(series, threshold)
            rows.append(
                run.identity
                | {"reward": reward, "threshold": threshold, "budget": run.spec.steps}
                | {"first_step": first_crossing(series, threshold), "stable_step": stable.step}
                | {"status": stable.status, "pending_step": stable.pending_step}
            )
    return rows


def _energy_columns(run: Run) -> dict[str, Any]:
    """Return the columns of one run, step by step.

    Densities and energies of the z-scores are computed from the raw rewards and checked against the log. Weights and
    contributions come from the log, which has the values that the run used (a method may have a state, or its file may
    have changed).
    """
    params, names = run.spec.method.params, run.spec.rewards
    z, metrics = group_z_scores(read_rewards(run), params.get("eps", EPS)), read_metrics(run)
    density, before = active_density(z, params.get("tau", TAU)), energies(z)
    recomputed = {"density/{}": density, "energy/{}/pos": before.positive, "energy/{}/neg": before.negative}
    for part, values in recomputed.items():
        logged = _logged(metrics, part, names, run)
        differs = np.argwhere(np.isfinite(logged) & ~np.isclose(values, logged, rtol=1e-6, atol=1e-6))
        if len(differs):
            step, k = differs[0]
            raise RecordError(
                f"{run.directory}: step {step + 1}: {part.format(names[k])} is {logged[step, k]} in metrics.jsonl, "
                f"but {values[step, k]} from rewards.npz; the two files are not of one run"
            )
    after = Energies(*(_logged(metrics, f"energy_contributed/{{}}/{sign}", names, run) for sign in ("pos", "neg")))
    columns = {
        "density": density,
        "weight": _logged(metrics, "weight/{}", names, run),
        "energy_pos": before.positive,
        "energy_neg": before.negative,
        "contributed_pos": after.positive,
        "contributed_neg": after.negative,
        "share_before": before.share,
        "share_after": after.share,
    }
    places = {"step": np.repeat(np.array(metrics.index), len(names)), "reward": np.tile(names, run.steps)}
    finite = {name: np.where(np.isfinite(values), values, np.nan).ravel() for name, values in columns.items()}
    return run.identity | places | finite


def _logged(metrics: pd.DataFrame, part: str, rewards: Sequence[str], run: Run) -> np.ndarray:
    """Return a metric of each reward, (steps, K), as the trainer logged it."""
    names = [part.format(reward) for reward in rewards]
    if missing := [name for name in names if len(metrics) and name not in metrics]:
        raise RecordError(f"{run.directory / 'metrics.jsonl'}: the metric {missing[0]} is missing")
    return metrics.reindex(columns=names).to_numpy(dtype=np.float64)
