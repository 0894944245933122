"""GDPO-SAW (arXiv 2606.07705, in the form of DARA's authors): weights by the rewards' coefficients of variation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dara.methods.core import Aggregate, Batch, bounds


def coefficients_of_variation(rewards: Tensor, mins: Tensor) -> Tensor:
    """Return std / mean (K,) over all responses of the rewards (B, G, K) above their minima (K,), ddof 1."""
    shifted = (rewards - mins).flatten(0, 1) + 1e-8
    return shifted.std(dim=0) / shifted.mean(dim=0).clamp(min=1e-8)


def contributions(batch: Batch, *, mins: Sequence[float] | None = None) -> Aggregate:
    """Return w_k z_k with w_k = K cv_k / sum_l cv_l, 1 where nothing varies, (B, G, K)."""
    cv = coefficients_of_variation(batch.rewards, bounds("mins", mins, 0, batch))
    weights = len(cv) * cv / cv.sum() if cv.sum() > 1e-8 else torch.ones_like(cv)
    return Aggregate(weights * batch.z, weights=weights)
