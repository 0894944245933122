"""What our runs and the published numbers say about each claim: one function a kind of claim."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dara.analysis.intervals import wilson_interval
from dara.analysis.paired import PairedDifference, paired_crossings, paired_scores
from dara.analysis.speed_up import speed_up
from dara.analysis.survival import CrossingTimes, Kind, median_text
from dara.analysis.tables.cells import number, with_interval
from dara.report.evidence import Evidence, Setting, paired_steps, published_times
from dara.report.verdicts import (
    TOLERANCE,
    Judgement,
    Verdict,
    judge_difference,
    judge_exact,
    judge_not_worse,
    judge_share,
)

DARA = ("dara_asym", "dara_sym")
DENSITY_STEPS = 5
"""Steps over which densities of group sizes are compared: before learning makes the policies differ."""

TOOL_MODELS = {"Qwen2.5-1.5B-Instruct": "1.5B", "Qwen2.5-3B-Instruct": "3B"}
MATH_MODELS = {
    "DeepSeek-R1-Distill-Qwen-1.5B": "R1-1.5B",
    "Qwen3-4B-Instruct-2507": "Qwen3-4B",
    "DeepSeek-R1-Distill-Qwen-7B": "R1-7B",
}
BUDGET = 100
"""Steps of the paper's tool-calling runs."""

NO_RUNS = Judgement(Verdict.NOT_TESTED, "no runs to compare here")
NONE = "–"


@dataclass(frozen=True)
class Comparison:
    """One row of the summary: what is compared, the paper's number, ours with its interval, and the judgement."""

    what: str
    paper: str
    ours: str
    detail: str
    judgement: Judgement


def first_steps(evidence: Evidence, baseline: str) -> list[Comparison]:
    """First step with format at least 0.8, of both DARA methods against a baseline."""
    found = []
    for method in DARA:
        paper = _published_first_steps(evidence, method, baseline)
        found += _steps(evidence, "tool_main", ("format", 0.8), "first", (method, baseline), paper)
    return found


def stable_steps(evidence: Evidence, thresholds: Iterable[float]) -> list[Comparison]:
    """Stable crossings of the length reward, of both DARA methods against GDPO."""
    found = []
    for threshold in thresholds:
        for method in DARA:
            paper = "; ".join(
                f"{a:.0f} against {b:.0f} steps ({_saved(a, b)}, {name})"
                for name, a, b in _published_stable_steps(evidence, threshold, method, "gdpo")
            )
            found += _steps(evidence, "math_main", ("length", threshold), "stable", (method, "gdpo"), paper)
    return found


def shares(evidence: Evidence) -> list[Comparison]:
    """How many runs reach 0.8 of the format in some step."""
    found = []
    for method in DARA:
        for baseline in ("gdpo", "grpo"):
            paper = " against ".join(_published_share(evidence, name) for name in (method, baseline))
            what = f"{evidence.label(method)} against {evidence.label(baseline)}"
            made = []
            for setting in evidence.settings("tool_main"):
                times = [
                    evidence.times("tool_main", "format", 0.8, "first", name, setting) for name in (method, baseline)
                ]
                if None not in times:
                    made.append(_share(_at(what, setting), paper, *times))
            found += made or [_untested(what, paper)]
    return found


def accuracies(evidence: Evidence, experiment: str) -> list[Comparison]:
    """Accuracy at the last common step, of both DARA methods against GDPO and GRPO."""
    tool = experiment == "tool_main"
    metric, models = ("average_accuracy", TOOL_MODELS) if tool else ("acc", MATH_MODELS)
    file = "tool_step100" if tool else "math_step50"
    found = []
    for method in DARA:
        for baseline in ("gdpo", "grpo"):
            paper = _published_scores(evidence, file, metric, models, (method, baseline))
            found += _scores(evidence, experiment, metric, (method, baseline), paper)
    return found


def fixed_weights(evidence: Evidence) -> list[Comparison]:
    """Joint at the last common step, of each DARA method against the fixed weight of its kind."""
    models = {"DeepSeek-R1-Distill-Qwen-1.5B": "R1-1.5B"}
    found = []
    for pair in (("dara_asym", "static_asym"), ("dara_sym", "static_sym")):
        paper = _published_scores(evidence, "fixed_weights", "joint", models, pair)
        found += _scores(evidence, "fixed_weight", "joint", pair, paper)
    return found


def group_densities(evidence: Evidence) -> list[Comparison]:
    """Density of format at the largest minus the smallest group size, by method."""
    found = []
    for method in ("grpo", "gdpo", "dara_sym", "dara_asym"):
        paper = _published_densities(evidence, method)
        settings = evidence.settings("group_size")
        made = []
        for model in sorted({model for model, _ in settings}):
            by_size = {
                size: evidence.density("group_size", "format", DENSITY_STEPS, method, (model, size))
                for _, size in sorted(setting for setting in settings if setting[0] == model)
            }
            by_size = {size: values for size, values in by_size.items() if values}
            if len(by_size) > 1:
                made.append(_densities(f"{evidence.label(method)}, {model}", paper, by_size))
        found += made or [_untested(evidence.label(method), paper, "no runs with several group sizes here")]
    return found


def balanced_energy(evidence: Evidence) -> list[Comparison]:
    """Energies of the contributions of DARA-Sym, where every reward is active and no weight is at its cap."""
    paper = _published_balance(evidence)
    found = []
    for experiment in evidence.experiments():
        energies = _energies(evidence, experiment, "dara_sym")
        if energies.empty:
            continue
        by_step = energies.groupby(["run_id", "step"])
        smallest, largest = by_step["contributed"].min(), by_step["contributed"].max()
        active, capped = by_step["density"].min() > 0, by_step["capped"].any()
        ratio = (smallest / largest.where(largest > 0))[active]
        free, bound = ratio[~capped[active]], ratio[capped[active]]
        worst = float((1 - free).abs().max()) if len(free) else 0.0
        detail = f"the cap binds at {len(bound)} of {len(ratio)} steps"
        detail += f"; the ratio there: median {number(float(bound.median()), 2)}" if len(bound) else ""
        ours = f"1 ± {_tiny(worst)} at {len(free):,} steps" if len(free) else NONE
        found.append(Comparison(experiment, paper, ours, detail, judge_exact(worst, len(free))))
    return found or [_untested(evidence.label("dara_sym"), paper, "no run of DARA-Sym here")]


def bounded_energy(evidence: Evidence) -> list[Comparison]:
    """Energies of the contributions of DARA-Asym, against those of its z-scores and the weights."""
    paper = "a bound that the paper proves"
    found = []
    for experiment in evidence.experiments():
        energies = _energies(evidence, experiment, "dara_asym")
        energies = energies[(energies["energy"] > 0) & energies["weight"].notna()]
        if energies.empty:
            continue
        low, high = energies["energy"], energies["energy"] * energies["weight"] ** 2
        below, above = (low - energies["contributed"]) / low, (energies["contributed"] - high) / high
        worst = max(0.0, float(below.max()), float(above.max()))
        inside = int(((below <= TOLERANCE) & (above <= TOLERANCE)).sum())
        ours = f"inside at {inside:,} of {len(energies):,} steps and rewards"
        raised = energies["weight"] > 1 + TOLERANCE
        place = ((energies["contributed"] - low) / (high - low).where(raised))[raised]
        detail = f"at a share {number(float(place.median()), 2)} of the way to w² E (median)" if len(place) else ""
        found.append(Comparison(experiment, paper, ours, detail, judge_exact(worst, len(energies))))
    return found or [_untested(evidence.label("dara_asym"), paper, "no run of DARA-Asym here")]


def energy_of_density(evidence: Evidence) -> list[Comparison]:
    """Energies of the z-scores of all runs, against B pi (G - 1)."""
    paper = "a formula (the paper's Eq. 5)"
    found = []
    for experiment in evidence.experiments():
        energies = _energies(evidence, experiment, None)
        curves = evidence.frames["training_curves"]
        groups = curves.loc[curves["metric"] == "groups", ["run_id", "step", "value"]]
        energies = energies.merge(groups.rename(columns={"value": "groups"}), on=["run_id", "step"])
        if energies.empty:
            continue
        expected = energies["groups"] * energies["density"] * (energies["group_size"] - 1)
        # Without an active group both are 0, and a deviation would be relative to nothing.
        deviation = (energies["energy"] - expected).abs() / expected.where(expected > 0, 1.0)
        ours = f"largest deviation {_tiny(float(deviation.max()))} at {len(energies):,} steps and rewards"
        judgement = judge_exact(float(deviation.max()), len(energies))
        found.append(Comparison(experiment, paper, ours, "", judgement))
    return found or [_untested("every method", paper, "no run with energies here")]


def _steps(
    evidence: Evidence, experiment: str, level: tuple[str, float], kind: Kind, pair: tuple[str, str], paper: str
) -> list[Comparison]:
    """The crossings of two methods in every setting of an experiment; one row that says so where there are none."""
    what = f"{evidence.label(pair[0])} against {evidence.label(pair[1])}, {level[0]} {number(level[1])}"
    found = []
    for setting in evidence.settings(experiment):
        times = [evidence.times(experiment, *level, kind, method, setting) for method in pair]
        if None not in times:
            key = ("claims", experiment, *map(str, level), kind, *pair, *map(str, setting))
            found.append(_step_row(_at(what, setting), paper, *times, key))
    return found or [_untested(what, paper)]


def _step_row(
    what: str, paper: str, method: CrossingTimes, baseline: CrossingTimes, key: tuple[str, ...]
) -> Comparison:
    if min(method.horizon, baseline.horizon) <= 0:
        return _untested(what, paper, "the runs are too short to see a crossing")
    pairs, tau, late = paired_steps(method, baseline)
    details = [f"medians {median_text(method)} against {median_text(baseline)}"]
    order = paired_crossings(method, baseline)
    if order.first_lower + order.second_lower:
        details.append(f"earlier in {order.first_lower} of {order.n} pairs")
    speed = speed_up(method, baseline, key=key)
    if speed.saved_interval and all(math.isfinite(end) and end < 1 for end in speed.saved_interval):
        details.append(f"{with_interval(speed.saved, *speed.saved_interval, 0, 100)} % fewer steps")
    elif not speed.reason:
        details.append(f"{number(100 * speed.saved, 0)} % fewer steps")
    if late:
        details.append(f"{late} of {2 * pairs.n} runs did not get there and count as step {tau:g}")
    judgement = judge_difference(pairs, -1)
    if pairs.n and late == 2 * pairs.n:
        judgement = Judgement(Verdict.NOT_TESTED, "no run of either method gets there in the planned steps")
    return Comparison(what, paper, _difference(pairs, 1, "steps"), "; ".join(details), judgement)


def _scores(evidence: Evidence, experiment: str, metric: str, pair: tuple[str, str], paper: str) -> list[Comparison]:
    what = f"{evidence.label(pair[0])} against {evidence.label(pair[1])}"
    found = []
    for setting in evidence.settings(experiment):
        scored = evidence.scores(experiment, metric, pair, setting)
        if scored is None:
            continue
        step, first, second = scored
        means = [number(100 * float(np.mean(list(values.values()))), 1) for values in (first, second)]
        pairs = paired_scores(first, second)
        detail = f"{means[0]} against {means[1]} % at step {step}"
        ours = _difference(pairs, 1, "points", 100)
        found.append(Comparison(_at(what, setting), paper, ours, detail, judge_not_worse(pairs)))
    return found or [_untested(what, paper)]


def _share(what: str, paper: str, method: CrossingTimes, baseline: CrossingTimes) -> Comparison:
    counts = [(times.reached, len(times.steps)) for times in (method, baseline)]
    cells = []
    for reached, runs in counts:
        interval = wilson_interval(reached, runs)
        cells.append(f"{reached} of {runs} [{100 * interval.low:.0f}, {100 * interval.high:.0f}]")
    return Comparison(what, paper, " against ".join(cells), "", judge_share(*counts[0], *counts[1]))


def _densities(what: str, paper: str, by_size: dict[int, dict[tuple, float]]) -> Comparison:
    sizes = sorted(by_size)
    pairs = paired_scores(by_size[sizes[-1]], by_size[sizes[0]])
    means = ", ".join(number(float(np.mean(list(by_size[size].values()))), 3) for size in sizes)
    detail = f"{means} for G = {', '.join(map(str, sizes))}"
    return Comparison(what, paper, _difference(pairs, 3, ""), detail, judge_difference(pairs, 1))


def _energies(evidence: Evidence, experiment: str, method: str | None) -> pd.DataFrame:
    """The rows of the frame energies of an experiment, with sums over the signs and whether the weight is capped."""
    runs = evidence.runs(experiment, method)
    rows = evidence.frames["energies"]
    rows = rows[rows["run_id"].isin(runs["run_id"])].copy()
    rows["energy"] = rows["energy_pos"] + rows["energy_neg"]
    rows["contributed"] = rows["contributed_pos"] + rows["contributed_neg"]
    densest = rows.groupby(["run_id", "step"])["density"].transform("max")
    wanted = np.sqrt(densest / rows["density"].where(rows["density"] > 0))
    rows["capped"] = wanted > rows["weight"] * (1 + 1e-9)
    return rows


def _published_first_steps(evidence: Evidence, method: str, baseline: str) -> str:
    model, name = "Qwen2.5-1.5B-Instruct", "first_step/format/0.8"
    curve, base_curve = (
        evidence.number("first_steps", model=model, method=m, metric=f"{name}:median_curve") for m in (method, baseline)
    )
    parts = [f"{curve:.0f} against {base_curve:.0f} steps ({_saved(curve, base_curve)}, median curves, 1.5B)"]
    for model, short in TOOL_MODELS.items():
        times = [
            published_times(evidence.by_seed("first_steps", model=model, method=m, metric=name), BUDGET)
            for m in (method, baseline)
        ]
        pairs = paired_steps(*times)[0]
        parts.append(f"over its seeds {_difference(pairs, 1, 'steps')} ({short})")
    return "; ".join(parts)


def _published_stable_steps(
    evidence: Evidence, threshold: float, method: str, baseline: str
) -> list[tuple[str, float, float]]:
    metric = f"stable_crossing/length/{number(threshold)}"
    return [
        (
            name,
            evidence.number("thresholds", model=model, method=method, metric=metric),
            evidence.number("thresholds", model=model, method=baseline, metric=metric),
        )
        for model, name in MATH_MODELS.items()
        if len(evidence.paper("thresholds", model=model))
    ]


def _published_share(evidence: Evidence, method: str) -> str:
    steps = evidence.by_seed(
        "first_steps", model="Qwen2.5-1.5B-Instruct", method=method, metric="first_step/format/0.8"
    )
    return f"{sum(math.isfinite(step) for step in steps.values())} of {len(steps)}"


def _published_scores(evidence: Evidence, file: str, metric: str, models: dict[str, str], pair: tuple[str, str]) -> str:
    """The two scores for each model, with the paired difference where single runs were published."""
    parts = []
    for model, short in models.items():
        values = [evidence.number(file, model=model, method=m, metric=metric, seed=None) for m in pair]
        runs = [evidence.by_seed(file, model=model, method=m, metric=metric) for m in pair]
        text = f"{number(100 * values[0], 1)} against {number(100 * values[1], 1)} %"
        if all(runs):
            text += f", {_difference(paired_scores(*runs), 1, 'points', 100)}"
        parts.append(f"{text} ({short})")
    return "; ".join(parts)


def _published_densities(evidence: Evidence, method: str) -> str:
    rows = evidence.paper("group_size_densities", method=method, metric="density/format:median")
    means = rows[rows["step"].isin([1, DENSITY_STEPS])].groupby("group_size")["value"].mean()
    return f"{', '.join(number(value, 3) for value in means)} for G = {', '.join(str(size) for size in means.index)}"


def _published_balance(evidence: Evidence) -> str:
    """The published energy ratios of DARA before the cap binds, and those of GDPO at step 40."""
    worst, others, caps = 0.0, [], []
    for model in MATH_MODELS:
        cap = evidence.number("energy_ratios", model=model, method="dara_sym", metric="first_step/cap")
        ratios = evidence.paper("energy_ratios", model=model, method="dara_sym", metric="energy_ratio")
        worst = max(worst, float((ratios.loc[ratios["step"] < cap, "value"] - 1).abs().max()))
        gdpo = evidence.number("energy_ratios", model=model, method="gdpo", metric="energy_ratio", step=40)
        others.append(number(gdpo, 2))
        caps.append(f"{cap:.0f}")
    return (
        f"1 ± {_tiny(worst)} until the cap binds for good at steps {', '.join(caps)}; GDPO has {', '.join(others)} at "
        f"step 40 ({', '.join(MATH_MODELS.values())})"
    )


def _untested(what: str, paper: str, reason: str | None = None) -> Comparison:
    judgement = Judgement(Verdict.NOT_TESTED, reason) if reason else NO_RUNS
    return Comparison(what, paper, NONE, "", judgement)


def _at(what: str, setting: Setting) -> str:
    return f"{what}; {setting[0]}, G = {setting[1]}"


def _difference(pairs: PairedDifference, digits: int, unit: str, scale: float = 1.0) -> str:
    """`−4.3 [−6.8, −1.9] steps, 3 pairs`; a dash without a pair."""
    if not pairs.known:
        return NONE
    ends = (pairs.interval.low, pairs.interval.high) if pairs.interval else (math.nan, math.nan)
    # Enough digits that no end is printed as 0 which is not 0: whether the interval contains it must be seen.
    small = [abs(end * scale) for end in (pairs.mean, *ends) if math.isfinite(end) and end != 0]
    while small and digits < 5 and min(small) < 0.5 * 10**-digits:
        digits += 1
    shown = with_interval(pairs.mean, *ends, digits, scale)
    sign = "+" if pairs.mean * scale > 0 and not shown.startswith("0 ") else ""
    text = f"{sign}{shown}{f' {unit}' if unit else ''}, {pairs.n} {'pair' if pairs.n == 1 else 'pairs'}"
    return text if pairs.interval else f"{text}, no interval"


def _saved(step: float, baseline: float) -> str:
    """`26 % fewer`, or `12 % more`."""
    saved = 100 * (1 - step / baseline)
    return f"{saved:.0f} % fewer" if saved >= 0 else f"{-saved:.0f} % more"


def _tiny(value: float) -> str:
    """A small deviation, as short as it can be read: 0, or 3e-6."""
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")
