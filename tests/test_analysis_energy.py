"""Densities and energies from raw rewards: by hand, against the closed form, and against what the trainer logs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dara.analysis.energy import Energies, active_density, energies, group_z_scores
from dara.methods import load_method
from dara.training.step import ENGINE_METRICS, step_metrics

# The paper's toy batch: reward 2 varies in one of four groups.
TOY = np.array(
    [
        [[1, 0], [0, 0], [1, 1], [0, 0]],
        [[1, 0], [1, 0], [0, 0], [0, 0]],
        [[0, 0], [1, 0], [0, 0], [1, 0]],
        [[1, 0], [0, 0], [0, 0], [1, 0]],
    ],
    dtype=float,
)


def after(rewards: np.ndarray, name: str) -> tuple[Energies, np.ndarray]:
    """Energies (K,) of what a method makes of a batch (B, G, K), without responses it drops, and its weights (K,)."""
    out = load_method(name)(torch.tensor(rewards))
    return energies(np.where(out.keep[..., None], out.contributed, 0.0)), out.weights.numpy()


def test_toy_batch_by_hand():
    z = group_z_scores(TOY)
    before = energies(z)
    np.testing.assert_array_equal(active_density(z), [1, 0.25])
    np.testing.assert_allclose(before.total, [12, 3], rtol=1e-5)
    np.testing.assert_allclose(before.positive, [6, 2.25], rtol=1e-5)  # (G - 1)(1 - p): 3 groups at 1/2, one at 1/4
    np.testing.assert_allclose(before.share, [0.8, 0.2], rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "total", "share"),
    [("gdpo", [12, 3], 0.2), ("dara_sym", [12, 12], 0.5), ("dara_asym", [12, 9.75], 9.75 / 21.75)],
)
def test_toy_batch_after_each_method(method, total, share):
    made, weights = after(TOY, method)
    np.testing.assert_allclose(made.total, total, rtol=1e-5)
    np.testing.assert_allclose(made.share[1], share, rtol=1e-5)
    np.testing.assert_allclose(weights, [1, 1 if method == "gdpo" else 2], rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (5, 4, 2), elements=st.sampled_from([-3.0, 0.0, 0.5, 1.0, 3.0])))
def test_energy_is_b_pi_g_minus_one(rewards):
    z = group_z_scores(rewards)
    np.testing.assert_allclose(energies(z).total, 5 * active_density(z) * 3, rtol=1e-4)


@pytest.mark.parametrize("value", [0.3, 0.1, 1 / 3])
def test_constant_groups_are_exactly_zero(value):
    z = group_z_scores(np.full((2, 6, 1), value))
    assert not z.any()
    assert np.isnan(energies(z).share).all()
    assert active_density(z) == [0.0]


def test_leading_axes_are_steps():
    steps = np.stack([TOY, 1 - TOY, TOY[::-1]])
    for step, batch in enumerate(steps):
        np.testing.assert_array_equal(group_z_scores(steps)[step], group_z_scores(batch))
        np.testing.assert_array_equal(
            energies(group_z_scores(steps)).total[step], energies(group_z_scores(batch)).total
        )


@pytest.mark.parametrize("name", ["grpo", "gdpo", "dara_sym", "dara_asym", "dvao", "gd2po_hard"])
def test_agrees_with_the_metrics_of_a_step(name):
    rng = np.random.default_rng(4)
    rewards = np.stack([rng.choice([-3, -1, 0.5, 3], (12, 6)), rng.random((12, 6)) < 0.1], axis=-1).astype(float)
    names = ("correctness", "format")
    line = step_metrics(
        1,
        names,
        pool_rewards=torch.from_numpy(rewards),
        pool_lengths=torch.ones(12, 6, dtype=torch.int64),
        output=load_method(name)(torch.from_numpy(rewards)),
        engine=dict.fromkeys(ENGINE_METRICS, 0.0),
    )
    z = group_z_scores(rewards)
    made, weights = after(rewards, name)
    for k, reward in enumerate(names):
        assert line[f"density/{reward}"] == pytest.approx(active_density(z)[k], abs=1e-12)
        assert line[f"weight/{reward}"] == pytest.approx(weights[k], abs=1e-12)
        for sign, before, contributed in (
            ("pos", energies(z).positive, made.positive),
            ("neg", energies(z).negative, made.negative),
        ):
            assert line[f"energy/{reward}/{sign}"] == pytest.approx(before[k], rel=1e-9)
            assert line[f"energy_contributed/{reward}/{sign}"] == pytest.approx(contributed[k], rel=1e-9)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (np.zeros((3, 2)), "must be"),
        (np.zeros((3, 1, 2)), "G >= 2"),
        (np.array([[[0.0], [np.nan]]]), r"the value at \(0, 1, 0\) is nan"),
    ],
)
def test_errors(rewards, message):
    with pytest.raises(ValueError, match=message):
        group_z_scores(rewards)
