"""DARA-Asym: the density weight acts on positive z-scores only; negative ones stay as they are."""

from dara.methods.core import Aggregate, Batch, dara_weights


def contributions(batch: Batch, *, w_max: float = 5.0) -> Aggregate:
    """Return z_k + (w_k - 1) max(z_k, 0) with w_k = min(w_max, sqrt(max density / density_k)), (B, G, K)."""
    weights = dara_weights(batch.density, w_max)
    return Aggregate(batch.z + (weights - 1) * batch.z.clamp(min=0), weights=weights)
