"""Measures of a claim: in the runs of a preset, and in the numbers that the authors published."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dara.analysis import compare
from dara.analysis.compare import Crossings, Difference, paired, paired_steps
from dara.analysis.crossing import CrossingTimes, median_text, times_of
from dara.analysis.tables.crossings import curve_crossing
from dara.analysis.tables.render import MISSING, number, saved_text, with_interval
from dara.analysis.view import Setting, View, name_of
from dara.analysis.view_published import PublishedView
from dara.analysis.view_runs import RunsView
from dara.report.verdicts import MARGIN_SHARE, Finding, Judgement, Rule, Verdict, judge, share_margin, untested

if TYPE_CHECKING:
    from dara.report.claims import Claim

NEAR = 0.2
"""Largest distance of a score from a claim's step, as a share of the training: the end says nothing about step 50."""

Pair = tuple[str, str]
"""A method, and its baseline."""


# --- the runs of a preset ---------------------------------------------------------------------------------------------


def crossing(view: RunsView, claim: Claim, pair: Pair, setting: Setting) -> Finding | None:
    """Measure when two methods cross a threshold of a training reward."""
    made = compare.compare_crossings(view, claim.measure, (claim.of, claim.level), pair, setting)
    return _crossings(made, claim.rule) if made else None


def checkpoint(view: RunsView, claim: Claim, pair: Pair, setting: Setting) -> Finding | None:
    """Measure the first checkpoints at which a held-out score is at most a level."""
    made = compare.compare_checkpoints(view, (claim.of, claim.level), pair, setting)
    return _crossings(made, claim.rule) if made else None


def score(view: RunsView, claim: Claim, pair: Pair, setting: Setting) -> Finding | None:
    """Measure a held-out score at a step of the paper; without a step at the end of the training."""
    budget = view.budget(setting)
    at = claim.at or max(100, budget)
    found = compare.score_difference(view, claim.of, pair, setting, at)
    if found is None:
        return None
    step, difference = found
    means = [view.score(claim.of, method, setting, step) for method in pair]
    values, wanted = [mean.value for mean in means], compare.wanted_step(at, budget)
    detail = f"{_shares(values)}{_of_runs([mean.n for mean in means], difference.pairs)} at step {step} of {budget}"
    if abs(step - wanted) > NEAR * budget:
        judgement = Judgement(Verdict.NOT_TESTED, f"no scores near step {wanted:.0f}")
    elif set(values) == {0.0} or (set(values) == {1.0} and claim.rule != "not_worse"):  # none can be better than 1
        judgement = Judgement(Verdict.NOT_TESTED, f"both are at {100 * values[0]:.0f} % in every run")
    else:
        judgement = judge(claim.rule, difference, share_margin(values[1]))
    return Finding(_difference(difference, 1, "points", 100), detail, judgement)


def energy_share(view: RunsView, claim: Claim, pair: Pair, setting: Setting) -> Finding | None:
    """Measure the share of a reward in the energy of two methods' contributions."""
    shares = [compare.energy_shares(view, claim.of, method, setting) for method in pair]
    if not all(shares):
        return None
    difference, means = paired(*shares), [_mean(found.values()) for found in shares]
    against = " against ".join(number(100 * mean, 1) for mean in means)
    runs = _of_runs([len(found) for found in shares], difference.pairs)
    detail = f"{against} % of the energy{runs}, mean over the steps"
    judgement = judge(claim.rule, difference, share_margin(means[1]))
    return Finding(_difference(difference, 1, "points", 100), detail, judgement)


def over_sizes(
    view: RunsView, claim: Claim, method: str, settings: Sequence[Setting]
) -> tuple[int, int, Finding] | None:
    """Measure the first crossing, or the density of a reward, at the largest minus the smallest group size.

    Returns:
        Both sizes, and the finding; None where runs have fewer than two sizes.
    """
    made = {one.group_size: found for one in settings if (found := _of_size(view, claim, method, one))}
    if len(made) < 2:
        return None
    low, high = min(made), max(made)
    if claim.measure == "crossing_by_size":
        key = ("group_steps", view.source, name_of(settings[0]._replace(group_size=None), view.settings), method)
        found = _crossings(compare.compare_times(made[high], made[low], key), claim.rule)
        medians = _by_size({size: median_text(times) for size, times in made.items()})
        return high, low, found._replace(detail=f"medians {medians}; {found.detail}")
    difference, means = paired(made[high], made[low]), {size: _mean(one.values()) for size, one in made.items()}
    judgement = judge(claim.rule, difference, MARGIN_SHARE * means[low])
    detail = _by_size({size: number(mean, 3) for size, mean in means.items()})
    return high, low, Finding(_difference(difference, 3), detail, judgement)


def _of_size(view: View, claim: Claim, method: str, setting: Setting) -> CrossingTimes | dict[Any, float] | None:
    """Return the quantity that `over_sizes` compares, for one group size."""
    if claim.measure == "crossing_by_size":
        return times_of(view.marks("first", claim.of, claim.level, method, setting), "first")
    return compare.densities(view, claim.of, claim.at, method, setting)


def _crossings(made: Crossings, rule: Rule) -> Finding:
    if made.tau <= 0:
        return untested("the runs are too short to see a crossing")
    pairs = made.difference.pairs
    runs = _of_runs([len(made.method.steps), len(made.baseline.steps)], pairs)
    details = [f"medians {median_text(made.method)} against {median_text(made.baseline)}{runs}"]
    if not made.speed_up.reason:
        details.append(f"speed-up {saved_text(made.speed_up)} %")
    if made.late:
        details.append(f"{made.late} of {2 * pairs} runs did not cross and count as step {made.tau:g}")
    return Finding(_difference(made.difference, 1, "steps"), "; ".join(details), _judge_crossings(made, rule))


def _judge_crossings(made: Crossings, rule: Rule) -> Judgement:
    """Judge a difference of crossings; runs that do not cross cannot show that there is none."""
    pairs = made.difference.pairs
    if pairs and made.unseen == pairs:
        return Judgement(Verdict.NOT_TESTED, "no run of either method crosses in the planned steps")
    judgement = judge(rule, made.difference, MARGIN_SHARE * _mean(np.minimum(made.baseline.steps, made.tau)))
    equal = judgement.verdict is Verdict.PARITY or (rule == "little" and judgement.verdict is Verdict.REPRODUCED)
    if equal and made.late:
        reason = f"{made.late} of {2 * pairs} runs do not cross in the planned steps: their difference is not known"
        return Judgement(Verdict.NOT_DECIDABLE, reason)
    return judgement


# --- the paper's numbers, one text a published model ------------------------------------------------------------------


def published_crossings(view: PublishedView, claim: Claim, pair: Pair, setting: Setting) -> Iterator[str]:
    """Yield `14 against 19 steps, 26 % fewer (median curves, 1.5B)`, and the paired difference over the seeds."""
    kind, level = claim.measure, (claim.of, claim.level)
    curves = [curve_crossing(view, *level, method, setting) for method in pair] if kind == "first" else [math.nan]
    if not any(map(math.isnan, curves)):
        yield f"{_steps(*curves)} (median curves, {{model}})"
    times = [times_of(view.marks(kind, *level, method, setting), kind) for method in pair]
    if None not in times:
        yield f"{_times(*times)} ({{model}})"


def published_checkpoints(view: PublishedView, claim: Claim, pair: Pair, setting: Setting) -> Iterator[str]:
    """Yield `step 50 against 70 (R1-7B)`; `never` for a method whose score does not fall to the level."""
    metric = view.rows["metric"] == f"first_checkpoint/{claim.of}/{claim.level:g}"
    values = view.rows[metric & (view.rows["model"] == setting.model)].set_index("method")["value"]
    if len(values):
        texts = [number(values[method]) if method in values.index else "never" for method in pair]
        yield f"step {texts[0]} against {texts[1]} ({{model}})"


def published_scores(view: PublishedView, claim: Claim, pair: Pair, setting: Setting) -> Iterator[str]:
    """Yield `45.8 against 44.1 %, +1.7 points (R1-1.5B)`, with the paired interval where it has single runs."""
    # Scores that the authors give without a step have none here.
    found = [next(filter(None, (view.score(claim.of, m, setting, at) for at in (claim.at, None))), None) for m in pair]
    if all(found):
        values, runs = [one.value for one in found], [_by_seed(view, claim, method, setting) for method in pair]
        difference = paired(*runs) if all(runs) else Difference(values[0] - values[1], math.nan, math.nan, 0)
        yield f"{_shares(values)}, {_difference(difference, 1, 'points', 100)} ({{model}})"


def published_sizes(view: PublishedView, claim: Claim, method: str) -> str:
    """Return the median first crossing by group size, or the mean of the first and a later median density."""
    found = {}
    for setting in view.settings:
        curve = view.curve(f"density/{claim.of}", method, setting)["middle"]
        if claim.measure == "crossing_by_size":
            times = _of_size(view, claim, method, setting)
            found |= {setting.group_size: median_text(times)} if times else {}
        elif {1, claim.at} <= set(curve.index):
            found[setting.group_size] = number((curve[1] + curve[claim.at]) / 2, 3)
    prefix = "medians " if claim.measure == "crossing_by_size" else ""
    return f"{prefix}{_by_size(found)}" if found else ""


def _times(method: CrossingTimes, baseline: CrossingTimes) -> str:
    """Return the steps of single runs, or the paired difference over seeds, as text."""
    if len(method.steps) == len(baseline.steps) == 1 and method.reached and baseline.reached:
        return _steps(method.steps[0], baseline.steps[0])
    difference = _difference(paired_steps(method, baseline)[0], 1, "steps")
    return f"medians {median_text(method)} against {median_text(baseline)}, over its seeds {difference}"


def _by_seed(view: PublishedView, claim: Claim, method: str, setting: Setting) -> dict[int, float]:
    """Return the published scores of single runs at the claim's step, by seed."""
    rows = view.rows[(view.rows["metric"] == claim.of) & (view.rows["method"] == method)]
    rows = rows[(rows["model"] == setting.model) & rows["seed"].notna() & rows["step"].eq(claim.at).fillna(False)]
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows["value"], strict=True)}


# --- the words of numbers ---------------------------------------------------------------------------------------------


def _difference(found: Difference, digits: int, unit: str = "", scale: float = 1.0) -> str:
    """Return a difference as `−4.3 [−6.8, −1.9] steps, 3 pairs`; a dash without a pair."""
    if math.isnan(found.value):
        return MISSING
    # Enough digits that an end other than 0 is not printed as 0, so that a reader sees whether the interval contains 0.
    ends = (found.value, found.low, found.high)
    small = [abs(end * scale) for end in ends if math.isfinite(end) and end != 0]
    while small and digits < 5 and min(small) < 0.5 * 10**-digits:
        digits += 1
    shown = with_interval(*ends, digits, scale)
    sign = "+" if found.value * scale > 0 and not shown.startswith("0 ") else ""
    text = f"{sign}{shown} {unit}".rstrip()
    if not found.pairs:
        return text
    text += f", {found.pairs} {'pair' if found.pairs == 1 else 'pairs'}"
    return text if math.isfinite(found.low) else f"{text}, no interval"


def _shares(values: Sequence[float]) -> str:
    """Return `45.8 against 44.1 %`; below two percent `0.25 against 0.70 %`."""
    digits = 2 if max(values) < 0.02 else 1
    return f"{' against '.join(number(100 * value, digits) for value in values)} %"


def _steps(step: float, baseline: float) -> str:
    """Return `14 against 19 steps, 26 % fewer`."""
    saved = 100 * (1 - step / baseline)
    return f"{step:g} against {baseline:g} steps, {abs(saved):.0f} % {'fewer' if saved >= 0 else 'more'}"


def _by_size(texts: Mapping[int, str]) -> str:
    """Return `37, 57 for G = 4, 8`."""
    return f"{', '.join(texts.values())} for G = {', '.join(map(str, texts))}"


def _of_runs(counts: Sequence[int], pairs: int) -> str:
    """Return ` (of 5 and 3 runs)` if the numbers of two methods are from other runs than the pairs."""
    return "" if set(counts) == {pairs} else f" (of {counts[0]} and {counts[1]} runs)"


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


class Measure(NamedTuple):
    """A way to measure a claim.

    runs: the finding of a pair of methods in a setting, or of a method over group sizes; None if the runs do not have
    the number. published: the paper's numbers, the same way, with {model} for the name of its model. table, frame:
    where the number is shown. title: text added to the names of the methods. lacking: why runs have no number.
    """

    runs: Callable[..., Any]
    published: Callable[..., Iterable[str]]
    table: str
    frame: str
    title: str = ""
    lacking: str = "no pair of runs has this score"


_CROSSING = (crossing, published_crossings, "comparisons", "crossings")
_THRESHOLD = "the experiment does not have this threshold"
MEASURES = {
    "first": Measure(*_CROSSING, "first crossing of {of} {level}", _THRESHOLD),
    "stable": Measure(*_CROSSING, "stable crossing of {of} {level}", _THRESHOLD),
    "checkpoint": Measure(checkpoint, published_checkpoints, "", "checkpoint_scores", "held-out {of} at most {level}"),
    "score": Measure(score, published_scores, "score_intervals", "score_intervals"),
    "energy_share": Measure(energy_share, lambda *_: [], "comparisons", "energies", "energy share of {of}"),
    "density_by_size": Measure(over_sizes, published_sizes, "", "training_curves"),
    "crossing_by_size": Measure(over_sizes, published_sizes, "crossings", "crossings"),
}
