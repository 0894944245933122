"""Densities and energies of rewards, from raw rewards.

The trainer logs the same quantities for its batches. This is an independent computation in NumPy, which checks the log
and needs no model library.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EPS = 1e-6
"""Added to a group's standard deviation."""

TAU = 1e-8
"""A group is active if the sum of its absolute z-scores is above this."""


class Energies(NamedTuple):
    """Sums of squares over a batch of B groups of G responses, split by sign; arrays (..., K)."""

    positive: np.ndarray
    negative: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Return the energy of each reward, (..., K)."""
        return self.positive + self.negative

    @property
    def share(self) -> np.ndarray:
        """Return each reward's share of the energy of all K rewards, (..., K); NaN if there is no energy at all."""
        total = self.total.sum(axis=-1, keepdims=True)
        return np.divide(self.total, total, out=np.full(self.total.shape, np.nan), where=total > 0)


def group_z_scores(rewards: np.ndarray, eps: float = EPS) -> np.ndarray:
    """Return z-scores within each group: (r - mean) / (s + eps), s with divisor G - 1; exactly 0 in a constant group.

    `rewards` are the raw ones, (..., B, G, K) with G >= 2. Raise ValueError for another shape or a
    reward that is not finite.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim < 3 or values.shape[-2] < 2:
        raise ValueError(f"rewards must be (..., B, G, K) with G >= 2 (given: shape {values.shape})")
    if not np.isfinite(values).all():
        where = tuple(int(index) for index in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"rewards: the value at {where} is {values[where]}; every reward must be finite")
    mean, deviation = values.mean(axis=-2, keepdims=True), values.std(axis=-2, ddof=1, keepdims=True)
    # Values are compared exactly, since the computed deviation of equal values may differ from 0.
    constant = values.max(axis=-2, keepdims=True) == values.min(axis=-2, keepdims=True)
    return np.where(constant, 0.0, (values - mean) / (deviation + eps))


def active_density(z: np.ndarray, tau: float = TAU) -> np.ndarray:
    """Return the share of active groups, pi_k = (1 / B) #{i: sum_j |z_k(i, j)| > tau}; z (..., B, G, K) -> (..., K)."""
    return (np.abs(z).sum(axis=-2) > tau).mean(axis=-2)


def energies(terms: np.ndarray) -> Energies:
    """Return the energies of z-scores or of contributions, (..., B, G, K) -> (..., K).

    For z-scores the total is B pi_k (G - 1) as eps goes to 0 (the paper's Eq. 5).
    """
    squares = np.square(terms)
    return Energies(*(np.where(side, squares, 0.0).sum(axis=(-3, -2)) for side in (terms > 0, terms < 0)))
