"""Definition of a reward (a function with a range, inputs and parameters), and checks of references and limits.

Model text is never checked: every text has a reward.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

INPUTS = ("response", "reference", "n_tokens")
"""The inputs that a reward's function can have, as names of its parameters without a default: the response's text (for
tool calling the assistant turn), the row's reference, and the number of response tokens with the end token."""


@dataclass(frozen=True)
class Reward:
    """A reward: its function, and the range of its values.

    The function's parameters without a default are its inputs (INPUTS); those with one can be set by a configuration.
    """

    function: Callable[..., float]
    minimum: float
    maximum: float
    own: str = ""  # location of a user's own function

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Return the inputs of the function, in its order."""
        signature = inspect.signature(self.function).parameters
        return tuple(name for name, one in signature.items() if one.default is one.empty)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Return the parameters that a configuration may set."""
        return tuple(name for name in inspect.signature(self.function).parameters if name not in self.inputs)


def check_reference(reference: object) -> None:
    """Raise ValueError unless the reference is a string that is not blank."""
    if not isinstance(reference, str):
        raise ValueError(f"reference must be a string, got {type(reference).__name__}: {reference!r:.80}")
    if not reference.strip():
        raise ValueError(f"reference is blank ({reference!r:.80}): a row without an answer cannot be scored")


def check_limit(limit: object) -> None:
    """Raise ValueError unless the limit is a number >= 0 (a NaN would make the reward a constant 0)."""
    if not isinstance(limit, Real) or not limit >= 0:
        raise ValueError(f"limit of a length reward must be a number >= 0, got {limit!r}")
