"""Static-Asym: DARA-Asym with fixed weights, the ablation of density."""

from collections.abc import Sequence

from dara.methods.core import Aggregate, Batch, per_reward


def contributions(batch: Batch, *, weights: Sequence[float]) -> Aggregate:
    """Return z_k + (w_k - 1) max(z_k, 0) with the given w (K,), (B, G, K)."""
    fixed = per_reward("weights", weights, batch)
    return Aggregate(batch.z + (fixed - 1) * batch.z.clamp(min=0), weights=fixed)
