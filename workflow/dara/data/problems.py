"""What the readers of published data sets give: problems for training and validation, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One row of a data set.

    Attributes:
        messages: what the model is asked, [{"role", "content"}].
        reference: what the rewards compare a response with.
        text: the problem's own words, without instructions: what is compared with benchmarks.
    """

    id: str
    category: str
    messages: list[dict[str, str]]
    reference: str
    text: str


@dataclass(frozen=True)
class Exclusion:
    """A row that is not used, and why: a word for the count, and the details."""

    id: str
    reason: str
    detail: str
