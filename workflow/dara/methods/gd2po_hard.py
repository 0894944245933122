"""GD2PO-Hard (arXiv 2606.16771, in the form of DARA's authors): responses whose rewards disagree are left out."""

from dara.methods.core import Aggregate, Batch


def contributions(batch: Batch) -> Aggregate:
    """Return z_k, (B, G, K); responses in conflict (one z > tau, another < -tau) are not kept.

    The loss of a group is weighted by its share of kept responses.
    """
    conflict = (batch.z > batch.tau).any(dim=-1) & (batch.z < -batch.tau).any(dim=-1)
    kept = (~conflict).to(batch.z.dtype)
    ratio = float(kept.mean())
    return Aggregate(
        batch.z,
        keep=~conflict,
        loss_weight=kept.mean(dim=1, keepdim=True),
        diagnostics={"conflict_ratio": 1 - ratio, "keep_ratio": ratio},
    )
