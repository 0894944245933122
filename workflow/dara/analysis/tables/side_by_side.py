"""Table: the quantities that our runs and the authors' published numbers both have, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dara.analysis.intervals import LEVEL, RESAMPLES, keyed_generator, percentile_rank, t_interval
from dara.analysis.names import BASE, BASELINE, HEADLINE
from dara.analysis.speed_up import speed_up
from dara.analysis.survival import CrossingTimes, median_step, median_text, times_of
from dara.analysis.tables.cells import MISSING
from dara.analysis.tables.pairs import Pair, Value, common_methods, pairs_table
from dara.analysis.tables.render import Table
from dara.analysis.tables.score_pairs import score_notes, score_pairs
from dara.analysis.tables.sources import completed_runs, published_rows, runs_view, with_methods
from dara.analysis.view import Setting, View

SCORES = {"tool_calling": ({"average_format": "Average Format"}, 100), "math": ({"exceed": "Exceed"}, 50)}
"""Of a task: the held-out score of what the sparse reward asks for, and where it is compared (`steps_at`). All scores
side by side are in the tables of tool_scores and math_scores."""

ENERGY = "Energy ratio"
ENERGY_STEPS = 10
"""Last steps over which an energy ratio is summarised."""
ENERGY_BATCHES = "dara_sym"
"""The method on whose batches both energy ratios are measured, and whose weights the second one has."""


def build_side_by_side(ours: View, published: View) -> Table:
    """One row a (published model, quantity, method) that both sources have, for the first setting of ours.

    Quantities: steps to the threshold of the paper's claim (median over runs), steps saved against GDPO, held-out
    scores, and on math the energy of the length reward over that of correctness before and after the weights.

    Raises:
        ValueError: nothing is in both.
    """
    setting, published = ours.settings[0], with_methods(published, common_methods(ours, published))
    metrics, at = SCORES[ours.experiment.task]
    pairs = [pair for other in published.settings for pair in _crossings(ours, setting, published, other)]
    pairs += [pair for pair in score_pairs(ours, published, metrics, at) if pair.method != BASE]
    pairs += _energies(ours, setting, published)
    notes = [*_crossing_notes(ours), *score_notes(ours, published, metrics, at), *_energy_notes(ours, pairs)]
    sources = [*published.notes(_crossing_metrics(published)), *published.notes(list(metrics), [0, at])]
    if any(pair.quantity == ENERGY for pair in pairs):
        sources.append(f"Energy ratio: {'; '.join(dict.fromkeys(_energy_rows(published)['source']))}.")
    return pairs_table(ours, published, pairs, "Ours and published", notes, sources)


def _crossings(ours: View, setting: Setting, published: View, other: Setting) -> list[Pair]:
    """Median steps to the headline threshold, and steps saved against the baseline."""
    reward = ours.experiment.sparse_reward
    if reward not in HEADLINE:
        return []
    kind, threshold = HEADLINE[reward]
    methods = common_methods(ours, published)
    mine, theirs = (
        {method: times_of(view.marks(kind, reward, threshold, method, where), kind) for method in methods}
        for view, where in ((ours, setting), (published, other))
    )
    both = [method for method in methods if mine[method] and theirs[method]]
    key = ("side_by_side", reward, f"{threshold:g}")
    steps, saved = [], []
    for method in both:
        label = ours.methods[method].label
        values = [
            _median(times[method], (*key, method, name)) for times, name in ((mine, "ours"), (theirs, "published"))
        ]
        steps.append(Pair(f"Steps to {reward} {threshold:g}", method, label, other, *values))
        if method != BASELINE and BASELINE in both:
            values = [
                _saved(times[method], times[BASELINE], (*key, "saved", method, name))
                for times, name in ((mine, "ours"), (theirs, "published"))
            ]
            saved.append(Pair("Steps saved (%)", method, label, other, *values, 100, 1))
    return steps + saved


def _median(times: CrossingTimes, key: tuple[str, ...]) -> Value:
    """Median crossing step with a percentile bootstrap over runs; an end beyond the budget is open (infinite)."""
    middle, n = median_step(times), f"{times.reached}/{len(times.steps)}"
    text = "" if math.isfinite(middle) else median_text(times)
    if len(times.steps) == 1:
        return Value(middle, n=n, text=text)
    steps = np.where(times.crossed, times.steps, np.inf)
    draws = keyed_generator(*key).integers(len(steps), size=(RESAMPLES, len(steps)))
    drawn = np.sort(steps[draws], axis=1)
    medians = np.sort((drawn[:, (len(steps) - 1) // 2] + drawn[:, len(steps) // 2]) / 2)
    low, high = (medians[percentile_rank((1 + sign * LEVEL) / 2, RESAMPLES)] for sign in (-1, 1))
    return Value(middle, float(low), float(high), n, text)


def _saved(times: CrossingTimes, baseline: CrossingTimes, key: tuple[str, ...]) -> Value:
    found = speed_up(times, baseline, key=key)
    ends = found.saved_ends or (math.nan, math.nan)
    text = "not estimable" if math.isnan(found.saved) else ""
    return Value(found.saved, *ends, f"{found.runs}+{found.baseline_runs}", text)


def _energies(ours: View, setting: Setting, published: View) -> list[Pair]:
    """Energy of the sparse reward over that of correctness at the end, before and after the weights of DARA-Sym."""
    rows = _energy_rows(published)
    if rows.empty or not {ENERGY_BATCHES, BASELINE} <= set(ours.methods):
        return []
    pairs = []
    for other in published.settings:
        for method, column in ((BASELINE, "energy"), (ENERGY_BATCHES, "contributed")):
            series = rows[(rows["model"] == other.model) & (rows["method"] == method)].sort_values("step")
            mine = _last_ratios(ours, setting, column)
            if len(series) and len(mine):
                interval = t_interval(mine)
                ends = (interval.low, interval.high) if interval else (math.nan, math.nan)
                value = Value(float(np.mean(mine)), *ends, str(len(mine)))
                theirs = Value(float(series["value"].tail(ENERGY_STEPS).median()), n="1")
                pairs.append(Pair(ENERGY, method, ours.methods[method].label, other, value, theirs, digits=2))
    return pairs


def _energy_rows(published: View) -> pd.DataFrame:
    rows = published_rows(published)
    return rows[(rows["experiment"] == published.experiment.experiment) & (rows["metric"] == "energy_ratio")]


def _last_ratios(ours: View, setting: Setting, column: str) -> list[float]:
    """Of each completed run of ENERGY_BATCHES: the median energy ratio over the last steps where it is defined."""
    frame = runs_view(ours).frames["energies"]
    sparse = ours.experiment.sparse_reward
    ratios = []
    for run_id in completed_runs(ours, setting, ENERGY_BATCHES)["run_id"]:
        mine = frame[frame["run_id"] == run_id]
        total = mine.assign(total=mine[f"{column}_pos"] + mine[f"{column}_neg"])
        wide = total.pivot(index="step", columns="reward", values="total").tail(ENERGY_STEPS)
        ratio = (wide[sparse] / wide["correctness"].where(wide["correctness"] > 0)).dropna()
        if len(ratio):
            ratios.append(float(ratio.median()))
    return ratios


def _crossing_notes(ours: View) -> list[str]:
    if ours.experiment.sparse_reward not in HEADLINE:
        return []
    kind, threshold = HEADLINE[ours.experiment.sparse_reward]
    return [
        f"Steps: median over runs of the {kind} crossing of {threshold:g}; n: runs that got there, of all. A run that "
        "did not counts as later than every crossing; `>90` is only known to be later than step 90. Steps saved: of "
        f"{_label(ours, BASELINE)}'s median; n: runs of both. Interval of both: {100 * LEVEL:g} % percentile bootstrap "
        f"over runs, rough for few runs; none for one run; {MISSING} as an end: the budget leaves it open."
    ]


def _crossing_metrics(view: View) -> list[str]:
    reward = view.experiment.sparse_reward
    if reward not in HEADLINE:
        return []
    kind, threshold = HEADLINE[reward]
    return [f"{'first_step' if kind == 'first' else 'stable_crossing'}/{reward}/{threshold:g}"]


def _energy_notes(ours: View, pairs: Sequence[Pair]) -> list[str]:
    if not any(pair.quantity == ENERGY for pair in pairs):
        return []
    label = _label(ours, ENERGY_BATCHES)
    return [
        f"Energy ratio: of the {ours.experiment.sparse_reward} reward over correctness, median over the last "
        f"{ENERGY_STEPS} steps, on batches of {label} runs (the authors': of one DARA run), as "
        f"{_label(ours, BASELINE)} and as {label} weights them (1 by construction until the cap of the weight binds); "
        "mean over runs [Student's t]."
    ]


def _label(view: View, method: str) -> str:
    return view.methods[method].label if method in view.methods else method
