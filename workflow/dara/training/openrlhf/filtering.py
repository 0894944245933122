"""Dynamic filtering: prompts whose responses all have the same reward teach nothing, and are replaced by others.

A step draws a pool of candidate groups in rounds, at the same policy, until enough of them vary. The rules are those of
the math training of the paper: whole groups only; the first groups in the order of the prompts are kept, so that a
fast response does not decide; a step that stays short is an error, never a smaller batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from dara.training.openrlhf.labels import PROMPTS_CONSUMED

if TYPE_CHECKING:
    from dara.specs import Filter

LOWEST_ACCEPTANCE = Fraction(1, 20)
MARGIN = Fraction(5, 4)


class TooFewGroupsError(ValueError):
    """The rounds of a step did not give enough groups that vary."""


class Group(Protocol):
    """The responses to one prompt."""

    @property
    def rewards(self) -> np.ndarray:
        """(G, K) float64, raw."""


G = TypeVar("G", bound=Group)


@dataclass(frozen=True)
class Pool(Generic[G]):
    """All groups of a step in the order of their prompts, which of them train, and what the filter did."""

    groups: list[G]
    kept: list[int]  # ascending indices of groups
    metrics: dict[str, float]

    @property
    def rewards(self) -> np.ndarray:
        """(P, G, K) float64: the rewards of the whole candidate pool."""
        return np.stack([group.rewards for group in self.groups])


def varies(rewards: np.ndarray, criterion: str, weights: Sequence[float]) -> bool:
    """Whether a group teaches something.

    rewards: (G, K) float64. weights: K, those of the summed reward. `sum_varies`: the weighted sum is not the same for
    all responses, as in the paper (a group in which two rewards vary and cancel is dropped); `any_reward_varies`: one
    of the rewards that have a weight is not. Both compare the largest with the smallest value, exactly.
    """
    factors = np.asarray(weights, dtype=np.float64)
    values = (rewards * factors).sum(axis=1, keepdims=True) if criterion == "sum_varies" else rewards[:, factors != 0]
    return bool((values.max(axis=0) != values.min(axis=0)).any())


def next_round(
    deficit: int, accepted: int, generated: int, *, group_size: int, world_size: int, candidates: int
) -> int:
    """Prompts of a further round: ceil(deficit / max(acceptance, 0.05) * 1.25), no more than `candidates`.

    acceptance is accepted / generated over the rounds before. At least `group_size`, and up to a multiple of
    `world_size`. In exact arithmetic: a float could round 12.000...01 up.
    """
    acceptance = max(Fraction(accepted, generated), LOWEST_ACCEPTANCE)
    wanted = max(group_size, ceil(deficit / acceptance * MARGIN))
    return min(candidates, ceil(Fraction(wanted, world_size)) * world_size)


def collect(
    draw: Callable[[int], Sequence[G]],
    prompts: int,
    rule: Filter | None,
    weights: Sequence[float],
    *,
    world_size: int = 1,
    step: str = "a step",
) -> Pool[G]:
    """The groups of a step: `prompts` of them train.

    draw(n): the groups of the next n prompts, in their order. rule: the run's filter; None keeps every group.
    weights: of the K rewards in their sum. world_size: GPUs of the actor. step: what to call the step in an error.

    Raises TooFewGroupsError if fewer than `prompts` groups vary after the last round.
    """
    if rule is None:
        groups = _drawn(draw, prompts)
        return Pool(groups, list(range(prompts)), {})
    groups, kept, rounds, size = [], [], 0, rule.candidate_prompts
    while len(kept) < prompts and rounds < rule.max_rounds:
        if rounds:
            size = next_round(
                prompts - len(kept),
                len(kept),
                len(groups),
                group_size=len(groups[0].rewards),
                world_size=world_size,
                candidates=rule.candidate_prompts,
            )
        new = _drawn(draw, size)
        kept += [len(groups) + i for i, group in enumerate(new) if varies(group.rewards, rule.criterion, weights)]
        groups += new
        rounds += 1
    if len(kept) < prompts:
        raise TooFewGroupsError(_too_few(step, len(kept), prompts, len(groups), rule))
    return Pool(groups, kept[:prompts], _metrics(rounds, len(kept), len(groups), prompts))


def _drawn(draw: Callable[[int], Sequence[G]], size: int) -> list[G]:
    groups = list(draw(size))
    if len(groups) != size:
        raise ValueError(f"{size} prompts were to be drawn, but {len(groups)} groups came back")
    return groups


def _metrics(rounds: int, accepted: int, generated: int, prompts: int) -> dict[str, float]:
    return {
        "filter/num_gen_batches": float(rounds),
        "filter/informative_groups_collected": float(accepted),
        PROMPTS_CONSUMED: float(generated),
        "filter/generation_overhead": generated / prompts - 1.0,
        "filter/acceptance": accepted / generated,
    }


def _too_few(step: str, accepted: int, prompts: int, generated: int, rule: Filter) -> str:
    what = "the sum of the rewards" if rule.criterion == "sum_varies" else "a reward"
    return (
        f"{step}: {what} varies in only {accepted} of the {generated} groups of {rule.max_rounds} round(s), and "
        f"{prompts} are needed: raise filter.max_rounds ({rule.max_rounds}) or filter.candidate_prompts "
        f"({rule.candidate_prompts}), or train with fewer prompts_per_step"
    )
