"""The claims of the paper, as data: what each says, where it is measured, and by which rule it is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dara.report import measures
from dara.report.evidence import Evidence
from dara.report.measures import Comparison
from dara.report.verdicts import RULES, Judgement, overall


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    id: a name for links; statement: what the paper says, in a sentence; experiment: where it is tested (empty: in all);
    number: how it is measured; files: what it is computed from, our frames first and then the published file; rule: a
    key of RULES; measure: makes the comparisons, also where there are no runs.
    """

    id: str
    statement: str
    experiment: str
    number: str
    files: tuple[str, ...]
    rule: str
    measure: Callable[[Evidence], list[Comparison]]


@dataclass(frozen=True)
class Result:
    """A claim with its comparisons and the verdict on it."""

    claim: Claim
    comparisons: list[Comparison]
    judgement: Judgement

    @property
    def rule(self) -> str:
        """The text of its rule."""
        return RULES[self.claim.rule]


def assess(evidence: Evidence) -> list[Result]:
    """Every claim with its comparisons and its verdict, in the order of CLAIMS."""
    results = []
    for claim in CLAIMS:
        comparisons = claim.measure(evidence)
        results.append(Result(claim, comparisons, overall([found.judgement for found in comparisons])))
    return results


FIRST_STEP = "First training step whose mean format reward is at least 0.8, against the baseline over common seeds."
STABLE_STEP = (
    "Stable crossing of the length reward (mean of 10 steps, held for 20 more) against GDPO over common seeds. In the "
    "paper one run a method, so without an interval."
)
LAST_SCORE = (
    "At the last checkpoint that all runs of both methods have, in percent; the difference in percentage points."
)

CLAIMS = (
    Claim(
        "format-gdpo",
        "The sparse format reward is learned in fewer steps with DARA than with GDPO.",
        "tool_main",
        FIRST_STEP,
        ("crossings.csv (first_step)", "first_steps.csv"),
        "differs",
        lambda evidence: measures.first_steps(evidence, "gdpo"),
    ),
    Claim(
        "format-grpo",
        "The sparse format reward is learned in fewer steps with DARA than with GRPO.",
        "tool_main",
        FIRST_STEP,
        ("crossings.csv (first_step)", "first_steps.csv"),
        "differs",
        lambda evidence: measures.first_steps(evidence, "grpo"),
    ),
    Claim(
        "format-share",
        "As many runs learn the format within the planned steps with DARA as with GDPO or GRPO.",
        "tool_main",
        "Runs whose format reward reaches 0.8 in some step, of the runs there are, with Wilson's interval in percent.",
        ("crossings.csv (first_step)", "first_steps.csv"),
        "share",
        measures.shares,
    ),
    Claim(
        "tool-accuracy",
        "DARA's average accuracy in tool calling is not worse at an equal number of steps.",
        "tool_main",
        LAST_SCORE,
        ("checkpoint_scores.csv (average_accuracy)", "tool_step100.csv"),
        "not_worse",
        lambda evidence: measures.accuracies(evidence, "tool_main"),
    ),
    Claim(
        "length-99",
        "In math, 99 % of the responses keep the length limit after fewer steps with DARA than with GDPO.",
        "math_main",
        STABLE_STEP,
        ("crossings.csv (stable_step)", "thresholds.csv"),
        "differs",
        lambda evidence: measures.stable_steps(evidence, (0.99,)),
    ),
    Claim(
        "length-90",
        "Lower levels of length compliance, 90 and 95 %, are reached in fewer steps too.",
        "math_main",
        STABLE_STEP,
        ("crossings.csv (stable_step)", "thresholds.csv"),
        "differs",
        lambda evidence: measures.stable_steps(evidence, (0.9, 0.95)),
    ),
    Claim(
        "math-accuracy",
        "DARA's accuracy in math is not worse at an equal number of steps.",
        "math_main",
        LAST_SCORE,
        ("checkpoint_scores.csv (acc)", "math_step50.csv"),
        "not_worse",
        lambda evidence: measures.accuracies(evidence, "math_main"),
    ),
    Claim(
        "group-density",
        "Larger groups make the sparse reward denser, for every method.",
        "group_size",
        f"Mean density of format over the first {measures.DENSITY_STEPS} steps, largest minus smallest group size, "
        "over common seeds. The paper's are its medians at steps 1 and 5, averaged.",
        ("training_curves.csv (density/format)", "group_size_densities.csv"),
        "differs",
        measures.group_densities,
    ),
    Claim(
        "fixed-weights",
        "DARA's adaptive weights do as well as a fixed weight of 5, or better.",
        "fixed_weight",
        f"Share of responses that are correct and short enough (Joint). {LAST_SCORE}",
        ("checkpoint_scores.csv (joint)", "fixed_weights.csv"),
        "not_worse",
        measures.fixed_weights,
    ),
    Claim(
        "energy-sym",
        "While its cap does not bind, DARA-Sym gives every active reward the same energy: the ratio is 1.",
        "",
        "Smallest over largest energy of the contributions, at steps at which every reward is active.",
        ("energies.csv (contributed_pos + contributed_neg)", "energy_ratios.csv"),
        "exact",
        measures.balanced_energy,
    ),
    Claim(
        "energy-asym",
        "The energy of DARA-Asym lies between that of GDPO and that of DARA-Sym.",
        "",
        "Energy E of a reward's z-scores, its weight w: the contributions of DARA-Asym have an energy in [E, w² E].",
        ("energies.csv (contributed_pos + contributed_neg, weight)",),
        "exact",
        measures.bounded_energy,
    ),
    Claim(
        "energy-density",
        "A reward's energy is B π (G − 1): half the density, half the energy.",
        "",
        "Energy of the z-scores of B groups of G responses, of which the share π is active, at each step of each run.",
        ("energies.csv (energy_pos + energy_neg, density), training_curves.csv (groups)",),
        "exact",
        measures.energy_of_density,
    ),
)
