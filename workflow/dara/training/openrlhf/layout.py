"""Between OpenRLHF's layout of a rollout batch and ours: a list of experiences there, groups of responses here.

An experience is a micro-batch of samples in any order; `index` says where each sample stands in the rollout batch,
whose groups are contiguous. Nothing here imports OpenRLHF, so a test needs no more than torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dara.methods import Method, Output
from dara.specs import RunSpec
from dara.training.advantages import batch_advantages


class Samples(Protocol):
    """What is read and written of OpenRLHF's Experience: n samples, T tokens."""

    index: list[int]
    info: dict[str, Any]  # reward name -> (n,)
    response_length: Tensor  # (n,) tokens
    action_mask: Tensor  # (n, T): whether a token is of the response
    kl: Tensor | None  # (n, T): of each token from the base model
    advantages: Tensor  # (n, T)
    returns: Tensor  # (n, T)


@dataclass(frozen=True)
class Made:
    """What the method was given in a step, and what it made of it."""

    rewards: Tensor  # (B, G, K) float64
    lengths: Tensor  # (B, G)
    output: Output


def set_advantages(
    experiences: Sequence[Samples], spec: RunSpec, method: Method, kl_coefficient: float | None = None
) -> Made:
    """Give the experiences of a rollout batch the method's advantages.

    kl_coefficient: of the KL in the reward; None where there is none. With `reward` as its placement it is OpenRLHF's:
    see `token_advantages`. With `reward_grpo` it is the authors': the response's reward loses the coefficient times the
    KL summed over its tokens, before GRPO's z-score.
    """
    rewards, lengths = rewards_and_lengths(experiences, spec.rewards, spec.group_size)
    in_sum = kl_coefficient is not None and spec.kl.placement == "reward_grpo"
    penalty = -kl_coefficient * kl_sums(experiences).view(lengths.shape) if in_sum else None
    output, advantages = batch_advantages(spec, method, rewards, lengths, penalty)
    for experience, own in zip(experiences, to_experiences(advantages, experiences), strict=True):
        kl = None if kl_coefficient is None or in_sum else experience.kl
        experience.advantages = token_advantages(own, experience.action_mask, kl, kl_coefficient or 0.0)
        experience.returns = experience.advantages.clone()
        experience.kl = None
    return Made(rewards, lengths, output)


def kl_sums(experiences: Sequence[Samples]) -> Tensor:
    """(B * G,) float64 in rollout order: the KL of each response, summed over its tokens."""
    sums = torch.cat([(e.kl.double() * e.action_mask).sum(dim=1) for e in experiences])
    return sums[sample_order(experiences)]


def rewards_and_lengths(experiences: Sequence[Samples], names: Sequence[str], group_size: int) -> tuple[Tensor, Tensor]:
    """Rewards (B, G, K) float64 and response lengths (B, G) in rollout order, of B * G samples."""
    order = sample_order(experiences)
    values = torch.stack([torch.cat([e.info[name].double() for e in experiences]) for name in names], dim=1)
    lengths = torch.cat([e.response_length for e in experiences]).long()
    return values[order].view(-1, group_size, len(names)), lengths[order].view(-1, group_size)


def sample_order(experiences: Sequence[Samples]) -> Tensor:
    """(B * G,): where the sample at each place of the rollout batch stands in the concatenated experiences.

    Raises ValueError unless each place has one sample.
    """
    index = torch.tensor([i for e in experiences for i in e.index])
    order = index.argsort()
    if not torch.equal(index[order], torch.arange(len(index))):
        raise ValueError(f"the samples of the rollout batch are numbered {index.sort().values.tolist()}")
    return order


def to_experiences(values: Tensor, experiences: Sequence[Samples]) -> list[Tensor]:
    """Values (B, G) of the rollout batch as one vector (n,) for each experience."""
    flat = values.flatten()
    return [flat[torch.tensor(e.index)] for e in experiences]


def token_advantages(
    advantages: Tensor, action_mask: Tensor, kl: Tensor | None = None, coefficient: float = 0.0
) -> Tensor:
    """Advantages (n, T) of the tokens: that of the response on each of its tokens, 0 elsewhere.

    advantages (n,); action_mask (n, T), true where a token is of the response. kl (n, T): of each token from the base
    model; a token then also gets -coefficient times the sum of it from there to the end of the response, as OpenRLHF's
    reward KL without discount.
    """
    mask = action_mask.to(torch.float32)
    tokens = advantages.to(torch.float32)[:, None] * mask
    if kl is not None:
        to_go = (kl.to(torch.float32) * mask).flip(1).cumsum(1).flip(1)
        tokens = tokens - coefficient * to_go * mask
    return tokens


def deal(lengths: Sequence[int], updates: int, ranks: int) -> list[list[int]]:
    """The samples of each rank, update by update, in the order in which a rank works through them.

    lengths: tokens of the samples in rollout order. An update gets the next n / updates samples, so whole groups where
    a group does not lie across updates; within it, each rank gets the same number of samples, and long and short ones
    in turn.

    Raises ValueError if the samples cannot be dealt evenly.
    """
    if len(lengths) % (updates * ranks):
        raise ValueError(f"{len(lengths)} responses cannot be dealt to {updates} updates on {ranks} GPUs evenly")
    size = len(lengths) // updates
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for start in range(0, len(lengths), size):
        ordered = sorted(range(start, start + size), key=lambda i: (-lengths[i], i))
        for turn, sample in enumerate(ordered):
            place = turn % ranks
            hands[place if turn // ranks % 2 == 0 else ranks - 1 - place].append(sample)
    return hands


def flatten(items: Iterable[Sequence[Any]]) -> list[Any]:
    """All elements of all items in their order."""
    return [element for item in items for element in item]
