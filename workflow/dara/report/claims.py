"""The claims of the paper, as data: what each says, for which methods, where it is measured, and how it is judged.

Numbers in statements are the authors': percent, and steps of training. Sources: the paper's abstract, its project page
and its result files (docs/published.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dara.analysis.names import BASELINE, DARA
from dara.report import measures
from dara.report.measures import Comparison
from dara.report.sources import Sources
from dara.report.verdicts import RULES, Judgement, Rule, overall

FIRST = "First training step whose mean format reward is at least 0.8."
STABLE = "Stable crossing of the length reward: the mean of 10 steps, held for 20 more."
GROUPS = ("grpo", BASELINE, *DARA)
"""The methods of the experiment on group sizes."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    id: a name for links; statement: what the paper asserts, with its numbers; experiment: where it is tested; methods:
    those that it names, each with a verdict of its own; baselines: what they are compared with; rule: a key of RULES;
    number: how it is measured; measure: makes the comparisons, also where there are no runs.
    """

    id: str
    statement: str
    experiment: str
    methods: tuple[str, ...]
    baselines: tuple[str, ...]
    rule: Rule
    number: str
    measure: Callable[[Sources, Claim], list[Comparison]]


@dataclass(frozen=True)
class Result:
    """What a claim says of one method: its comparisons, and the verdict on it."""

    claim: Claim
    method: str
    label: str
    comparisons: list[Comparison]
    judgement: Judgement

    @property
    def rule(self) -> str:
        """The text of its rule."""
        return RULES[self.claim.rule]


def assess(sources: Sources) -> list[Result]:
    """Every claim for every method that it names, in the order of CLAIMS."""
    results = []
    for claim in CLAIMS:
        found = claim.measure(sources, claim)
        for method in claim.methods:
            mine = [comparison for comparison in found if comparison.method == method]
            judgement = overall([comparison.judgement for comparison in mine])
            results.append(Result(claim, method, sources.label(method), mine, judgement))
    return results


def _score(metric: str, at: int, number: str) -> dict[str, object]:
    """How a held-out score at a step of the paper is measured."""
    return {"number": f"{number} at step {at}, in percent.", "measure": partial(measures.scores, metric=metric, at=at)}


_FORMAT = {"number": FIRST, "measure": partial(measures.steps, kind="first", level=("format", 0.8))}

CLAIMS = (
    Claim(
        "format-gdpo",
        "High format compliance in up to 26 % fewer training steps than GDPO: 14 (DARA-Asym) and 15 (DARA-Sym) "
        "against 19.",
        "tool_main",
        DARA,
        (BASELINE,),
        "less",
        **_FORMAT,
    ),
    Claim(
        "format-grpo",
        "High format compliance in fewer steps than GRPO, which needs 34.",
        "tool_main",
        DARA,
        ("grpo",),
        "less",
        **_FORMAT,
    ),
    Claim(
        "format-60",
        "At step 60 DARA leads in Average Format: 96.0 (DARA-Asym) and 96.1 (DARA-Sym) against 88.1 (GDPO) and 74.7 "
        "(GRPO).",
        "tool_main",
        DARA,
        (BASELINE, "grpo"),
        "more",
        **_score("average_format", 60, "Average Format"),
    ),
    Claim(
        "tool-format",
        "At the end DARA is competitive in Average Format: 97.9 (DARA-Asym) and 97.6 (DARA-Sym) against 97.1 (GDPO).",
        "tool_main",
        DARA,
        (BASELINE,),
        "not_worse",
        **_score("average_format", 100, "Average Format"),
    ),
    Claim(
        "tool-accuracy",
        "At the end DARA is competitive in Average Accuracy: 50.6 (DARA-Asym) and 51.2 (DARA-Sym) against 50.4 (GDPO).",
        "tool_main",
        DARA,
        (BASELINE,),
        "not_worse",
        **_score("average_accuracy", 100, "Average Accuracy"),
    ),
    Claim(
        "group-density",
        "Larger groups make the sparse format reward denser, for every method.",
        "group_size",
        GROUPS,
        (),
        "more",
        f"Mean density of format over the first {measures.DENSITY_STEPS} steps, largest minus smallest group size.",
        measures.group_densities,
    ),
    Claim(
        "group-steps",
        "Larger groups reach a format of 0.8 earlier.",
        "group_size",
        GROUPS,
        (),
        "less",
        f"{FIRST} Largest minus smallest group size.",
        measures.group_steps,
    ),
    Claim(
        "group-every",
        "DARA reaches a format of 0.8 earlier than GRPO and GDPO at every group size.",
        "group_size",
        DARA,
        (BASELINE, "grpo"),
        "less",
        **_FORMAT,
    ),
    Claim(
        "third-reward",
        "With a third reward GDPO loses format (97.1 to 94.4) and DARA keeps it: 96.9 (DARA-Asym) and 97.4 (DARA-Sym).",
        "three_rewards",
        DARA,
        (BASELINE,),
        "more",
        **_score("average_format", 100, "Average Format with three rewards"),
    ),
    Claim(
        "length-99",
        "Near-saturated length compliance, 99 %, in up to 65 % fewer steps than GDPO: 66 and 56 (DARA-Asym), 59 and "
        "50 (DARA-Sym) against 111 and 142.",
        "math_main",
        DARA,
        (BASELINE,),
        "less",
        STABLE,
        partial(measures.steps, kind="stable", level=("length", 0.99)),
    ),
    *(
        Claim(
            f"length-{100 * level:.0f}",
            f"At moderate thresholds the methods differ little: {100 * level:.0f} % after {steps}.",
            "math_main",
            DARA,
            (BASELINE,),
            "little",
            STABLE,
            partial(measures.steps, kind="stable", level=("length", level)),
        )
        for level, steps in (
            (0.8, "20 to 26 steps with all three"),
            (0.9, "37 or 38 steps with DARA, 42 and 39 with GDPO"),
        )
    ),
    Claim(
        "math-accuracy-asym",
        "At step 50 DARA-Asym is competitive in accuracy: 45.8, 60.3 and 58.3 against 44.1, 60.8 and 57.5 (GDPO).",
        "math_main",
        ("dara_asym",),
        (BASELINE,),
        "not_worse",
        **_score("acc", 50, "Acc"),
    ),
    Claim(
        "math-accuracy-sym",
        "DARA-Sym pays for its shorter responses with accuracy on two of three models: 58.8 and 56.0 against 60.8 and "
        "57.5 (GDPO), 44.4 against 44.1 on the third.",
        "math_main",
        ("dara_sym",),
        (BASELINE,),
        "less",
        **_score("acc", 50, "Acc"),
    ),
    Claim(
        "exceed",
        "At step 50 fewer responses exceed the limit with DARA: 8.2, 4.4 and 3.7 (DARA-Asym), 5.2, 1.7 and 1.1 "
        "(DARA-Sym) against 8.7, 7.6 and 6.8 (GDPO).",
        "math_main",
        DARA,
        (BASELINE,),
        "less",
        **_score("exceed", 50, "Exceed"),
    ),
    Claim(
        "joint-asym",
        "DARA-Asym has the better trade-off: more responses are right and short enough (Joint), 45.1, 59.7 and 57.8 "
        "against 43.5, 59.2 and 56.5 (GDPO).",
        "math_main",
        ("dara_asym",),
        (BASELINE,),
        "more",
        **_score("joint", 50, "Joint"),
    ),
    Claim(
        "joint-sym",
        "DARA-Sym trades accuracy for length, so that Joint differs little: 44.1, 58.5 and 55.8 against 43.5, 59.2 "
        "and 56.5.",
        "math_main",
        ("dara_sym",),
        (BASELINE,),
        "little",
        **_score("joint", 50, "Joint"),
    ),
    Claim(
        "held-out",
        "Held-out Exceed falls to 5 % at step 50 with DARA, and at step 70 with GDPO.",
        "math_main",
        DARA,
        (BASELINE,),
        "less",
        "First evaluated checkpoint whose Exceed is at most 5 %.",
        partial(measures.checkpoints, level=("exceed", 0.05)),
    ),
    Claim(
        "fixed-accuracy",
        "A fixed weight of 5 costs accuracy: 46.8 (Static-Asym) against 48.0 (DARA-Asym), 46.0 (Static-Sym) against "
        "46.7 (DARA-Sym).",
        "fixed_weight",
        DARA,
        ("static_asym", "static_sym"),
        "more",
        **_score("acc", 100, "Acc"),
    ),
    Claim(
        "fixed-joint",
        "A fixed weight of 5 costs Joint: 46.7 against 47.8 (DARA-Asym), 46.0 against 46.7 (DARA-Sym).",
        "fixed_weight",
        DARA,
        ("static_asym", "static_sym"),
        "more",
        **_score("joint", 100, "Joint"),
    ),
    Claim(
        "extended-exceed",
        "After longer training DARA-Asym still exceeds the limit less often than GRPO: 0.25 and 0.94 against 0.70 and "
        "1.86.",
        "extended",
        ("dara_asym",),
        ("grpo",),
        "less",
        **_score("exceed", 100, "Exceed"),
    ),
    Claim(
        "extended-accuracy",
        "After longer training DARA-Asym's accuracy is competitive with GRPO's: 62.2 and 64.2 against 63.0 and 64.8.",
        "extended",
        ("dara_asym",),
        ("grpo",),
        "not_worse",
        **_score("acc", 100, "Acc"),
    ),
    Claim(
        "gradients",
        "Equal energies mean that the rewards' gradients fluctuate equally (appendix).",
        "math_main",
        ("dara_sym",),
        (BASELINE,),
        "little",
        "The gradient of each reward on its own, over batches.",
        partial(measures.untested, reason="runs log the norm of the whole gradient, not that of each reward"),
    ),
)
