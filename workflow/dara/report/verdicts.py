"""Verdicts: on a difference by the rule of its claim, and on the formulas that must hold at every step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from dara.analysis.compare import Difference
from dara.analysis.tables.render import MISSING, number
from dara.analysis.view_runs import RunsView


class Verdict(StrEnum):
    """Verdict of the runs on a claim, from the worst on; and on a difference without a claim."""

    NOT_REPRODUCED = "not reproduced"
    PARITY = "parity"
    NOT_DECIDABLE = "not decidable at this n"
    REPRODUCED = "reproduced"
    NOT_TESTED = "not tested"
    LOWER = "lower"
    HIGHER = "higher"


OF_CLAIMS = tuple(Verdict)[:5]
"""The verdicts that a claim can have; the first of them that a comparison has is that of the claim."""


class Judgement(NamedTuple):
    """A verdict and its reason in a few words."""

    verdict: Verdict
    reason: str


class Finding(NamedTuple):
    """A measured number with its interval, its data (parts between semicolons), and the judgement on it."""

    value: str
    detail: str
    judgement: Judgement


Rule = Literal["less", "more", "little", "not_worse", "either"]

PAIRS = 3  # of runs for an interval over seeds: with two, Student's t is too wide to decide anything
SCORE_MARGIN = 0.02  # differences of scores up to this count as none: two percentage points
MARGIN_SHARE = 0.2  # of the baseline's steps or density counts as no difference; the paper claims 26 to 65 %
TOLERANCE = 1e-4  # relative deviation that counts as equal if a formula holds up to the 1e-6 in the z-score


def share_margin(baseline: float) -> float:
    """Return the margin of a share: with a baseline of 0.6 %, one of two points would make anything parity."""
    return min(SCORE_MARGIN, MARGIN_SHARE * baseline)


def untested(reason: str) -> Finding:
    """Return the finding of a quantity that was not measured."""
    return Finding(MISSING, "", Judgement(Verdict.NOT_TESTED, reason))


def judge(rule: Rule, found: Difference, margin: float) -> Judgement:
    """Judge a difference method - baseline by a rule; `margin` is in its unit."""
    if math.isnan(found.value):
        return Judgement(Verdict.NOT_TESTED, "no pair of runs to compare here")
    if found.over == "seeds" and found.pairs < PAIRS:
        pairs = f"{found.pairs} pair{'s' * (found.pairs != 1)} of runs"
        return Judgement(Verdict.NOT_DECIDABLE, f"{_side(rule, found.value)}; {pairs}, {PAIRS} are needed")
    if found.over == "questions" and found.low == found.high == 0:
        return Judgement(Verdict.NOT_DECIDABLE, "no question differs, so the interval over questions has no width")
    verdict, reason = _by_interval(rule, found, margin)
    return Judgement(verdict, f"{reason} (over questions, one run each)" if found.over == "questions" else reason)


def overall(judgements: Sequence[Judgement]) -> Judgement:
    """Return the verdict on a claim from those on its comparisons: the worst of those that could be made."""
    counts = Counter(found.verdict for found in judgements)
    worst = next(verdict for verdict in OF_CLAIMS if counts[verdict])
    if worst is Verdict.NOT_TESTED:
        return Judgement(worst, "; ".join(dict.fromkeys(reason for _, reason in judgements)))
    if len(judgements) == 1:
        return judgements[0]
    parts = [f"{counts[verdict]} {verdict}" for verdict in OF_CLAIMS if counts[verdict]]
    return Judgement(worst, f"of {len(judgements)} comparisons {', '.join(parts)}")


def _by_interval(rule: Rule, found: Difference, margin: float) -> Judgement:
    """Judge by the position of the interval: the first matching case of the rule decides."""
    low, high = found.low, found.high
    within, zero = -margin <= low and high <= margin, low <= 0 <= high
    claimed, side = (high < 0) == (rule == "less"), Verdict.HIGHER if low > 0 else Verdict.LOWER
    # The first case that holds decides, so the order of a rule's cases matters.
    cases = {
        "little": [
            (within, Verdict.REPRODUCED, "the interval lies within the margin"),
            (not zero and abs(found.value) > margin, Verdict.NOT_REPRODUCED, "it differs by more than the margin"),
            (True, Verdict.NOT_DECIDABLE, "the interval reaches beyond the margin"),
        ],
        "not_worse": [
            (low > -margin, Verdict.REPRODUCED, "the interval lies above minus the margin"),
            (high < 0, Verdict.NOT_REPRODUCED, "lower: the interval is below 0 and reaches below minus the margin"),
            (True, Verdict.NOT_DECIDABLE, "the interval contains 0 and reaches below minus the margin"),
        ],
    }
    beyond = f"{_side(rule, found.value)}; the interval contains 0 and reaches beyond the margin"
    differs = [
        (zero and within, Verdict.PARITY, "the interval contains 0 and lies within the margin"),
        (zero, Verdict.NOT_DECIDABLE, beyond),
        (rule == "either", side, "the interval excludes 0"),
        (claimed, Verdict.REPRODUCED, "the interval excludes 0 on the claimed side"),
        (True, Verdict.NOT_REPRODUCED, "the opposite: the interval excludes 0 on the other side"),
    ]
    return next(Judgement(verdict, reason) for holds, verdict, reason in cases.get(rule, differs) if holds)


def _side(rule: Rule, value: float) -> str:
    """Return the sign of an inconclusive difference in words."""
    if value == 0:
        return "no difference"
    if rule in ("less", "more"):
        return "on the claimed side" if (value < 0) == (rule == "less") else "on the other side"
    return "lower" if value < 0 else "higher"


# --- formulas: a deviation is an error of the code --------------------------------------------------------------


def _exact(text: str, detail: str, worst: float, steps: int) -> Finding:
    """Return the finding on a formula: `worst` is the largest relative deviation over `steps` values."""
    if steps == 0:
        return Finding(text, detail, Judgement(Verdict.NOT_TESTED, "no step to check it at"))
    if worst <= TOLERANCE:
        return Finding(text, detail, Judgement(Verdict.REPRODUCED, "it holds at every step"))
    reason = f"the largest deviation is above {TOLERANCE:g}"
    return Finding(text, detail, Judgement(Verdict.NOT_REPRODUCED, reason))


def balanced_energy(view: RunsView) -> Finding | None:
    """Compare the energies of DARA-Sym's contributions, where every reward is active and no weight is at its cap."""
    energies = _energies(view, "dara_sym")
    if energies.empty:
        return None
    by_step = energies.groupby(["run_id", "step"])
    smallest, largest = by_step["contributed"].min(), by_step["contributed"].max()
    active, capped = by_step["density"].min() > 0, by_step["capped"].any()
    ratio = (smallest / largest.where(largest > 0))[active]
    free, bound = ratio[~capped[active]], ratio[capped[active]]
    worst = float((1 - free).abs().max()) if len(free) else 0.0
    detail = f"the cap binds at {len(bound)} of {len(ratio)} steps"
    detail += f"; the ratio there: median {number(float(bound.median()), 2)}" if len(bound) else ""
    text = f"1 ± {_tiny(worst)} at {len(free):,} steps" if len(free) else MISSING
    return _exact(text, detail, worst, len(free))


def bounded_energy(view: RunsView) -> Finding | None:
    """Compare the energies of DARA-Asym's contributions with those of its z-scores and the weights."""
    energies = _energies(view, "dara_asym")
    energies = energies[(energies["energy"] > 0) & energies["weight"].notna()]
    if energies.empty:
        return None
    low, high = energies["energy"], energies["energy"] * energies["weight"] ** 2
    below, above = (low - energies["contributed"]) / low, (energies["contributed"] - high) / high
    worst = max(0.0, float(below.max()), float(above.max()))
    inside = int(((below <= TOLERANCE) & (above <= TOLERANCE)).sum())
    raised = energies["weight"] > 1 + TOLERANCE
    place = ((energies["contributed"] - low) / (high - low).where(raised))[raised]
    detail = f"at a share {number(float(place.median()), 2)} of the way to w² E (median)" if len(place) else ""
    text = f"inside at {inside:,} of {len(energies):,} steps and rewards"
    return _exact(text, detail, worst, len(energies))


def energy_of_density(view: RunsView) -> Finding | None:
    """Compare the energies of the z-scores of all runs with B pi (G - 1)."""
    energies, curves = _energies(view, None), view.frames["training_curves"]
    groups = curves.loc[curves["metric"] == "groups", ["run_id", "step", "value"]]
    energies = energies.merge(groups.rename(columns={"value": "groups"}), on=["run_id", "step"])
    if energies.empty:
        return None
    expected = energies["groups"] * energies["density"] * (energies["group_size"] - 1)
    # Without an active group both are 0, and a deviation would be relative to nothing.
    worst = float(((energies["energy"] - expected).abs() / expected.where(expected > 0, 1.0)).max())
    return _exact(f"largest deviation {_tiny(worst)} at {len(energies):,} steps and rewards", "", worst, len(energies))


def _energies(view: RunsView, method: str | None) -> pd.DataFrame:
    """Return the rows of the frame energies, with sums over the signs and whether the weight is at its cap."""
    runs = view.selection.present
    runs = runs if method is None else runs[runs["method"] == method]
    rows = view.frames["energies"]
    rows = rows[rows["run_id"].isin(runs["run_id"])].copy()
    rows["energy"] = rows["energy_pos"] + rows["energy_neg"]
    rows["contributed"] = rows["contributed_pos"] + rows["contributed_neg"]
    densest = rows.groupby(["run_id", "step"])["density"].transform("max")
    wanted = np.sqrt(densest / rows["density"].where(rows["density"] > 0))
    rows["capped"] = wanted > rows["weight"] * (1 + 1e-9)
    return rows


def _tiny(value: float) -> str:
    """Return a small deviation as short text: 0, or 3e-6."""
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")
