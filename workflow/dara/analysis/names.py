"""Names shared by tables, figures and statistics: special methods, engines, and the scores that are compared."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from dara import registries
from dara.registries import REGISTRY, definition

BASE = "base"
"""The method of a base model, which is scored once, at step 0."""

BASELINE = "gdpo"
"""The baseline of every other method."""

DARA = ("dara_asym", "dara_sym")
"""The paper's two methods."""

PAPER_METHODS = ("grpo", "gdpo", "dvao", "gd2po_hard", *DARA, "static_asym", "static_sym")
"""The methods that the paper compares. Any other method is compared with DARA too."""

FIXED = {"dara_asym": "static_asym", "dara_sym": "static_sym"}
"""Method with weights from the densities -> the same form with fixed weights."""

ENGINES = {name: engine.title for name, engine in registries.ENGINES.items()}
"""The engines with their names, in display order."""

HEADLINE: dict[str, tuple[Literal["first", "stable"], float]] = {"format": ("first", 0.8), "length": ("stable", 0.99)}
"""The crossing behind the paper's claims on a sparse reward: 26 % (format), 41 to 65 % (length)."""

SCORES: dict[str, dict[str, str]] = {}
for _name in REGISTRY:
    _benchmark = definition(_name)
    SCORES.setdefault(_benchmark.task, {}).update(_benchmark.headline or {})
"""Scores of each task that are compared at the end of training, with their names; all of them are shares."""

VALIDATION = "validation/"
"""Prefix of the scores on validation rows (`validation/format`); the other scores are the benchmark's."""


def headline_threshold(reward: str, thresholds: Collection[float]) -> float:
    """Return the threshold of the paper's claim on a reward; the lowest one if `thresholds` lacks it."""
    level = HEADLINE[reward][1] if reward in HEADLINE else None
    return level if level in thresholds else min(thresholds)
