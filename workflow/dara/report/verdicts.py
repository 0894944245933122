"""The verdict on a claim of the paper, and the rules that give it. The report prints the text of each rule."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from dara.analysis.intervals import LEVEL
from dara.analysis.paired import PairedDifference


class Verdict(StrEnum):
    """What our runs say about a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_TESTED = "not tested at this scale"


class Judgement(NamedTuple):
    """A verdict and, in a few words, why."""

    verdict: Verdict
    reason: str


PAIRS = 3
"""Pairs of runs that a verdict on a difference needs: with two, the t interval is wide enough for anything."""

MARGIN = 0.02
"""How much lower a score may be and still count as not worse."""

TOLERANCE = 1e-4
"""Relative deviation that still counts as equal where a formula holds up to the 1e-6 in the z-score."""

_PAIRED = f"over pairs of runs with the same seed, at least {PAIRS} of them"
RULES = {
    "differs": (
        f"Reproduced: {_PAIRED}, the mean difference has the claimed sign and its {100 * LEVEL:g} % Student's t "
        "interval excludes 0. A run that does not get there counts as the last step at which that could be seen."
    ),
    "not_worse": (
        f"Reproduced: {_PAIRED}, the {100 * LEVEL:g} % Student's t interval of the mean difference lies above "
        f"−{100 * MARGIN:g} percentage points. That the interval contains 0 is not enough: few runs always manage that."
    ),
    "share": (
        f"Reproduced: with at least {PAIRS} runs of each method, the share of runs that get there is not smaller than "
        "the baseline's."
    ),
    "exact": (
        f"Reproduced: it holds at every step of every run, up to a relative deviation of {TOLERANCE:g} (the z-score "
        "divides by the deviation + 1e-6)."
    ),
}
"""How a comparison is judged; by the name that a claim gives."""

OVERALL = (
    "A claim is reproduced where all of its comparisons that could be made are, not reproduced where one of them is "
    "not, and not tested at this scale where none could be made."
)


def judge_difference(pairs: PairedDifference, sign: int) -> Judgement:
    """The rule `differs`: the claim is that the mean difference is below 0 (sign -1) or above it (sign 1)."""
    if pairs.n < PAIRS or pairs.interval is None:
        return _too_few(pairs.n)
    low, high = pairs.interval.low, pairs.interval.high
    if low <= 0 <= high:
        if pairs.mean == 0:
            return Judgement(Verdict.NOT_REPRODUCED, "there is no difference")
        direction = "the claimed sign" if pairs.mean * sign > 0 else "the opposite sign"
        return Judgement(Verdict.NOT_REPRODUCED, f"undecided: {direction}, and the interval contains 0")
    if pairs.mean * sign < 0:
        return Judgement(Verdict.NOT_REPRODUCED, "the opposite: the interval excludes 0 on the other side")
    return Judgement(Verdict.REPRODUCED, "the claimed sign, and the interval excludes 0")


def judge_not_worse(pairs: PairedDifference) -> Judgement:
    """The rule `not_worse`, of scores as fractions of which more is better."""
    if pairs.n < PAIRS or pairs.interval is None:
        return _too_few(pairs.n)
    margin = f"−{100 * MARGIN:g} points"
    if pairs.interval.low > -MARGIN:
        return Judgement(Verdict.REPRODUCED, f"the interval lies above {margin}")
    if pairs.interval.high < 0:
        return Judgement(Verdict.NOT_REPRODUCED, f"lower: the interval is below 0 and reaches below {margin}")
    return Judgement(Verdict.NOT_REPRODUCED, f"undecided: the interval contains 0 and reaches below {margin}")


def judge_share(reached: int, runs: int, baseline_reached: int, baseline_runs: int) -> Judgement:
    """The rule `share`: `reached` of `runs` against those of the baseline."""
    fewest = min(runs, baseline_runs)
    if fewest < PAIRS:
        return Judgement(Verdict.NOT_TESTED, f"{fewest} {_plural('run', fewest)} of a method; the rule needs {PAIRS}")
    if reached + baseline_reached == 0:
        return Judgement(Verdict.NOT_TESTED, "no run of either method gets there in the planned steps")
    # Compared as products, since 2/3 and 4/6 need not be equal as floats.
    if reached * baseline_runs < baseline_reached * runs:
        return Judgement(Verdict.NOT_REPRODUCED, "a smaller share gets there")
    return Judgement(Verdict.REPRODUCED, "the share is not smaller")


def judge_exact(worst: float, steps: int) -> Judgement:
    """The rule `exact`: `worst` is the largest relative deviation over `steps` values."""
    if steps == 0:
        return Judgement(Verdict.NOT_TESTED, "no step to check it at")
    if worst <= TOLERANCE:
        return Judgement(Verdict.REPRODUCED, "it holds at every step")
    return Judgement(Verdict.NOT_REPRODUCED, f"the largest deviation is above {TOLERANCE:g}")


def overall(judgements: Sequence[Judgement]) -> Judgement:
    """The verdict on a claim from those on its comparisons."""
    tested = [verdict for verdict, _ in judgements if verdict is not Verdict.NOT_TESTED]
    if not tested:
        reasons = list(dict.fromkeys(reason for _, reason in judgements))
        return Judgement(Verdict.NOT_TESTED, "; ".join(reasons))
    good = sum(verdict is Verdict.REPRODUCED for verdict in tested)
    verdict = Verdict.REPRODUCED if good == len(tested) else Verdict.NOT_REPRODUCED
    failed = dict.fromkeys(reason for verdict, reason in judgements if verdict is Verdict.NOT_REPRODUCED)
    parts = [f"{good} of {len(tested)} {_plural('comparison', len(tested))}", *failed]
    untested = len(judgements) - len(tested)
    return Judgement(verdict, "; ".join([*parts, *([f"{untested} could not be made"] if untested else [])]))


def _too_few(pairs: int) -> Judgement:
    return Judgement(Verdict.NOT_TESTED, f"{pairs} {_plural('pair', pairs)} of runs; the rule needs {PAIRS}")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
