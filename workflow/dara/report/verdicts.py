"""The verdict on a claim of the paper, and the rules that give it. The report prints the text of each rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

from dara.analysis.compare import Difference
from dara.analysis.intervals import LEVEL


class Verdict(StrEnum):
    """What our runs say about a claim, the worst for it first; and about a difference that nobody claimed."""

    NOT_REPRODUCED = "not reproduced"
    PARITY = "parity"
    NOT_DECIDABLE = "not decidable at this n"
    REPRODUCED = "reproduced"
    NOT_TESTED = "not tested"
    LOWER = "lower"
    HIGHER = "higher"


OF_CLAIMS = tuple(Verdict)[:5]
"""The verdicts that a claim can have, in the order in which one comparison decides for all."""


class Judgement(NamedTuple):
    """A verdict and, in a few words, why."""

    verdict: Verdict
    reason: str


Rule = Literal["less", "more", "little", "not_worse", "either"]

PAIRS = 3
"""Pairs of runs that an interval over seeds needs: with two, Student's t is wide enough for anything."""

SCORE_MARGIN = 0.02
"""A difference of scores that counts as none: two percentage points."""

MARGIN_SHARE = 0.2
"""The same of steps and densities, as a share of the baseline's; the speed-ups that the paper claims are 26 to 65 %."""

TOLERANCE = 1e-4
"""Relative deviation that still counts as equal where a formula holds up to the 1e-6 in the z-score."""

_INTERVAL = f"the {100 * LEVEL:g} % interval of the mean difference"
_DIFFERS = (
    f"Reproduced: {_INTERVAL} lies on the claimed side of 0. Not reproduced: it lies on the other side. Parity: it "
    "contains 0 and lies within the margin. Else not decidable at this n."
)
RULES: dict[Rule, str] = {
    "less": _DIFFERS,
    "more": _DIFFERS,
    "little": (
        f"Reproduced: {_INTERVAL} lies within the margin. Not reproduced: it excludes 0 and its middle is beyond the "
        "margin. Else not decidable at this n."
    ),
    "not_worse": (
        f"Reproduced: {_INTERVAL} lies above minus the margin; that it contains 0 is not enough, because few runs "
        "always manage that. Not reproduced: it lies below 0 and reaches below minus the margin. Else not decidable "
        "at this n."
    ),
    "either": (
        f"Lower or higher: {_INTERVAL} excludes 0. Parity: it contains 0 and lies within the margin. Else not "
        "decidable "
        "at this n."
    ),
}
"""How a comparison is judged; by the name that a claim gives."""

COMMON = (
    f"Differences are over pairs of runs with the same seed, with Student's t interval; with fewer than {PAIRS} pairs "
    "nothing is decidable. Where there is one run a method, as in the paper, a score has the bootstrap interval over "
    "the questions of that pair, and a verdict by it says so; a crossing has none. A run that does not cross counts as "
    "the last step at which a crossing could be seen; with such a run there is no parity, and no little difference. "
    f"Margins: {100 * MARGIN_SHARE:g} % of the baseline's steps, density or score, of scores at most "
    f"{100 * SCORE_MARGIN:g} percentage points. A claim has one verdict for each method that it "
    "names: that of its worst comparison (not reproduced, parity, not decidable, reproduced), of those that could be "
    "made."
)


def share_margin(baseline: float) -> float:
    """The margin of a score or another share: next to a baseline of 0.6 %, two points would make anything parity."""
    return min(SCORE_MARGIN, MARGIN_SHARE * baseline)


def judge(rule: Rule, found: Difference, margin: float) -> Judgement:
    """Judge a difference method - baseline by a rule; `margin` is in its unit."""
    if math.isnan(found.value):
        return Judgement(Verdict.NOT_TESTED, "no pair of runs to compare here")
    if found.over == "seeds" and found.pairs < PAIRS:
        return Judgement(
            Verdict.NOT_DECIDABLE, f"{_side(rule, found.value)}; {_pairs(found.pairs)}, {PAIRS} are needed"
        )
    if found.over == "questions" and found.low == found.high == 0:
        return Judgement(Verdict.NOT_DECIDABLE, "no question differs, so the interval over questions has no width")
    verdict, reason = _BY_INTERVAL[rule](found, margin, rule)
    return Judgement(verdict, f"{reason} (over questions, one run each)" if found.over == "questions" else reason)


def judge_exact(worst: float, steps: int) -> Judgement:
    """Judge a formula: `worst` is the largest relative deviation over `steps` values."""
    if steps == 0:
        return Judgement(Verdict.NOT_TESTED, "no step to check it at")
    if worst <= TOLERANCE:
        return Judgement(Verdict.REPRODUCED, "it holds at every step")
    return Judgement(Verdict.NOT_REPRODUCED, f"the largest deviation is above {TOLERANCE:g}")


def overall(judgements: Sequence[Judgement]) -> Judgement:
    """The verdict on a claim from those on its comparisons: the worst of those that could be made."""
    tested = [found for found in judgements if found.verdict is not Verdict.NOT_TESTED]
    if not tested:
        reasons = dict.fromkeys(reason for _, reason in judgements)
        return Judgement(Verdict.NOT_TESTED, "; ".join(reasons))
    worst = min((verdict for verdict, _ in tested), key=OF_CLAIMS.index)
    if len(judgements) == 1:
        return judgements[0]
    counts = [
        f"{count} {verdict}"
        for verdict in OF_CLAIMS
        if (count := sum(found.verdict is verdict for found in judgements))
    ]
    return Judgement(worst, f"of {len(judgements)} comparisons {', '.join(counts)}")


def _claimed(found: Difference, margin: float, rule: Rule) -> Judgement:
    if found.low <= 0 <= found.high:
        return _no_side(found, margin, rule)
    if (found.high < 0) == (rule == "less"):
        return Judgement(Verdict.REPRODUCED, "the interval excludes 0 on the claimed side")
    return Judgement(Verdict.NOT_REPRODUCED, "the opposite: the interval excludes 0 on the other side")


def _either(found: Difference, margin: float, rule: Rule) -> Judgement:
    if found.low <= 0 <= found.high:
        return _no_side(found, margin, rule)
    return Judgement(Verdict.HIGHER if found.low > 0 else Verdict.LOWER, "the interval excludes 0")


def _no_side(found: Difference, margin: float, rule: Rule) -> Judgement:
    """Judge an interval that contains 0."""
    if -margin <= found.low and found.high <= margin:
        return Judgement(Verdict.PARITY, "the interval contains 0 and lies within the margin")
    reason = f"{_side(rule, found.value)}; the interval contains 0 and reaches beyond the margin"
    return Judgement(Verdict.NOT_DECIDABLE, reason)


def _little(found: Difference, margin: float, rule: Rule) -> Judgement:
    if -margin <= found.low and found.high <= margin:
        return Judgement(Verdict.REPRODUCED, "the interval lies within the margin")
    if not found.low <= 0 <= found.high and abs(found.value) > margin:
        return Judgement(Verdict.NOT_REPRODUCED, "it differs by more than the margin")
    return Judgement(Verdict.NOT_DECIDABLE, "the interval reaches beyond the margin")


def _not_worse(found: Difference, margin: float, rule: Rule) -> Judgement:
    if found.low > -margin:
        return Judgement(Verdict.REPRODUCED, "the interval lies above minus the margin")
    if found.high < 0:
        return Judgement(Verdict.NOT_REPRODUCED, "lower: the interval is below 0 and reaches below minus the margin")
    return Judgement(Verdict.NOT_DECIDABLE, "the interval contains 0 and reaches below minus the margin")


_BY_INTERVAL = {"less": _claimed, "more": _claimed, "little": _little, "not_worse": _not_worse, "either": _either}


def _side(rule: Rule, value: float) -> str:
    if rule in ("less", "more"):
        return (
            "no difference"
            if value == 0
            else "on the claimed side"
            if (value < 0) == (rule == "less")
            else "on the other side"
        )
    return "lower" if value < 0 else "higher" if value > 0 else "no difference"


def _pairs(count: int) -> str:
    return f"{count} {'pair' if count == 1 else 'pairs'} of runs"
