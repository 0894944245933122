"""The steps shared by all methods: group z-scores, density, DARA's weights, energies, final normalisation.

Shapes: B groups (prompts), G responses per group, K rewards. All statistics are float64, whatever the engine's type.
Deviations, counts and normalisations follow the DARA paper and its two code bases (token and response normalisation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

TOKEN_VARIANCE_EPS = 1e-8  # in the token normalisation, inside the square root
FINAL_NORMALIZATIONS = ("response", "token", "none")


@dataclass(frozen=True)
class Batch:
    """The input of a method: one rollout batch. Do not change the tensors in place."""

    rewards: Tensor  # (B, G, K) raw
    z: Tensor  # (B, G, K) group z-scores, exactly 0 in a constant group
    centered: Tensor  # (B, G, K) reward minus group mean, exactly 0 in a constant group
    total: Tensor  # (B, G) sum of the rewards, each times its reward weight
    density: Tensor  # (K,) share of groups in which the reward varies
    reward_weights: Tensor  # (K,) already in `total`; the contributions are multiplied by them afterwards
    lengths: Tensor | None  # (B, G) response tokens
    ranges: tuple[tuple[float, float], ...] | None  # each reward's (min, max)
    eps: float
    tau: float


@dataclass(frozen=True)
class Aggregate:
    """The result of a method that returns more than its contributions."""

    contributed: Tensor  # (B, G, K)
    weights: Tensor | None = None  # (K,), default 1
    keep: Tensor | None = None  # (B, G) bool, default all: responses that count; the others get advantage 0
    loss_weight: Tensor | None = None  # (B, G) or (B, 1), >= 0, default 1
    diagnostics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """The output of one call of a method. Tensors are float64 on the device of the rewards."""

    advantages: Tensor  # (B, G) after the final normalisation; loss_weight is not applied
    z: Tensor  # (B, G, K)
    contributed: Tensor  # (B, G, K) their sum over K is the score that is normalised
    density: Tensor  # (K,)
    weights: Tensor  # (K,) 1 where the method has no weights
    keep: Tensor  # (B, G) bool
    loss_weight: Tensor  # (B, G) the loss takes advantages * loss_weight
    total: Tensor  # (B, G) weighted sum of the raw rewards, the total to log
    diagnostics: dict[str, float]


def center(values: Tensor) -> Tensor:
    """Return values (B, G, K) minus their group mean; exactly 0 where the group's max equals its min.

    Rounding gives six equal values of 0.3 a mean that is not 0.3, so equality is tested, not the deviation.
    """
    constant = values.amax(dim=1, keepdim=True) == values.amin(dim=1, keepdim=True)
    return torch.where(constant, torch.zeros_like(values), values - values.mean(dim=1, keepdim=True))


def group_std(centered: Tensor, ddof: int = 1) -> Tensor:
    """Return the standard deviation (B, 1, K) of centred values (B, G, K), divisor G - ddof."""
    return (centered.square().sum(dim=1, keepdim=True) / (centered.shape[1] - ddof)).sqrt()


def z_scores(rewards: Tensor, eps: float = 1e-6) -> Tensor:
    """Return group z-scores (B, G, K): (r - mean) / (std + eps) with the sample standard deviation."""
    centered = center(rewards)
    return centered / (group_std(centered) + eps)


def active_density(z: Tensor, tau: float = 1e-8) -> Tensor:
    """Return the density (K,): the share of groups in which sum_j |z| > tau."""
    return (z.abs().sum(dim=1) > tau).to(z.dtype).mean(dim=0)


def dara_weights(density: Tensor, w_max: float) -> Tensor:
    """Return DARA's weights (K,): min(w_max, sqrt(max density / density)); 1 for a reward that varies nowhere."""
    active = density > 0
    ratio = density.max() / torch.where(active, density, torch.ones_like(density))
    return torch.where(active, ratio.sqrt().clamp(max=w_max), torch.ones_like(density))


def energies(x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the energies of the positive and the negative part of x (B, G, K): two (K,), sums of squares.

    The sums are over responses. With keep (B, G) only the kept responses count: for contributions, as a method may drop
    responses.
    """
    if keep is not None:
        x = torch.where(keep.unsqueeze(-1), x, torch.zeros_like(x))
    return x.clamp(min=0).square().sum(dim=(0, 1)), x.clamp(max=0).square().sum(dim=(0, 1))


def normalize(scores: Tensor, keep: Tensor, lengths: Tensor | None, kind: str, eps: float = 1e-6) -> Tensor:
    """Return advantages (B, G) from scores (B, G): standardised over the kept responses, 0 for the others.

    response: (S - m) / (s + eps), each response counts once.   token: (S - m) / sqrt(v + 1e-8), each response counts
    as often as it has tokens (lengths).   none: S.   One kept response or token has no variance: all advantages are 0.
    """
    kept = keep.to(scores.dtype)
    if kind == "none":
        return scores * kept
    counts = kept if kind == "response" else kept * lengths
    n = counts.sum()
    if n <= 1:
        return torch.zeros_like(scores)
    mean = (counts * scores).sum() / n
    variance = (counts * (scores - mean).square()).sum() / (n - 1)
    scale = variance.sqrt() + eps if kind == "response" else (variance + TOKEN_VARIANCE_EPS).sqrt()
    return (scores - mean) / scale * kept


def per_reward(name: str, values: Sequence[float], batch: Batch) -> Tensor:
    """Return the parameter `name` as a (K,) tensor; ValueError if it does not have one value for each reward."""
    k = batch.rewards.shape[-1]
    if len(values) != k:
        raise ValueError(f"{name} has {len(values)} value(s), but there are {k} reward(s): give one for each reward.")
    return batch.rewards.new_tensor(values)


def bounds(name: str, values: Sequence[float] | None, side: int, batch: Batch) -> Tensor:
    """Return the rewards' minima (side 0) or maxima (side 1), (K,): the parameter `name`, else the declared ranges.

    Raises ValueError if neither is given, or if a reward is out of bounds, where the methods that use bounds are
    undefined.
    """
    if values is None:
        if batch.ranges is None:
            raise ValueError(
                f"{name} is not given and the rewards' ranges are not known: give {name}=[...] to load_method, "
                "or ranges=[(min, max), ...] to the call."
            )
        values = [pair[side] for pair in batch.ranges]
    bound = per_reward(name, values, batch)
    excess = (bound - batch.rewards if side == 0 else batch.rewards - bound).amax(dim=(0, 1))
    outside = excess > 1e-6 * (1 + bound.abs())  # rewards may come from float32
    if outside.any():
        k = int(outside.nonzero()[0])
        where = "below" if side == 0 else "above"
        raise ValueError(f"Reward {k} is {float(excess[k]):g} {where} its bound {name}[{k}] = {float(bound[k]):g}.")
    return bound
