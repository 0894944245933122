"""Every method against a second, slow implementation: plain Python loops over one response at a time."""

import math

import pytest
import torch

from dara.methods import available_methods, energies, load_method

EPS, TAU = 1e-6, 1e-8


def mean(values):
    return math.fsum(values) / len(values)


def deviation(values, ddof=1):
    if all(v == values[0] for v in values):
        return 0.0
    m = mean(values)
    return math.sqrt(math.fsum((v - m) ** 2 for v in values) / (len(values) - ddof))


def z_of(values):
    if all(v == values[0] for v in values):
        return [0.0] * len(values)
    m, s = mean(values), deviation(values)
    return [(v - m) / (s + EPS) for v in values]


def reference_weights(name, rewards, density, params):
    """The weight of each reward."""
    k_all = range(len(density))
    if name.startswith("dara"):
        return [min(params.get("w_max", 5.0), math.sqrt(max(density) / d)) if d > 0 else 1.0 for d in density]
    if name.startswith("static"):
        return params["weights"]
    if name == "gdpo_saw":
        cv = []
        for k in k_all:
            x = [r[k] - params["mins"][k] + 1e-8 for group in rewards for r in group]
            cv.append(deviation(x) / max(mean(x), 1e-8))
        return [len(cv) * c / sum(cv) for c in cv] if sum(cv) > 1e-8 else [1.0 for _ in cv]
    if name == "sa_mrpo":
        weights = []
        for k in k_all:
            low, high = params["mins"][k], params["maxs"][k]
            saturated = (mean([r[k] for group in rewards for r in group]) - low) / (high - low)
            weights.append((1 - saturated) ** params.get("gamma", 0.5))
        return weights
    return [1.0 for _ in k_all]


def reference_scores(name, group, z, weights):
    """The scores of one group's responses. group: rewards of each response, z: z-scores of each response."""
    if name == "grpo":
        return z_of([math.fsum(r) for r in group])
    if name == "dvao":
        columns = list(zip(*group, strict=True))
        scale = sum(deviation(c, ddof=0) for c in columns) / len(columns)
        if scale <= TAU:
            return [0.0] * len(group)
        means = [mean(c) for c in columns]
        return [sum((v - m) / len(columns) for v, m in zip(r, means, strict=True)) / scale for r in group]
    if name.endswith("asym"):
        return [sum(w * v if v > 0 else v for w, v in zip(weights, row, strict=True)) for row in z]
    return [sum(w * v for w, v in zip(weights, row, strict=True)) for row in z]


def reference(name, rewards, lengths, normalization, params):
    """(advantages, density, weights, energies of z) of nested lists rewards[b][g][k]."""
    n_rewards = len(rewards[0][0])
    z = []
    for group in rewards:
        columns = [z_of([r[k] for r in group]) for k in range(n_rewards)]
        z.append([list(row) for row in zip(*columns, strict=True)])
    density = [mean([float(sum(abs(row[k]) for row in group) > TAU) for group in z]) for k in range(n_rewards)]
    weights = reference_weights(name, rewards, density, params)
    scores, repeats = [], []
    for group, z_group, group_lengths in zip(rewards, z, lengths, strict=True):
        scores += reference_scores(name, group, z_group, weights)
        for row, length in zip(z_group, group_lengths, strict=True):
            dropped = name == "gd2po_hard" and max(row) > TAU and min(row) < -TAU
            repeats.append(0 if dropped else length if normalization == "token" else 1)
    if normalization != "none":
        pool = [s for s, n in zip(scores, repeats, strict=True) for _ in range(n)]
        if len(pool) <= 1:
            scores = [0.0] * len(scores)
        else:
            m, s = mean(pool), deviation(pool)
            scale = s + EPS if normalization == "response" else math.sqrt(s * s + 1e-8)
            scores = [(v - m) / scale if n else 0.0 for v, n in zip(scores, repeats, strict=True)]
    energy = [sum(row[k] ** 2 for group in z for row in group) for k in range(n_rewards)]
    return scores, density, weights, energy


def random_batch(seed, n_rewards):
    """Rewards between -3 and 3 with sparse binary, continuous, near-constant and constant groups; lengths."""
    generator = torch.Generator().manual_seed(seed)
    groups = int(torch.randint(1, 7, (), generator=generator))
    responses = int(torch.randint(2, 7, (), generator=generator))
    shape = (groups, responses, n_rewards)
    rewards = torch.rand(shape, generator=generator, dtype=torch.float64) * 6 - 3
    kind = torch.randint(0, 4, (groups, 1, n_rewards), generator=generator).expand(shape)
    rewards = torch.where(kind == 1, (rewards > 2).double(), rewards)
    rewards = torch.where(kind == 2, 0.3, rewards)
    rewards = torch.where(kind == 3, 1 + 1e-5 * (rewards > 0).double(), rewards)
    return rewards, torch.randint(1, 9, shape[:2], generator=generator)


def parameters(name, n_rewards):
    if name.startswith("static"):
        return {"weights": [1.0, 5.0, 0.5][:n_rewards]}
    if name == "gdpo_saw":
        return {"mins": [-3.0] * n_rewards}
    if name == "sa_mrpo":
        return {"mins": [-3.0] * n_rewards, "maxs": [3.0] * n_rewards, "gamma": 0.7}
    return {"w_max": 1.5} if name == "dara_sym" else {}


@pytest.mark.parametrize("normalization", ["none", "response", "token"])
@pytest.mark.parametrize("name", available_methods())
def test_equals_the_loops(name, normalization):
    for seed in range(24):
        n_rewards = 1 + seed % 3
        rewards, lengths = random_batch(seed, n_rewards)
        params = parameters(name, n_rewards)
        out = load_method(name, final_normalization=normalization, **params)(rewards, lengths)
        advantages, density, weights, energy = reference(
            name, rewards.tolist(), lengths.tolist(), normalization, params
        )
        dropped = torch.zeros_like(out.advantages) if normalization == "none" else out.advantages
        actual = torch.where(out.keep, out.advantages, dropped).flatten()
        expected = torch.tensor(advantages, dtype=torch.float64)
        if normalization == "none":
            expected = expected * out.keep.flatten()
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(out.density, torch.tensor(density, dtype=torch.float64))
        torch.testing.assert_close(out.weights, torch.tensor(weights, dtype=torch.float64))
        torch.testing.assert_close(sum(energies(out.z)), torch.tensor(energy, dtype=torch.float64))


def test_the_random_batches_hold_every_kind_of_group():
    batches = [random_batch(seed, 1 + seed % 3)[0] for seed in range(24)]
    spreads = torch.cat([(b.amax(1) - b.amin(1)).flatten() for b in batches])
    assert (spreads == 0).sum() > 10
    assert ((spreads > 0) & (spreads < 1e-4)).sum() > 10
    assert (spreads > 1e-4).sum() > 10
