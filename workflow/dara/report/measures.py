"""What our runs and the published numbers say about each claim: one function a kind of claim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
)
from dara.analysis.names import FIXED, HEADLINE, PAPER_METHODS, SCORES
from dara.analysis.survival import CrossingTimes, Kind, median_text, times_of
from dara.analysis.tables.cells import MISSING, number, saved_text
from dara.analysis.view import Setting, name_of
from dara.analysis.view_runs import RunsView
from dara.report import paper
from dara.report.sources import Sources
from dara.report.verdicts import SCORE_MARGIN, STEP_MARGIN, Judgement, Rule, Verdict, judge

if TYPE_CHECKING:
    from dara.report.claims import Claim

DENSITY_STEPS = 5
"""Steps over which densities of group sizes are compared: before learning makes the policies differ."""

NO_RUNS = Judgement(Verdict.NOT_TESTED, "no runs to compare here")


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
    ours, theirs = sources.ours.get(claim.experiment), sources.theirs.get(claim.experiment)
    shown = sources.shown_in(claim.experiment, "comparisons", "crossings")
    found = []
    for pair in _pairs(claim):
        what = f"{_against(sources, *pair)}, {level[0]} {number(level[1])}"
        made = [
            (setting, crossings)
            for setting in (ours.settings if ours else ())
            if (crossings := compare_crossings(ours, kind, level, pair, setting))
        ]
        found += [
            _crossing_row(
                pair[0],
                _at(what, ours, setting),
                paper.crossings(theirs, kind, level, pair, setting.group_size),
                crossings,
                claim.rule,
                shown,
            )
            for setting, crossings in made
        ] or [_no_runs(pair[0], what, paper.crossings(theirs, kind, level, pair))]
    return found


def checkpoints(sources: Sources, claim: Claim, *, level: Level) -> list[Comparison]:
    """The first checkpoint at which a held-out score is at most a level."""
    ours, theirs = sources.ours.get(claim.experiment), sources.theirs.get(claim.experiment)
    found = []
    for pair in _pairs(claim):
        what = f"{_against(sources, *pair)}, held-out {level[0]} at most {number(level[1])}"
        published = paper.first_checkpoints(theirs, level, pair)
        rows = [
            _crossing_row(pair[0], _at(what, ours, setting), published, made, claim.rule, "data/checkpoint_scores.csv")
            for setting in (ours.settings if ours else ())
            if (made := compare_checkpoints(ours, level, pair, setting))
        ]
        found += rows or [_no_runs(pair[0], what, published)]
    return found


def scores(sources: Sources, claim: Claim, *, metric: str, at: int) -> list[Comparison]:
    """A held-out score of two methods at a step of the paper, in every setting of the claim's experiment."""
    ours, theirs = sources.ours.get(claim.experiment), sources.theirs.get(claim.experiment)
    shown = sources.shown_in(claim.experiment, "score_intervals", "score_intervals")
    found = []
    for pair in _pairs(claim):
        what, published = _against(sources, *pair), paper.scores(theirs, metric, pair, at)
        rows = [
            _score_row(ours, _at(what, ours, setting), published, metric, pair, setting, at, claim.rule, shown)
            for setting in (ours.settings if ours else ())
        ]
        found += [row for row in rows if row] or [_no_runs(pair[0], what, published)]
    return found


def group_densities(sources: Sources, claim: Claim) -> list[Comparison]:
    """Density of the sparse reward at the largest minus the smallest group size, by method."""
    ours, theirs = sources.ours.get(claim.experiment), sources.theirs.get(claim.experiment)
    found = []
    for method in claim.methods:
        published = paper.group_densities(theirs, method, DENSITY_STEPS)
        rows = []
        for place, settings in _by_size(ours):
            values = [densities(ours, ours.experiment.sparse_reward, DENSITY_STEPS, method, one) for one in settings]
            if all(values):
                rows.append(
                    _density_row(method, f"{sources.label(method)}; {place}", published, settings, values, claim.rule)
                )
        found += rows or [_no_runs(method, sources.label(method), published, "no runs with several group sizes here")]
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
            times = [times_of(ours.marks("first", *level, method, setting), "first") for setting in settings]
            key = ("group_steps", ours.source, place, method)
            if None not in times and (made := compare_times(times[-1], times[0], key)):
                what = (
                    f"{sources.label(method)}, G = {settings[-1].group_size} against {settings[0].group_size}; {place}"
                )
                row = _crossing_row(method, what, published, made, claim.rule, shown)
                medians = ", ".join(map(median_text, times))
                detail = f"medians {medians} for G = {', '.join(str(one.group_size) for one in settings)}"
                rows.append(replace(row, detail=f"{detail}; {row.detail}"))
        found += rows or [_no_runs(method, sources.label(method), published, "no runs with several group sizes here")]
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
            for setting in ours.settings
            for row in _other_rows(sources, ours, pair, setting)
        ]
        if rows:
            found[name] = rows
    return found


def _other_rows(sources: Sources, ours: RunsView, pair: tuple[str, str], setting: Setting) -> Iterable[Comparison]:
    experiment, what = ours.experiment, _at(_against(sources, *pair), ours, setting)
    reward = experiment.sparse_reward
    highest = max(experiment.thresholds.get(reward, ()), default=None)
    kind, threshold = HEADLINE.get(reward, ("stable", highest))
    if threshold is not None and (made := compare_crossings(ours, kind, (reward, threshold), pair, setting)):
        shown = sources.shown_in(experiment.experiment, "comparisons", "crossings")
        name = f"{kind} crossing of {reward} {number(threshold)}"
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
        detail = f"{number(means[0], 1)} against {number(means[1], 1)} % of the energy, mean over the steps"
        shown = sources.shown_in(experiment.experiment, "comparisons", "energies")
        judgement = judge("either", difference, SCORE_MARGIN)
        ours_text = paper.difference_text(difference, 1, "points", 100)
        yield Comparison(pair[0], f"energy share of {reward}: {what}", "", ours_text, detail, judgement, shown)


def _pairs(claim: Claim) -> list[tuple[str, str]]:
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


def _crossing_row(method: str, what: str, published: str, made: Crossings, rule: Rule, shown: str) -> Comparison:
    if made.tau <= 0:
        judgement = Judgement(Verdict.NOT_TESTED, "the runs are too short to see a crossing")
        return Comparison(method, what, published, MISSING, "", judgement, shown)
    details = [f"medians {median_text(made.method)} against {median_text(made.baseline)}"]
    if not made.speed_up.reason:
        details.append(f"{saved_text(made.speed_up)} % fewer steps")
    if made.late:
        details.append(f"{made.late} of {2 * made.difference.pairs} runs did not cross and count as step {made.tau:g}")
    judgement = _judge_crossings(made, rule)
    ours = paper.difference_text(made.difference, 1, "steps")
    return Comparison(method, what, published, ours, "; ".join(details), judgement, shown)


def _judge_crossings(made: Crossings, rule: Rule) -> Judgement:
    """Judge a difference of crossings; pairs of which neither run crosses cannot show that there is none."""
    pairs = made.difference.pairs
    if pairs and made.unseen == pairs:
        return Judgement(Verdict.NOT_TESTED, "no run of either method crosses in the planned steps")
    judgement = judge(rule, made.difference, STEP_MARGIN * _mean(made.baseline, made.tau))
    if made.unseen and (judgement.verdict is Verdict.PARITY or rule == "little"):
        reason = f"in {made.unseen} of {pairs} pairs neither run crosses in the planned steps"
        return Judgement(Verdict.NOT_DECIDABLE, reason)
    return judgement


def _mean(times: CrossingTimes, tau: float) -> float:
    return float(np.mean(np.minimum(times.steps, tau)))


def _score_row(
    ours: RunsView,
    what: str,
    published: str,
    metric: str,
    pair: tuple[str, str],
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
    values = [number(100 * mean.value, 1) if mean else MISSING for mean in means]
    detail = f"{values[0]} against {values[1]} % at step {step} of {ours.budget(setting)}"
    text = paper.difference_text(difference, 1, "points", 100)
    return Comparison(pair[0], what, published, text, detail, judge(rule, difference, SCORE_MARGIN), shown)


def _density_row(
    method: str, what: str, published: str, settings: Sequence[Setting], values: Sequence[dict], rule: Rule
) -> Comparison:
    difference = paired(values[-1], values[0])
    means = [float(np.mean(list(found.values()))) for found in values]
    detail = f"{', '.join(number(mean, 3) for mean in means)} for G = {', '.join(str(s.group_size) for s in settings)}"
    judgement = judge(rule, difference, STEP_MARGIN * means[0])
    text = paper.difference_text(difference, 3, "")
    return Comparison(method, what, published, text, detail, judgement, "data/training_curves.csv")


def _no_runs(method: str, what: str, published: str, reason: str | None = None) -> Comparison:
    judgement = Judgement(Verdict.NOT_TESTED, reason) if reason else NO_RUNS
    return Comparison(method, what, published, MISSING, "", judgement)


def _against(sources: Sources, method: str, baseline: str) -> str:
    return f"{sources.label(method)} against {sources.label(baseline)}"


def _at(what: str, ours: RunsView, setting: Setting) -> str:
    return f"{what}; {name_of(setting, ours.settings)}"
