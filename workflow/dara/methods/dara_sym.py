"""DARA-Sym: each z-score times its reward's density weight, so that every reward has the energy of the densest one."""

from dara.methods.core import Aggregate, Batch, dara_weights


def contributions(batch: Batch, *, w_max: float = 5.0) -> Aggregate:
    """Return w_k z_k with w_k = min(w_max, sqrt(max density / density_k)), (B, G, K)."""
    weights = dara_weights(batch.density, w_max)
    return Aggregate(weights * batch.z, weights=weights)
