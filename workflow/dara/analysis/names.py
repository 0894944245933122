"""Names that tables, figures and statistics share: special methods, engines, and the scores that are compared."""

from __future__ import annotations

BASE = "base"
"""The method of a base model, which is scored once, at step 0."""

BASELINE = "gdpo"
"""What every other method is set against."""

DARA = ("dara_asym", "dara_sym")
"""The paper's two methods."""

PAPER_METHODS = ("grpo", "gdpo", "dvao", "gd2po_hard", *DARA, "static_asym", "static_sym")
"""The methods that the paper compares. Any other is set against DARA too."""

FIXED = {"dara_asym": "static_asym", "dara_sym": "static_sym"}
"""A method whose weights follow the densities, and the same form with fixed weights."""

ENGINES = {"trl": "TRL", "openrlhf": "OpenRLHF"}
"""The engines with their names, in the order in which they are shown."""

SCORES = {
    "tool_calling": {"average_accuracy": "Average Accuracy", "average_format": "Average Format"},
    "math": {
        "acc": "Acc",
        "exceed": "Exceed",
        "joint": "Joint",
        "strict": "strict",
        "math_verify": "math-verify",
    },
}
"""The scores of each task that are compared at the end of training, with their names; all of them are shares."""

VALIDATION = "validation/"
"""How the name of a score on validation rows starts (`validation/format`); the other scores are the benchmark's."""
