"""GDPO: the sum of the rewards' group z-scores."""

from torch import Tensor

from dara.methods.core import Batch


def contributions(batch: Batch) -> Tensor:
    """Return z_k, (B, G, K)."""
    return batch.z
