"""GRPO: the group z-score of the summed reward. No final normalisation."""

import torch
from torch import Tensor

from dara.methods.core import Batch, center, group_std

FINAL_NORMALIZATION = "none"


def contributions(batch: Batch) -> Tensor:
    """Return (r_k - mean_k) / (std of the total + eps), (B, G, K); 0 where the totals of a group are equal.

    Equal means up to the rounding of a sum (0.1 + 0.2 and 0.3 + 0): a difference of 1e-17 would give contributions of
    1e5 that cancel in the score, but not in the energies.
    """
    total = batch.total.unsqueeze(-1)
    spread = total.amax(dim=1, keepdim=True) - total.amin(dim=1, keepdim=True)
    largest = (batch.rewards * batch.reward_weights).abs().sum(dim=-1, keepdim=True).amax(dim=1, keepdim=True)
    rounding = 2 * (batch.rewards.shape[-1] - 1) * torch.finfo(total.dtype).eps * largest
    scaled = batch.centered / (group_std(center(total)) + batch.eps)
    return torch.where(spread <= rounding, torch.zeros_like(scaled), scaled)
