"""What our runs and the published numbers say about each claim: one function a kind of claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dara.analysis.compare import (
    Crossings,
    Level,
    compare_checkpoints,
    compare_crossings,
    compare_times,
    compared_pairs,
    densities,
    energy_shares,
    paired,
    score_difference,
    wanted_step,
)
from dara.analysis.names import FIXED, HEADLINE, PAPER_METHODS, SCORES, headline_threshold
from dara.analysis.survival import CrossingTimes, Kind, median_text, times_of
from dara.analysis.tables.render import MISSING, number, saved_text
from dara.analysis.view import Setting, name_of
from dara.analysis.view_runs import RunsView
from dara.report import paper
from dara.report.sources import Sources
from dara.report.verdicts import MARGIN_SHARE, Judgement, Rule, Verdict, judge, share_margin

if TYPE_CHECKING:
    from dara.report.claims import Claim

DENSITY_STEPS = 5
"""Steps over which densities of group sizes are compared: before learning makes the policies differ."""

NEAR = 0.2
"""How far from a claim's step a score may be, as a share of the training: the end does not show what step 50 claims."""

NO_RUNS = "no runs to compare here"
NO_SCORES = "no pair of runs has this score"
ONE_SIZE = "no runs with several group sizes here"

Pair = tuple[str, str]
"""A method, and what it is compared with."""


@dataclass(frozen=True)
class Comparison:
    """One row of the report: the method, what is compared, the paper's number, ours with its interval, the judgement.

    shown: the table, or the frame, that has our number.
    """

    method: str
    what: str
    paper: str
    ours: str
    detail: str
    judgement: Judgement
    shown: str = ""


def untested(sources: Sources, claim: Claim, *, reason: str) -> list[Comparison]:
    """A claim for which nothing is measured."""
    judgement = Judgement(Verdict.NOT_TESTED, reason)
    return [
        Comparison(method, _against(sources, method, other), "no number is known", MISSING, "", judgement)
        for method, other in _pairs(claim)
    ]


def steps(sources: Sources, claim: Claim, *, kind: Kind, level: Level) -> list[Comparison]:
    """When two methods cross a threshold, in every setting of the claim's experiment."""
    theirs, shown = sources.theirs.get(claim.experiment), sources.shown_in(claim.experiment, "comparisons", "crossings")

    def row(ours: RunsView, pair: Pair, setting: Setting, what: str, published: str) -> Comparison | None:
        made = compare_crossings(ours, kind, level, pair, setting)
        return _crossing_row(pair[0], what, published, made, claim.rule, shown) if made else None

    return _by_setting(
        sources,
        claim,
        f", {_crossing(kind, level)}",
        lambda pair, size: paper.crossings(theirs, kind, level, pair, size),
        row,
        "the experiment does not have this threshold",
    )


def checkpoints(sources: Sources, claim: Claim, *, level: Level) -> list[Comparison]:
    """The first checkpoint at which a held-out score is at most a level."""
    theirs, shown = sources.theirs.get(claim.experiment), "data/checkpoint_scores.csv"

    def row(ours: RunsView, pair: Pair, setting: Setting, what: str, published: str) -> Comparison | None:
        made = compare_checkpoints(ours, level, pair, setting)
        return _crossing_row(pair[0], what, published, made, claim.rule, shown) if made else None

    return _by_setting(
        sources,
        claim,
        f", held-out {level[0]} at most {number(level[1])}",
        lambda pair, _: paper.first_checkpoints(theirs, level, pair),
        row,
        NO_SCORES,
    )


def scores(sources: Sources, claim: Claim, *, metric: str, at: int) -> list[Comparison]:
    """A held-out score of two methods at a step of the paper, in every setting of the claim's experiment."""
    theirs = sources.theirs.get(claim.experiment)
    shown = sources.shown_in(claim.experiment, "score_intervals", "score_intervals")

    def row(ours: RunsView, pair: Pair, setting: Setting, what: str, published: str) -> Comparison | None:
        return _score_row(ours, what, published, metric, pair, setting, at, claim.rule, shown)

    return _by_setting(sources, claim, "", lambda pair, _: paper.scores(theirs, metric, pair, at), row, NO_SCORES)


def group_densities(sources: Sources, claim: Claim) -> list[Comparison]:
    """Density of the sparse reward at the largest minus the smallest group size, by method."""
    ours, theirs = sources.ours.get(claim.experiment), sources.theirs.get(claim.experiment)
    found = []
    for method in claim.methods:
        published = paper.group_densities(theirs, method, DENSITY_STEPS)
        rows = []
        for place, settings in _by_size(ours):
            made = {one: densities(ours, ours.experiment.sparse_reward, DENSITY_STEPS, method, one) for one in settings}
            made = {setting: values for setting, values in made.items() if values}
            if len(made) > 1:
                what = f"{_sizes(sources, method, list(made))}; {place}"
                rows.append(_density_row(method, what, published, made, claim.rule))
        found += rows or [_no_runs(method, sources.label(method), published, ONE_SIZE)]
    return found


def group_steps(sources: Sources, claim: Claim) -> list[Comparison]:
    """First crossing of 0.8 at the largest minus the smallest group size, by method."""
    ours, theirs, level = sources.ours.get(claim.experiment), sources.theirs.get(claim.experiment), ("format", 0.8)
    shown = sources.shown_in(claim.experiment, "crossings", "crossings")
    found = []
    for method in claim.methods:
        published = paper.group_steps(theirs, level, method)
        rows = []
        for place, settings in _by_size(ours):
            made = {one: times_of(ours.marks("first", *level, method, one), "first") for one in settings}
            made = {setting: times for setting, times in made.items() if times}
            if len(made) > 1:
                times, what = list(made.values()), f"{_sizes(sources, method, list(made))}; {place}"
                key = ("group_steps", ours.source, place, method)
                row = _crossing_row(method, what, published, compare_times(times[-1], times[0], key), claim.rule, shown)
                detail = f"medians {', '.join(map(median_text, times))} for G = {_listed(made)}"
                rows.append(replace(row, detail=f"{detail}; {row.detail}"))
        found += rows or [_no_runs(method, sources.label(method), published, ONE_SIZE)]
    return found


def other_methods(sources: Sources) -> dict[str, list[Comparison]]:
    """The methods that the paper does not compare (a user's own), by experiment.

    Each is set against GDPO and against both forms of DARA, where the experiment has them: the crossing of the sparse
    reward, the final scores, and the share of the sparse reward in the energy of what the method contributes.
    """
    found = {}
    for name, ours in sources.ours.items():
        rows = [
            row
            for pair in compared_pairs(ours.methods)
            if pair[0] not in PAPER_METHODS
            for setting in _planned(ours, pair)
            for row in _other_rows(sources, ours, pair, setting)
        ]
        if rows:
            found[name] = rows
    return found


def _other_rows(sources: Sources, ours: RunsView, pair: Pair, setting: Setting) -> Iterable[Comparison]:
    experiment, what = ours.experiment, _at(_against(sources, *pair), ours, setting)
    if absent := _absent(sources, ours, pair, setting):
        yield _no_runs(pair[0], what, "", absent)
        return
    reward = experiment.sparse_reward
    thresholds, kind = experiment.thresholds.get(reward), HEADLINE.get(reward, ("stable",))[0]
    threshold = headline_threshold(reward, thresholds) if thresholds else math.nan
    if thresholds and (made := compare_crossings(ours, kind, (reward, threshold), pair, setting)):
        shown = sources.shown_in(experiment.experiment, "comparisons", "crossings")
        name = _crossing(kind, (reward, threshold))
        yield _crossing_row(pair[0], f"{name}: {what}", "", made, "either", shown)
    shown = sources.shown_in(experiment.experiment, "score_intervals", "score_intervals")
    for metric, title in SCORES[experiment.task].items():
        at = max(100, ours.budget(setting))
        row = _score_row(ours, f"{title}: {what}", "", metric, pair, setting, at, "either", shown)
        if row:
            yield row
    shares = [energy_shares(ours, reward, method, setting) for method in pair]
    if all(shares):
        means = [100 * float(np.mean(list(found.values()))) for found in shares]
        difference = paired(*shares)
        runs = _of_runs([len(found) for found in shares], difference.pairs)
        detail = f"{number(means[0], 1)} against {number(means[1], 1)} % of the energy{runs}, mean over the steps"
        shown = sources.shown_in(experiment.experiment, "comparisons", "energies")
        judgement = judge("either", difference, share_margin(means[1] / 100))
        ours_text = paper.difference_text(difference, 1, "points", 100)
        yield Comparison(pair[0], f"energy share of {reward}: {what}", "", ours_text, detail, judgement, shown)


def _by_setting(
    sources: Sources,
    claim: Claim,
    suffix: str,
    published: Callable[[Pair, int | None], str],
    row: Callable[[RunsView, Pair, Setting, str, str], Comparison | None],
    lacking: str,
) -> list[Comparison]:
    """One row a pair of methods and setting in which both are planned; `lacking`: why runs that exist give none."""
    ours, found = sources.ours.get(claim.experiment), []
    for pair in _pairs(claim):
        what = f"{_against(sources, *pair)}{suffix}"
        planned = _planned(ours, pair)
        for setting in planned:
            place, theirs = _at(what, ours, setting), published(pair, setting.group_size)
            reason = _absent(sources, ours, pair, setting) or lacking
            found.append(row(ours, pair, setting, place, theirs) or _no_runs(pair[0], place, theirs, reason))
        if not planned:
            found.append(_no_runs(pair[0], what, published(pair, None)))
    return found


def _planned(ours: RunsView | None, pair: Pair) -> list[Setting]:
    """The settings in which both methods have planned runs."""
    return [one for one in (ours.settings if ours else ()) if all(ours.planned(method, one) for method in pair)]


def _absent(sources: Sources, ours: RunsView, pair: Pair, setting: Setting) -> str:
    """Which of two methods have no run in a setting, as a reason; empty where both have."""
    there = set(ours.selection.of_setting(ours.selection.present, setting)["method"])
    labels = [sources.label(method) for method in pair if method not in there]
    return f"no runs of {' and '.join(labels)} here" if labels else ""


def _pairs(claim: Claim) -> list[Pair]:
    """The pairs that a claim compares; with fixed weights each method has its own."""
    return [
        (method, baseline)
        for method in claim.methods
        for baseline in claim.baselines
        if baseline not in FIXED.values() or FIXED[method] == baseline
    ]


def _by_size(ours: RunsView | None) -> list[tuple[str, list[Setting]]]:
    """Of each model and engine with several group sizes: its name, and its settings from the smallest group on."""
    places: dict[Setting, list[Setting]] = {}
    for setting in ours.settings if ours else ():
        places.setdefault(setting._replace(group_size=None), []).append(setting)
    engines = {place.engine for place in places}
    return [
        (
            place.model if len(engines) == 1 else f"{place.model}, {place.engine}",
            sorted(found, key=lambda s: s.group_size),
        )
        for place, found in places.items()
        if len(found) > 1
    ]


def _crossing(kind: Kind, level: Level) -> str:
    return f"{kind} crossing of {level[0]} {number(level[1])}"


def _sizes(sources: Sources, method: str, settings: Sequence[Setting]) -> str:
    return f"{sources.label(method)}, G = {settings[-1].group_size} against {settings[0].group_size}"


def _listed(settings: Iterable[Setting]) -> str:
    return ", ".join(str(setting.group_size) for setting in settings)


def _of_runs(counts: Sequence[int], pairs: int) -> str:
    """` (of 5 and 3 runs)` where numbers of two methods are not those of the pairs alone."""
    return "" if set(counts) == {pairs} else f" (of {counts[0]} and {counts[1]} runs)"


def _crossing_row(method: str, what: str, published: str, made: Crossings, rule: Rule, shown: str) -> Comparison:
    if made.tau <= 0:
        judgement = Judgement(Verdict.NOT_TESTED, "the runs are too short to see a crossing")
        return Comparison(method, what, published, MISSING, "", judgement, shown)
    runs = _of_runs([len(made.method.steps), len(made.baseline.steps)], made.difference.pairs)
    details = [f"medians {median_text(made.method)} against {median_text(made.baseline)}{runs}"]
    if not made.speed_up.reason:
        details.append(f"speed-up {saved_text(made.speed_up)} %")
    if made.late:
        details.append(f"{made.late} of {2 * made.difference.pairs} runs did not cross and count as step {made.tau:g}")
    judgement = _judge_crossings(made, rule)
    ours = paper.difference_text(made.difference, 1, "steps")
    return Comparison(method, what, published, ours, "; ".join(details), judgement, shown)


def _judge_crossings(made: Crossings, rule: Rule) -> Judgement:
    """Judge a difference of crossings; runs that do not cross cannot show that there is none."""
    pairs = made.difference.pairs
    if pairs and made.unseen == pairs:
        return Judgement(Verdict.NOT_TESTED, "no run of either method crosses in the planned steps")
    judgement = judge(rule, made.difference, MARGIN_SHARE * _mean(made.baseline, made.tau))
    equal = judgement.verdict is Verdict.PARITY or (rule == "little" and judgement.verdict is Verdict.REPRODUCED)
    if equal and made.late:
        reason = f"{made.late} of {2 * pairs} runs do not cross in the planned steps: their difference is not known"
        return Judgement(Verdict.NOT_DECIDABLE, reason)
    return judgement


def _mean(times: CrossingTimes, tau: float) -> float:
    return float(np.mean(np.minimum(times.steps, tau)))


def _score_row(
    ours: RunsView,
    what: str,
    published: str,
    metric: str,
    pair: Pair,
    setting: Setting,
    at: int,
    rule: Rule,
    shown: str,
) -> Comparison | None:
    found = score_difference(ours, metric, pair, setting, at)
    if found is None:
        return None
    step, difference = found
    means = [ours.score(metric, method, setting, step) for method in pair]
    runs = _of_runs([mean.n for mean in means], difference.pairs)
    detail = f"{paper.shares_text([mean.value for mean in means])}{runs} at step {step} of {ours.budget(setting)}"
    text = paper.difference_text(difference, 1, "points", 100)
    wanted = wanted_step(at, ours.budget(setting))
    if abs(step - wanted) > NEAR * ours.budget(setting):
        judgement = Judgement(Verdict.NOT_TESTED, f"no scores near step {wanted:.0f}")
    elif _saturated([mean.value for mean in means], rule):
        judgement = Judgement(Verdict.NOT_TESTED, f"both are at {100 * means[0].value:.0f} % in every run")
    else:
        judgement = judge(rule, difference, share_margin(means[1].value))
    return Comparison(pair[0], what, published, text, detail, judgement, shown)


def _saturated(means: Sequence[float], rule: Rule) -> bool:
    """Whether a score cannot show a difference: 0 of all runs, or 1, than which none can be better."""
    return set(means) == {0.0} or (set(means) == {1.0} and rule != "not_worse")


def _density_row(
    method: str, what: str, published: str, made: Mapping[Setting, dict[Any, float]], rule: Rule
) -> Comparison:
    values = list(made.values())
    difference = paired(values[-1], values[0])
    means = [float(np.mean(list(found.values()))) for found in values]
    detail = f"{', '.join(number(mean, 3) for mean in means)} for G = {_listed(made)}"
    judgement = judge(rule, difference, MARGIN_SHARE * means[0])
    text = paper.difference_text(difference, 3, "")
    return Comparison(method, what, published, text, detail, judgement, "data/training_curves.csv")


def _no_runs(method: str, what: str, published: str, reason: str = NO_RUNS) -> Comparison:
    return Comparison(method, what, published, MISSING, "", Judgement(Verdict.NOT_TESTED, reason))


def _against(sources: Sources, method: str, baseline: str) -> str:
    return f"{sources.label(method)} against {sources.label(baseline)}"


def _at(what: str, ours: RunsView, setting: Setting) -> str:
    return f"{what}; {name_of(setting, ours.settings)}"
