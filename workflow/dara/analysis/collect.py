"""Tidy frames from the files of runs: `collect` makes two of them, `analyse` the others."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dara.analysis.crossing import first_crossing, stable_crossing
from dara.analysis.energy import EPS, TAU, active_density, energies, energy_share, group_z_scores
from dara.analysis.frames import MISSING, joined_frame, rows_to_frame, write_frame
from dara.analysis.records import RecordError, Run, read_metrics, read_rewards, read_run
from dara.analysis.score_files import Evaluations, ScoreDirectories
from dara.analysis.score_intervals import score_intervals_frame
from dara.analysis.scores import checkpoint_scores_frame

log = logging.getLogger(__name__)


def collect(
    run_dirs: Mapping[str, Path], experiments: Mapping[str, Sequence[str]], out: Path, *, cached: Collection[str] = ()
) -> None:
    """Write runs.csv and training_curves.csv into `out`.

    Args:
        run_dirs: for each run id, the directory with its spec.json; without a manifest.json the run counts as missing.
        experiments: for each experiment, the run ids of its matrix. A run may be in several.
        out: directory of the frames.
        cached: ids of runs whose results were not trained here now.

    Raises:
        RecordError: a file of a run is missing, damaged, or belongs to something else.
    """
    runs = _read_runs(run_dirs, experiments)
    write_frame(runs_frame(runs, experiments, cached), "runs", out / "runs.csv")
    write_frame(training_curves_frame(runs.values()), "training_curves", out / "training_curves.csv")


def analyse(
    run_dirs: Mapping[str, Path],
    score_dirs: ScoreDirectories,
    experiments: Mapping[str, Sequence[str]],
    thresholds: Mapping[str, Mapping[str, Sequence[float]]],
    evaluations: Evaluations,
    score_steps: Mapping[str, Sequence[int]],
    out: Path,
) -> None:
    """Write checkpoint_scores.csv, score_intervals.csv, crossings.csv and energies.csv into `out`.

    Args:
        run_dirs: as in `collect`.
        score_dirs: for each run id and each base id, the directories of its evaluations, by benchmark.
        experiments: as in `collect`.
        thresholds: for each experiment, the levels whose crossing is reported, by reward.
        evaluations: for each run id and each base id, the steps at which it was evaluated, by benchmark.
        score_steps: for each experiment, the authors' steps at which its scores are compared.
        out: directory of the frames.

    Raises:
        RecordError: a file of a run or of its scores is missing, damaged, or belongs to something else.
    """
    runs = _read_runs(run_dirs, experiments)
    levels = thresholds_of_runs(experiments, thresholds)
    write_frame(crossings_frame(runs.values(), levels), "crossings", out / "crossings.csv")
    write_frame(energies_frame(runs.values()), "energies", out / "energies.csv")
    scores = checkpoint_scores_frame(runs.values(), score_dirs, evaluations)
    write_frame(scores, "checkpoint_scores", out / "checkpoint_scores.csv")
    intervals = score_intervals_frame(runs, score_dirs, experiments, evaluations, score_steps)
    write_frame(intervals, "score_intervals", out / "score_intervals.csv")


def _read_runs(run_dirs: Mapping[str, Path], experiments: Mapping[str, Sequence[str]]) -> dict[str, Run]:
    planned = sorted({name for names in experiments.values() for name in names})
    for name in planned:
        if name not in run_dirs:
            raise RecordError(f"run {name} is planned by an experiment, but its directory is not given")
    runs = {name: read_run(name, Path(run_dirs[name])) for name in planned}
    for name, run in runs.items():
        if run.outcome != "completed":
            log.warning("run %s: %s after %d of %d steps", name, run.outcome or MISSING, run.steps, run.spec.steps)
    return runs


def runs_frame(
    runs: Mapping[str, Run], experiments: Mapping[str, Sequence[str]], cached: Collection[str] = ()
) -> pd.DataFrame:
    """Return the frame runs: one row an experiment and run, including missing and diverged runs."""
    rows = [
        {"experiment": experiment}
        | runs[name].identity
        | {
            "repeat": runs[name].spec.repeat,
            "steps": runs[name].steps,
            "engine": runs[name].spec.engine,
            "outcome": runs[name].outcome or MISSING,
            "origin": MISSING if runs[name].outcome is None else "cached" if name in cached else "trained",
        }
        for experiment, names in experiments.items()
        for name in names
    ]
    return rows_to_frame(rows, "runs")


def training_curves_frame(runs: Collection[Run]) -> pd.DataFrame:
    """Return the frame training_curves: one row a run, step and metric; a value that is not finite is an empty cell."""
    parts = []
    for run in (run for run in runs if run.outcome):
        metrics = read_metrics(run)
        steps, names = np.array(metrics.index), np.array(metrics.columns, dtype=object)
        values = metrics.to_numpy().ravel(order="F")  # metric by metric
        rows = {"step": np.tile(steps, len(names)), "metric": np.repeat(names, len(steps))}
        parts.append(run.identity | rows | {"value": np.where(np.isfinite(values), values, np.nan)})
    return joined_frame(parts, "training_curves")


def thresholds_of_runs(
    experiments: Mapping[str, Sequence[str]], thresholds: Mapping[str, Mapping[str, Sequence[float]]]
) -> dict[str, dict[str, list[float]]]:
    """Return for each run and reward the sorted thresholds of all experiments that have the run."""
    levels: dict[str, dict[str, set[float]]] = {}
    for experiment, names in experiments.items():
        if experiment not in thresholds:
            raise RecordError(f"experiment {experiment}: its thresholds are not given")
        for name in names:
            for reward, values in thresholds[experiment].items():
                levels.setdefault(name, {}).setdefault(reward, set()).update(values)
    return {name: {reward: sorted(values) for reward, values in rewards.items()} for name, rewards in levels.items()}


def crossings_frame(runs: Collection[Run], levels: Mapping[str, Mapping[str, Sequence[float]]]) -> pd.DataFrame:
    """Return the frame crossings: one row a run, reward and threshold.

    A diverged run is judged by the steps before its first value that is not finite. A missing run has no row here; it
    is in the frame runs.
    """
    rows = [row for run in runs if run.outcome for row in _crossing_rows(run, levels.get(run.run_id, {}))]
    return rows_to_frame(rows, "crossings")


def _crossing_rows(run: Run, levels: Mapping[str, Sequence[float]]) -> list[dict]:
    metrics = read_metrics(run)
    rows = []
    for reward, thresholds in levels.items():
        if reward not in run.spec.rewards:
            raise RecordError(
                f"run {run.run_id}: a threshold of {reward!r}, which is not one of its rewards {list(run.spec.rewards)}"
            )
        series = _until_not_finite(_logged(metrics, "reward/{}/mean", [reward], run)[:, 0])
        for threshold in thresholds:
            stable = stable_crossing(series, threshold)
            rows.append(
                run.identity
                | {"reward": reward, "threshold": threshold, "budget": run.spec.steps}
                | {"first_step": first_crossing(series, threshold), "stable_step": stable.step}
                | {"status": stable.status, "pending_step": stable.pending_step}
            )
    return rows


def _until_not_finite(series: np.ndarray) -> np.ndarray:
    wrong = np.flatnonzero(~np.isfinite(series))
    return series[: wrong[0]] if len(wrong) else series


def energies_frame(runs: Collection[Run]) -> pd.DataFrame:
    """Return the frame energies: one row a finished run, step and reward."""
    return joined_frame([_energy_columns(run) for run in runs if run.outcome and run.steps], "energies")


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
        _check_log(run, part, values, _logged(metrics, part, names, run))
    positive, negative = (_logged(metrics, f"energy_contributed/{{}}/{sign}", names, run) for sign in ("pos", "neg"))
    columns = {
        "density": density,
        "weight": _logged(metrics, "weight/{}", names, run),
        "energy_pos": before.positive,
        "energy_neg": before.negative,
        "contributed_pos": positive,
        "contributed_neg": negative,
        "share_before": before.share,
        "share_after": energy_share(positive + negative),
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


def _check_log(run: Run, part: str, values: np.ndarray, logged: np.ndarray) -> None:
    differs = np.argwhere(np.isfinite(logged) & ~np.isclose(values, logged, rtol=1e-6, atol=1e-6))
    if len(differs):
        step, k = differs[0]
        raise RecordError(
            f"{run.directory}: step {step + 1}: {part.format(run.spec.rewards[k])} is {logged[step, k]} in "
            f"metrics.jsonl, but {values[step, k]} from rewards.npz; the two files are not of one run"
        )
