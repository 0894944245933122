"""Table: what stands beside the averages: how many cases were unreadable, cut off, or out of room."""

from __future__ import annotations

from collections.abc import Iterable

from dara.analysis.names import VALIDATION
from dara.analysis.tables.at_step import hidden_note, last_steps, last_steps_note, score_table
from dara.analysis.tables.render import Table
from dara.analysis.view import View

ALWAYS = "truncated_rate"
"""The rate that every benchmark has."""

RATES = {
    "decode_error_rate": "Decode errors",
    ALWAYS: "Truncated",
    "context_overflow_rate": "Context overflow",
    "step_limit_rate": "Step limit",
    f"{VALIDATION}{ALWAYS}": "Truncated, validation",
}
MEANING = {
    "decode_error_rate": "no output of the case has a readable call",
    ALWAYS: "an output did not end by itself",
    "context_overflow_rate": "a dialogue had no room for another output (it counts as truncated too)",
    "step_limit_rate": "a dialogue had too many outputs in a turn",
    f"{VALIDATION}{ALWAYS}": "of the validation rows, those whose response did not end by itself",
}


def build(view: View) -> Table:
    """One row a (setting, method), the base model first: the rates that the benchmark has, at the last common step.

    Raises:
        ValueError: the source has no such rate.
    """
    steps = last_steps(view, [ALWAYS], "rate of truncated or unreadable outputs")
    rates = {
        rate: header
        for rate, header in RATES.items()
        if any(view.score(rate, method, where, step) for where, step in steps.items() for method in view.methods)
    }
    notes = [_meaning_note(rates), last_steps_note(view, steps), *hidden_note(view, steps)]
    return score_table(view, rates, steps, "Unreadable and truncated outputs, beside the scores", notes)


def _meaning_note(rates: Iterable[str]) -> str:
    meant = "; ".join(f"{RATES[rate]}: {MEANING[rate]}" for rate in rates)
    return f"Shares of the benchmark's cases, each the mean over its samples. {meant}."
