"""Checks of what comes from data and configuration. Model text is never checked: every text has a reward."""

from __future__ import annotations

from numbers import Real


def check_reference(reference: object) -> None:
    """Raise ValueError unless the reference is a string that says something."""
    if not isinstance(reference, str):
        raise ValueError(f"reference must be a string, got {type(reference).__name__}: {reference!r:.80}")
    if not reference.strip():
        raise ValueError(f"reference is blank ({reference!r:.80}): a row without an answer cannot be scored")


def check_limit(limit: object) -> None:
    """Raise ValueError unless the limit is a number >= 0 (a NaN would turn the reward into a constant 0)."""
    if not isinstance(limit, Real) or not limit >= 0:
        raise ValueError(f"limit of a length reward must be a number >= 0, got {limit!r}")
