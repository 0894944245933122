"""SA-MRPO (arXiv 2608.16072): a reward counts less the nearer its batch mean is to its maximum."""

from collections.abc import Sequence

from torch import Tensor

from dara.methods.core import Aggregate, Batch, bounds, per_reward


def saturation(rewards: Tensor, mins: Tensor, maxs: Tensor) -> Tensor:
    """Return (batch mean - min) / (max - min), (K,) in [0, 1], of rewards (B, G, K); ValueError for an empty range."""
    if (maxs <= mins).any():
        k = int((maxs <= mins).nonzero()[0])
        raise ValueError(f"maxs[{k}] = {float(maxs[k]):g} is not above mins[{k}] = {float(mins[k]):g}.")
    return ((rewards.mean(dim=(0, 1)) - mins) / (maxs - mins)).clamp(0, 1)


def contributions(
    batch: Batch,
    *,
    mins: Sequence[float] | None = None,
    maxs: Sequence[float] | None = None,
    gamma: float = 0.5,
    base_weights: Sequence[float] | None = None,
) -> Aggregate:
    """Return b_k (1 - saturation_k)^gamma z_k, (B, G, K)."""
    base = per_reward("base_weights", base_weights or [1.0] * batch.rewards.shape[-1], batch)
    saturated = saturation(batch.rewards, bounds("mins", mins, 0, batch), bounds("maxs", maxs, 1, batch))
    weights = base * (1 - saturated) ** gamma
    return Aggregate(weights * batch.z, weights=weights)
