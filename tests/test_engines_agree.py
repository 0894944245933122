"""The same rewards give the same advantages in the loss of both engines, each through its own layout of a batch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dara.methods import available_methods, load_method
from dara.rewards import reward_ranges
from dara.training.openrlhf.rollouts import set_advantages
from dara.training.step import Rollouts, batch_advantages, run_method
from training_tiny import tiny_spec

B, G, K, TOKENS = 6, 4, 2, 9
PARAMS = {"static_sym": {"weights": [1.0, 5.0]}, "static_asym": {"weights": [1.0, 5.0]}}


def spec_of(name: str, **changes):
    return tiny_spec(method=name, params=PARAMS.get(name, {}), prompts_per_step=B, group_size=G, **changes)


def logged(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards (B, G, K) as the laptop's are, with constant groups, and lengths (B, G) of at least one token."""
    rng = np.random.default_rng(seed)
    rewards = torch.tensor(rng.integers(0, 2, (B, G, K)).astype(float))
    rewards[0] = 1.0
    return rewards, torch.tensor(rng.integers(1, TOKENS + 1, (B, G)))


def experiences(lengths: torch.Tensor, seed: int = 3) -> list:
    """The same batch as OpenRLHF holds it: micro-batches of unequal size, samples in any order, responses last."""
    order, tokens = np.random.default_rng(seed).permutation(B * G), lengths.flatten()
    made = []
    for index in np.split(order, [5, 6, 17]):
        mask = torch.zeros(len(index), TOKENS + 3, dtype=torch.bool)
        for row, i in zip(mask, index, strict=True):
            row[3 : 3 + tokens[i]] = True
        made.append(SimpleNamespace(index=index.tolist(), action_mask=mask, kl=torch.zeros(mask.shape)))
    return made


def in_openrlhf(spec, rewards, lengths) -> tuple[torch.Tensor, list]:
    """(B, G): what OpenRLHF's loss reads at the tokens of each response, which must be one value."""
    batch = experiences(lengths)
    set_advantages(batch, Rollouts([], [], rewards, lengths), spec, run_method(spec))
    found = torch.full((B * G,), torch.nan)
    for one in batch:
        for i, values, mask in zip(one.index, one.advantages, one.action_mask, strict=True):
            assert values[mask].unique().numel() == 1
            assert (values[~mask] == 0).all()
            found[i] = values[mask][0]
    return found.view(B, G), batch


def in_trl(spec, rewards, lengths, monkeypatch) -> torch.Tensor:
    """(B, G): what TRL's loss reads, from its own batch."""
    from trl import GRPOTrainer

    from dara.training.trl import MultiRewardTrainer

    monkeypatch.setattr(
        GRPOTrainer, "_generate_and_score_completions", lambda self, inputs: {"advantages": torch.zeros(B * G)}
    )
    trainer = MultiRewardTrainer.__new__(MultiRewardTrainer)
    trainer.progress = SimpleNamespace(spec=spec, method=run_method(spec))
    trainer._rollouts = Rollouts([], [], rewards, lengths)
    trainer._sampling_log_probs = [[0.0]] * (B * G)
    return trainer._generate_and_score_completions([])["advantages"].view(B, G)


@pytest.mark.parametrize("normalization", ["own", "token"])
@pytest.mark.parametrize("name", available_methods())
def test_both_engines_hand_the_methods_advantages_to_the_loss(name, normalization, monkeypatch):
    trl = pytest.importorskip("trl", reason="the environment of OpenRLHF has no TRL")
    assert trl.GRPOTrainer
    spec = spec_of(name, final_normalization=normalization)
    own = load_method(name, **PARAMS.get(name, {})).final_normalization
    expected_normalization = "token" if normalization == "token" and own == "response" else own
    method = load_method(name, final_normalization=expected_normalization, **PARAMS.get(name, {}))
    for seed in range(3):
        rewards, lengths = logged(seed)
        out = method(rewards, lengths=lengths, ranges=reward_ranges(spec.task, spec.rewards))
        expected = (out.advantages * out.loss_weight).float()
        assert expected.abs().sum() > 0
        from_openrlhf, _ = in_openrlhf(spec, rewards, lengths)
        assert torch.equal(from_openrlhf, expected)
        assert torch.equal(in_trl(spec, rewards, lengths, monkeypatch), expected)


def test_the_batch_gets_the_methods_output_and_each_place_one_sample():
    rewards, lengths = logged(1)
    spec, batch, rollouts = spec_of("dara_asym"), experiences(lengths, 5), Rollouts([], [], rewards, lengths)
    set_advantages(batch, rollouts, spec, run_method(spec))
    expected = batch_advantages(spec, run_method(spec), rewards, lengths)[0].advantages
    assert torch.equal(rollouts.output.advantages, expected)
    assert all(one.kl is None and torch.equal(one.returns, one.advantages) for one in batch)
    batch[0].index[0] = batch[0].index[1]
    with pytest.raises(ValueError, match="the samples of the rollout batch are numbered"):
        set_advantages(batch, rollouts, spec, run_method(spec))


@pytest.mark.parametrize("name", ["grpo", "dara_asym"])
def test_a_kl_in_the_reward_of_openrlhf(name):
    rewards, lengths = logged(2)
    spec = spec_of(name, **KL_IN_REWARD)
    plain, _ = in_openrlhf(spec, rewards, lengths)
    batch = experiences(lengths)
    kls = []
    for one in batch:
        one.kl = torch.rand(one.action_mask.shape)
        kls += one.kl
    set_advantages(batch, Rollouts([], [], rewards, lengths), spec, run_method(spec), 0.01)
    samples = [sample for one in batch for sample in zip(one.index, one.advantages, one.action_mask, strict=True)]
    for (i, values, mask), kl in zip(samples, kls, strict=True):
        to_go = torch.tensor([kl[mask][place:].sum() for place in range(int(mask.sum()))])  # from there to the end
        assert values[mask].tolist() == pytest.approx((plain.flatten()[i] - 0.01 * to_go).tolist(), abs=1e-6)
        assert (values[~mask] == 0).all()


KL_IN_REWARD = {"engine": "openrlhf", "kl": {"placement": "reward", "coefficient": 0.01}}
KL_OF_GRPO = {"engine": "openrlhf", "kl": {"placement": "reward_grpo", "coefficient": 0.01}}


@pytest.mark.parametrize("weights", [None, [2.0, 0.0]])
def test_the_authors_kl_is_in_grpos_sum_before_its_z_score(weights):
    rewards, lengths = logged(2)
    params = {} if weights is None else {"reward_weights": weights}
    spec = tiny_spec(method="grpo", params=params, prompts_per_step=B, group_size=G, **KL_OF_GRPO)
    batch, rollouts = experiences(lengths), Rollouts([], [], rewards, lengths)
    rng = torch.Generator().manual_seed(0)
    sums = torch.zeros(B * G, dtype=torch.float64)
    for one in batch:
        one.kl = torch.randn(one.action_mask.shape, generator=rng)
        for i, kl, mask in zip(one.index, one.kl, one.action_mask, strict=True):
            sums[i] = kl[mask].double().sum()
    set_advantages(batch, rollouts, spec, run_method(spec), 0.01)
    total = (rewards * torch.tensor(weights or [1.0, 1.0])).sum(-1) - 0.01 * sums.view(B, G)
    expected = (total - total.mean(1, keepdim=True)) / (total.std(1, keepdim=True) + 1e-6)
    for one in batch:
        for i, values, mask in zip(one.index, one.advantages, one.action_mask, strict=True):
            assert values[mask].tolist() == pytest.approx([expected.flatten()[i].item()] * int(mask.sum()), abs=1e-5)
    assert rollouts.output.advantages.numpy() == pytest.approx(expected.numpy(), abs=1e-9)
    assert torch.equal(rollouts.output.z, run_method(spec)(rewards, lengths=lengths).z)


def test_a_penalty_is_for_grpo_only():
    rewards, lengths = logged(2)
    spec = spec_of("gdpo")
    with pytest.raises(ValueError, match="for grpo, not for gdpo"):
        batch_advantages(spec, run_method(spec), rewards, lengths, torch.zeros(B, G))
