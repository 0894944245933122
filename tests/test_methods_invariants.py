"""What must hold for every batch: permutations, constant groups, special cases, energies."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.methods import available_methods, energies, load_method

# A few levels only: groups are often constant, and no z-score stands at a threshold by rounding alone.
LEVELS = st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.25, 0.3, 0.7, 1.0])


@st.composite
def batches(draw, min_rewards=1, max_rewards=3):
    """Rewards (B, G, K) in [0, 1] and lengths (B, G)."""
    b, g = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    k = draw(st.integers(min_rewards, max_rewards))
    values = draw(st.lists(LEVELS, min_size=b * g * k, max_size=b * g * k))
    lengths = draw(st.lists(st.integers(1, 30), min_size=b * g, max_size=b * g))
    return torch.tensor(values, dtype=torch.float64).reshape(b, g, k), torch.tensor(lengths).reshape(b, g)


def load(name, n_rewards, **params):
    if name.startswith("static"):
        params["weights"] = [1.0, 5.0, 3.0][:n_rewards]
    return load_method(name, **params)


def run(name, rewards, lengths=None, **params):
    k = rewards.shape[-1]
    return load(name, k, **params)(rewards, lengths, ranges=[(0, 1)] * k)


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


PER_RESPONSE = ("advantages", "z", "contributed", "keep", "loss_weight", "total")
every_method = pytest.mark.parametrize("name", available_methods())
quick = settings(max_examples=40, deadline=None)


@every_method
@quick
@given(batches(), st.randoms(use_true_random=False), st.sampled_from(["response", "token", "none"]))
def test_permuting_groups_and_responses_permutes_the_output(name, case, random, normalization):
    rewards, lengths = case
    b, g, _ = rewards.shape
    groups = random.sample(range(b), b)
    responses = torch.tensor([random.sample(range(g), g) for _ in range(b)])

    def permute(x):
        return x[groups][torch.arange(b).unsqueeze(1), responses]

    before = run(name, rewards, lengths, final_normalization=normalization)
    after = run(name, permute(rewards), permute(lengths), final_normalization=normalization)
    for part in PER_RESPONSE:
        close(getattr(after, part).double(), permute(getattr(before, part)).double(), 1e-7)
    close(after.density, before.density)
    close(after.weights, before.weights)


@every_method
@quick
@given(batches())
def test_constant_groups_contribute_exactly_zero(name, case):
    rewards, _ = case
    out = run(name, rewards)
    constant = (rewards == rewards[:, :1]).all(dim=1, keepdim=True).expand_as(rewards)
    assert not out.z[constant].any()
    assert not out.contributed[constant].any()


@every_method
@quick
@given(batches())
def test_output_is_finite_and_has_its_shapes(name, case):
    rewards, lengths = case
    b, g, k = rewards.shape
    out = run(name, rewards, lengths, final_normalization="token")
    shapes = {"advantages": (b, g), "z": (b, g, k), "contributed": (b, g, k), "density": (k,), "weights": (k,)}
    shapes |= {"keep": (b, g), "loss_weight": (b, g), "total": (b, g)}
    for part, shape in shapes.items():
        assert getattr(out, part).shape == shape
        assert getattr(out, part).isfinite().all()
    assert not out.advantages[~out.keep].any()


@quick
@given(batches(), st.sampled_from(["dara_sym", "dara_asym"]))
def test_cap_of_one_is_gdpo_exactly(case, name):
    rewards, lengths = case
    for normalization in ("response", "token", "none"):
        dara = run(name, rewards, lengths, w_max=1, final_normalization=normalization)
        gdpo = run("gdpo", rewards, lengths, final_normalization=normalization)
        assert torch.equal(dara.advantages, gdpo.advantages)
        assert torch.equal(dara.contributed, gdpo.contributed)


@every_method
@quick
@given(batches(max_rewards=1))
def test_one_reward_equals_grpo_up_to_the_final_normalisation(name, case):
    rewards, _ = case
    if name == "static_asym":  # its one weight need not be 1
        out = load_method(name, weights=[1.0])(rewards)
    else:
        out = run(name, rewards, final_normalization="response")
    grpo = run("grpo", rewards, final_normalization="response")
    # DVAO has no eps, and SA-MRPO's weight scales the score against the final eps: equal up to eps / std.
    if not (name == "sa_mrpo" and out.weights[0] < 0.05):
        close(out.advantages, grpo.advantages, 1e-4)


@quick
@given(batches())
def test_energy_is_density_times_groups_times_g_minus_1(case):
    rewards, _ = case
    b, g, _ = rewards.shape
    out = run("gdpo", rewards, eps=1e-12)
    close(sum(energies(out.z)), b * out.density * (g - 1))


@quick
@given(batches(min_rewards=2))
def test_energy_of_dara_asym_is_between_gdpo_and_dara_sym(case):
    rewards, _ = case
    gdpo, asym, sym = (sum(energies(run(name, rewards).contributed)) for name in ("gdpo", "dara_asym", "dara_sym"))
    assert (gdpo <= asym + 1e-12).all()
    assert (asym <= sym + 1e-12).all()


@quick
@given(batches(min_rewards=2))
def test_energy_of_dara_sym_is_equal_across_rewards_below_the_cap(case):
    rewards, _ = case
    b, g, _ = rewards.shape
    out = run("dara_sym", rewards, w_max=100, eps=1e-12)
    energy = sum(energies(out.contributed))
    expected = torch.where(out.density > 0, b * out.density.max() * (g - 1), 0.0)
    close(energy, expected)


@quick
@given(batches(), st.floats(1, 8))
def test_dara_weights_are_between_one_and_the_cap(case, w_max):
    rewards, _ = case
    out = run("dara_asym", rewards, w_max=w_max)
    assert (out.weights >= 1).all()
    assert (out.weights <= w_max).all()
    assert out.weights[out.density.argmax()] == 1


@quick
@given(batches())
def test_response_normalisation_has_mean_zero_and_almost_unit_deviation(case):
    rewards, _ = case
    for name in ("gdpo", "dara_sym", "dara_asym"):
        out = run(name, rewards)
        deviation = out.contributed.sum(-1).std()
        assert abs(float(out.advantages.mean())) < 1e-9
        close(out.advantages.std(), deviation / (deviation + 1e-6))


@quick
@given(batches(), st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_the_type_of_the_rewards_does_not_matter(case, dtype):
    rewards, _ = case
    rounded = rewards.to(dtype)
    for name in available_methods():
        assert torch.equal(run(name, rounded).advantages, run(name, rounded.double()).advantages)
