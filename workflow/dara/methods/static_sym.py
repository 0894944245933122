"""Static-Sym: DARA-Sym with fixed weights, the ablation of density."""

from collections.abc import Sequence

from dara.methods.core import Aggregate, Batch, per_reward


def contributions(batch: Batch, *, weights: Sequence[float]) -> Aggregate:
    """Return w_k z_k with the given w (K,), (B, G, K)."""
    fixed = per_reward("weights", weights, batch)
    return Aggregate(fixed * batch.z, weights=fixed)
