"""DVAO (arXiv 2605.25604, as used by DARA's authors): rewards share one scale, the weighted sum of their deviations.

No final normalisation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dara.methods.core import Batch, group_std, per_reward

FINAL_NORMALIZATION = "none"


def contributions(batch: Batch, *, base_weights: Sequence[float] | None = None) -> Tensor:
    """Return b_k (r_k - mean_k) / sum_l b_l p_l with population deviations p, (B, G, K); 0 if that sum is <= tau."""
    n_rewards = batch.rewards.shape[-1]
    base = per_reward("base_weights", base_weights or [1 / n_rewards] * n_rewards, batch)
    scale = (base * group_std(batch.centered, ddof=0)).sum(dim=-1, keepdim=True)
    active = scale > batch.tau
    return torch.where(active, base * batch.centered / torch.where(active, scale, 1.0), 0.0)
