r"""Detection of training problems that are also in a benchmark.

Texts are compared as words: in lower case, with letters, numbers and signs separated, without LaTeX's spacing and
delimiters. Two texts are `equal` if their words are, and `similar` if at least half of the 13-word sequences of the
text with fewer of them also occur in the other. A text of fewer than 13 words has no such sequence: it can only be
equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

LENGTH = 13
SHARE = 0.5
RULE = f"equal words, or at least {SHARE:g} of the {LENGTH}-word sequences of the text with fewer of them"

_SPACING = re.compile(r"\\(?:left|right|displaystyle|quad|qquad|[,;:! ])(?![a-z])|\\[()\[\]]|[$~]")
_WORD = re.compile(r"[^\W\d_]+|\d+|[-+*/=<>^!|_%]")


@dataclass(frozen=True)
class Match:
    """A training problem and a benchmark's question that are the same or nearly so.

    Attributes:
        share: share of the 13-word sequences of the text with fewer of them that occur in the other; 1 for `equal`.
    """

    problem: str
    benchmark: str
    case: str
    rule: Literal["equal", "similar"]
    share: float


@dataclass(frozen=True)
class Text:
    """A question of a benchmark."""

    benchmark: str
    case: str
    text: str


def words(text: str) -> list[str]:
    r"""Return the words of a text.

    >>> words(r"Find $\dfrac{1}{2}+x$.")
    ['find', 'frac', '1', '2', '+', 'x']
    """
    text = _SPACING.sub(" ", unicodedata.normalize("NFKC", text).lower())
    return _WORD.findall(text.replace("dfrac", "frac").replace("tfrac", "frac"))


def matches(problems: Iterable[tuple[str, str]], questions: Sequence[Text]) -> list[Match]:
    """Return every match of the problems (id, text) with the questions, in the order of the problems."""
    # Inverted indices from texts and from 13-word sequences to questions: a problem is compared only with questions
    # that share one with it.
    equal: dict[tuple[str, ...], list[int]] = defaultdict(list)
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    sizes = []
    for index, question in enumerate(questions):
        tokens = words(question.text)
        sequences = _sequences(tokens)
        sizes.append(len(sequences))
        equal[tuple(tokens)].append(index)
        for sequence in sequences:
            holders[sequence].append(index)
    found = []
    for name, text in problems:
        tokens = words(text)
        same = set(equal.get(tuple(tokens), ()))
        sequences = _sequences(tokens)
        shared = Counter(index for sequence in sequences for index in holders.get(sequence, ()))
        for index in sorted({*same, *shared}):
            share = 1.0 if index in same else shared[index] / min(len(sequences), sizes[index])
            if share >= SHARE:
                rule = "equal" if index in same else "similar"
                found.append(Match(name, questions[index].benchmark, questions[index].case, rule, share))
    return found


def _sequences(tokens: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(tokens[start : start + LENGTH]) for start in range(len(tokens) - LENGTH + 1)}
