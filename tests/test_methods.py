"""Methods on known numbers: golden cases, cases computed by hand, and every error."""

import json
import math
from pathlib import Path

import pytest
import torch

from dara.methods import METHODS, available_methods, energies, load_method
from dara.methods.core import Batch, dara_weights
from dara.methods.gdpo_saw import coefficients_of_variation
from dara.methods.sa_mrpo import saturation

GOLDEN = json.loads((Path(__file__).parent / "golden" / "advantages.json").read_text())["cases"]
SQRT2 = math.sqrt(2)


def batch(*groups):
    """Groups of responses of rewards as a float64 tensor (B, G, K)."""
    return torch.tensor(groups, dtype=torch.float64)


def close(actual, expected, tolerance=1e-6):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


# Two groups of two responses: reward 1 varies in both, reward 2 in the second.
HAND = batch([[1, 0], [0, 0]], [[1, 1], [0, 0]])


# ---- golden cases ----


def _order(group_ids):
    """Row indices that bring each group together, in the order of first appearance."""
    first = {g: i for i, g in reversed(list(enumerate(group_ids)))}
    return sorted(range(len(group_ids)), key=lambda i: (first[group_ids[i]], i))


@pytest.mark.parametrize("case", GOLDEN, ids=[c["id"] for c in GOLDEN])
def test_golden(case):
    order = _order(case["group_ids"])
    n_groups = len(set(case["group_ids"]))
    rows = torch.tensor(case["rewards"], dtype=torch.float64)
    rewards = rows[order].reshape(n_groups, -1, rows.shape[-1])
    lengths, params = None, dict(case["params"])
    if case["response_lengths"]:
        lengths = torch.tensor(case["response_lengths"])[order].reshape(n_groups, -1)
        if case["method"] not in ("grpo", "dvao"):
            params["final_normalization"] = "token"
    out = load_method(case["method"], **params)(rewards, lengths)

    def original(x):
        flat = x.reshape(len(order), *x.shape[2:])
        return flat[torch.tensor(order).argsort()]

    minima, maxima = ([float(v) for v in params.get(name, [])] for name in ("mins", "maxs"))
    seen = {
        "channel_advantages": lambda: original(out.z),
        "advantages": lambda: original(out.advantages),
        "pre_normalization": lambda: original(out.contributed.sum(-1)),
        "conflict": lambda: original((~out.keep).double()),
        "query_weight": lambda: original(out.loss_weight),
        "conflict_ratio": lambda: torch.tensor(out.diagnostics["conflict_ratio"], dtype=torch.float64),
        "density": lambda: out.density,
        "weights": lambda: out.weights,
        "energy_gdpo": lambda: sum(energies(out.z)),
        "energy_calibrated": lambda: sum(energies(out.contributed)),
        "cv": lambda: coefficients_of_variation(rewards, rewards.new_tensor(minima)),
        "saturation": lambda: saturation(rewards, rewards.new_tensor(minima), rewards.new_tensor(maxima)),
    }
    for name, expected in case["expected"].items():
        if name == "base_weights":  # DVAO's own default, which no output shows: given, it changes nothing
            close(load_method("dvao", base_weights=expected)(rewards).advantages, out.advantages, 1e-15)
        elif name == "gamma":
            assert expected == params.get("gamma", 0.5)
        else:
            close(seen[name](), torch.as_tensor(expected, dtype=torch.float64))


def test_golden_covers_every_method():
    assert {c["method"] for c in GOLDEN} == set(available_methods())
    assert available_methods() == [
        *("grpo", "gdpo", "dara_sym", "dara_asym", "static_sym", "static_asym"),
        *("dvao", "gd2po_hard", "gdpo_saw", "sa_mrpo"),
    ]


# ---- by hand ----


@pytest.mark.parametrize(
    ("name", "normalization", "expected"),
    [
        ("grpo", "none", [[0.7071, -0.7071], [0.7071, -0.7071]]),
        ("gdpo", "response", [[0.5477, -0.5477], [1.0954, -1.0954]]),
        ("dara_sym", "response", [[0.4687, -0.4687], [1.1315, -1.1315]]),
        ("dara_asym", "response", [[0.4523, -0.5568], [1.1658, -1.0613]]),
    ],
)
def test_two_groups(name, normalization, expected):
    out = load_method(name, final_normalization=normalization, eps=1e-12)(HAND)
    close(out.advantages, expected, 5e-5)
    close(out.density, [1, 0.5], 0)
    close(out.weights, [1, SQRT2] if name.startswith("dara") else [1, 1], 1e-12)


def test_grpo_and_gdpo_cancel_where_dara_sym_does_not():
    rewards = batch([[1, 0], [0, 1]], [[1, 0], [0, 0]])
    for name in ("grpo", "gdpo"):
        close(load_method(name, final_normalization="none")(rewards).advantages[0], [0, 0], 0)
    dara = load_method("dara_sym", final_normalization="none", eps=1e-12)(rewards)
    # The sparse reward is the second: weight sqrt 2, so (1 - sqrt 2) / sqrt 2.
    close(dara.advantages[0], [-0.2929, 0.2929], 5e-5)


def test_toy_batch_energies():
    rewards = torch.zeros(4, 4, 2, dtype=torch.float64)
    rewards[:, :2, 0] = 1
    rewards[0, 0, 1] = 1
    expected = {"gdpo": (12, 3), "dara_sym": (12, 12), "dara_asym": (12, 9.75)}
    for name, energy in expected.items():
        out = load_method(name, eps=1e-12)(rewards)
        close(sum(energies(out.contributed)), energy, 1e-9)
        close(out.density, [1, 0.25], 0)
    close(out.weights, [1, 2], 0)


def test_energies_split_by_sign_and_keep():
    x = batch([[1, -2], [-1, 0]], [[3, 1], [0, 1]])
    positive, negative = energies(x)
    close(positive, [10, 2], 0)
    close(negative, [1, 4], 0)
    positive, negative = energies(x, torch.tensor([[False, True], [True, False]]))
    close(positive, [9, 1], 0)
    close(negative, [1, 0], 0)


def test_binary_group_splits_its_energy_by_the_share_of_successes():
    # c = 1 success of G = 4: positive part (G - 1)(1 - p), negative part (G - 1) p.
    positive, negative = energies(load_method("gdpo", eps=1e-12)(batch([[1], [0], [0], [0]])).z)
    close(positive, [3 * 0.75], 1e-9)
    close(negative, [3 * 0.25], 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("values", [[0.3] * 6, [0.1] * 3, [0.7] * 7, [-2.9] * 5, [1e30] * 3])
def test_equal_rewards_give_exactly_zero(values, dtype):
    if dtype == torch.float16 and max(values) > 6e4:
        values = [6e4] * len(values)
    rewards = torch.tensor(values, dtype=dtype).reshape(1, -1, 1)
    for name in ("grpo", "gdpo", "dara_sym", "dara_asym", "dvao", "gd2po_hard"):
        out = load_method(name)(rewards)
        assert out.advantages.dtype == torch.float64
        for part in (out.z, out.contributed, out.advantages, out.density):
            assert not part.any()


def test_one_different_reward_in_eight():
    z = load_method("gdpo", eps=1e-12)(batch([[0.0]] + [[0.95]] * 7)).z.flatten()
    # mean 7/8 of .95, sample std .95 / sqrt 8: z = -7 / sqrt 8 and 1 / sqrt 8.
    close(z, [-7 / math.sqrt(8)] + [1 / math.sqrt(8)] * 7, 1e-9)


def test_near_constant_group_keeps_its_size():
    z = load_method("gdpo")(batch([[1.0], [1.00001]])).z.flatten()
    half, std = 5e-6, 1e-5 / SQRT2
    close(z, [-half / (std + 1e-6), half / (std + 1e-6)], 1e-9)
    assert abs(float(z[1]) - 0.6195) < 1e-4
    rewards = torch.tensor([[[1.0], [1.00001]]], dtype=torch.float32)
    assert abs(float(load_method("grpo")(rewards).advantages[0, 1]) - 0.6195) < 1e-3


def test_totals_that_differ_by_rounding_only_contribute_nothing_to_grpo():
    assert 0.1 + 0.2 != 0.3 + 0.0
    out = load_method("grpo")(batch([[0.1, 0.2], [0.3, 0.0]]))
    assert not out.contributed.any()
    assert not out.advantages.any()


def test_reward_weights_scale_grpo_before_the_sum():
    out = load_method("grpo", reward_weights=[0.7, 0.3])(batch([[1, 0], [0, 0]], [[1, 1], [0, 1]]))
    close(out.total, [[0.7, 0], [1, 0.3]], 1e-15)
    # (0.7 - 0.35) / (0.7 / sqrt 2 + 1e-6)
    close(out.advantages, [[0.35 / (0.7 / SQRT2 + 1e-6), -0.35 / (0.7 / SQRT2 + 1e-6)]] * 2, 1e-12)


def test_reward_weights_scale_contributions_elsewhere():
    for name in ("gdpo", "dara_sym", "dara_asym", "dvao"):
        plain, weighted = (load_method(name, reward_weights=w)(HAND) for w in (None, [0.7, 0.3]))
        close(weighted.contributed, plain.contributed * torch.tensor([0.7, 0.3], dtype=torch.float64), 1e-15)
        close(weighted.weights, plain.weights, 0)
        close(weighted.z, plain.z, 0)


def test_a_constant_group_carries_the_shift_of_the_batch_mean():
    rewards = batch(
        [[1, 0], [0, 0], [0, 0], [0, 0]],
        [[1, 1], [1, 0], [0, 0], [0, 0]],
        [[0, 0], [0, 0], [0, 0], [0, 0]],
    )
    out = load_method("dara_asym")(rewards)
    close(out.density, [2 / 3, 1 / 3], 1e-12)
    assert not out.z[2].any()
    assert not out.contributed[2].any()
    close(out.advantages[2], [-0.0433] * 4, 5e-5)
    # Sum of the scores: (sqrt 2 - 1) * 1.5 from the sparse reward's one positive z-score, 12 responses.
    close(out.contributed.sum() / 12, 1.5 * (SQRT2 - 1) / 12, 1e-6)
    close(load_method("gdpo")(rewards).advantages[2], [0] * 4, 1e-12)


def test_dvao_cancels_opposite_rewards():
    rewards = batch([[0, 1], [1, 0], [0, 0], [1, 1]])
    close(load_method("dvao")(rewards).advantages, [[0, 0, -1, 1]], 1e-12)


def test_one_group_hides_the_number_of_rewards_that_agree():
    one, two = batch([[0, 0], [1, 0]]), batch([[0, 0], [1, 1]])
    raw = [load_method("gdpo", final_normalization="none", eps=1e-12)(r).advantages for r in (one, two)]
    close(raw[0], [[-0.7071, 0.7071]], 5e-5)
    close(raw[1], [[-1.4142, 1.4142]], 5e-5)
    for rewards in (one, two):
        close(load_method("gdpo")(rewards).advantages, [[-0.7071, 0.7071]], 5e-5)
    both = load_method("gdpo")(torch.cat([one, two])).advantages
    close(both, [[-0.5477, 0.5477], [-1.0954, 1.0954]], 5e-5)


def test_a_batch_that_cancels_up_to_eps_is_enlarged():
    rewards = batch([[0, 0.1], [0.25, 0]])
    close(load_method("gdpo", final_normalization="none")(rewards).advantages, [[-6e-6, 6e-6]], 1e-8)
    close(load_method("gdpo")(rewards).advantages, [[-0.6326, 0.6326]], 5e-5)
    close(load_method("gdpo")(batch([[0, 1], [1, 0]])).advantages, [[0, 0]], 0)


def test_weights_cap_and_dead_rewards():
    close(dara_weights(torch.tensor([1, 1 / 30, 0, 0.25]).double(), 5.0), [1, 5, 1, 2], 0)
    close(dara_weights(torch.tensor([0.0, 0.0]).double(), 5.0), [1, 1], 0)
    close(dara_weights(torch.tensor([0.5, 1 / 512]).double(), math.inf), [1, 16], 1e-12)


def test_gd2po_drops_conflicts_and_reports_them():
    out = load_method("gd2po_hard")(batch([[0, 1], [1, 0], [0, 0], [1, 1]]))
    assert out.keep.tolist() == [[False, False, True, True]]
    close(out.loss_weight, [[0.5] * 4], 0)
    assert out.diagnostics == {"conflict_ratio": 0.5, "keep_ratio": 0.5}
    assert out.advantages[0, :2].tolist() == [0, 0]
    close(out.advantages[0, 2:], [-0.7071, 0.7071], 5e-5)


def test_one_kept_response_gives_no_advantage():
    rewards = batch([[2, 0], [1, 1], [0, 2]])  # the middle one has z-scores of 0
    out = load_method("gd2po_hard")(rewards)
    assert out.keep.tolist() == [[False, True, False]]
    assert not out.advantages.any()


def test_token_normalization_weighs_responses_by_length():
    lengths = torch.tensor([[1, 3], [2, 2]])
    out = load_method("gdpo", final_normalization="token")(HAND, lengths)
    scores = out.contributed.sum(-1).flatten().tolist()
    tokens = [s for s, n in zip(scores, [1, 3, 2, 2], strict=True) for _ in range(n)]
    mean = sum(tokens) / 8
    scale = math.sqrt(sum((t - mean) ** 2 for t in tokens) / 7 + 1e-8)
    close(out.advantages.flatten(), [(s - mean) / scale for s in scores], 1e-12)


def test_default_normalization_is_the_methods_own():
    for name in available_methods():
        params = {"weights": [1, 5]} if name.startswith("static") else {}
        method = load_method(name, **params)
        assert method.default_final_normalization == ("none" if name in ("grpo", "dvao") else "response")
        assert method.final_normalization == method.default_final_normalization
    assert load_method("grpo", final_normalization="token").final_normalization == "token"


def test_declared_ranges_are_the_default_bounds():
    rewards = batch([[-3, 0], [1, 1]], [[2, 0], [3, 0]])
    ranges = [(-3, 3), (0, 1)]
    given = load_method("gdpo_saw", mins=[-3, 0])(rewards).advantages
    assert torch.equal(load_method("gdpo_saw")(rewards, ranges=ranges).advantages, given)
    out = load_method("sa_mrpo")(rewards, ranges=ranges)
    close(out.weights, [math.sqrt(1 - 3.75 / 6), math.sqrt(0.75)], 1e-12)
    given = load_method("sa_mrpo", mins=[-3, 0], maxs=[3, 1])(rewards).advantages
    assert torch.equal(out.advantages, given)


def test_gradients_and_inputs_are_left_alone():
    rewards = HAND.clone().requires_grad_()
    out = load_method("dara_asym")(rewards)
    assert not out.advantages.requires_grad
    assert torch.equal(rewards.detach(), HAND)


# ---- errors ----

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_method("dara_assym"), "no method 'dara_assym'. Did you mean 'dara_asym'?"),
        (lambda: load_method("zzz"), "Known: grpo, gdpo, dara_sym"),
        (lambda: load_method("dara_sym", wmax=5), "'dara_sym' has no parameter 'wmax'. Did you mean 'w_max'?"),
        (lambda: load_method("grpo", w_max=5), "'grpo' has no parameter 'w_max'"),
        (lambda: load_method("dara_sym", w_max=0.5), "w_max is 0.5: it caps weights that are 1 or more"),
        (lambda: load_method("dara_sym", w_max="5"), "w_max is '5': it must be a number"),
        (lambda: load_method("dara_sym", w_max=NAN), "w_max is nan: it must be a number"),
        (lambda: load_method("dara_sym", w_max=True), "w_max is True: it must be a number"),
        (lambda: load_method("dara_sym", w_max=None), "w_max is None: it must be a number"),
        (lambda: load_method("gdpo", eps=0), "eps is 0: it must be greater than 0"),
        (lambda: load_method("gdpo", tau=-1), "tau is -1: it must be 0 or more"),
        (lambda: load_method("sa_mrpo", gamma=-0.5), "gamma is -0.5: it must be 0 or more"),
        (lambda: load_method("gdpo", final_normalization="tokens"), "is 'tokens'. Did you mean 'token'?"),
        (lambda: load_method("gdpo", reward_weights=[1, -1]), "each value must be a finite number of 0 or more"),
        (lambda: load_method("gdpo", reward_weights=[1, NAN]), "each value must be a finite number"),
        (lambda: load_method("gdpo", reward_weights=2.0), "a list with one number for each reward"),
        (lambda: load_method("gdpo", reward_weights=["a"]), "reward_weights must be a tensor of numbers"),
        (lambda: load_method("static_sym"), "'static_sym' needs the parameter 'weights'"),
        (lambda: load_method("static_sym", weights=None), "weights must be a tensor of numbers"),
        (lambda: load_method("static_sym", weights=[1, 2, 3])(HAND), "weights has 3 value(s), but there are 2"),
        (lambda: load_method("gdpo", reward_weights=[1])(HAND), "reward_weights has 1 value(s), but there are 2"),
        (lambda: load_method("dvao", base_weights=[1])(HAND), "base_weights has 1 value(s), but there are 2"),
        (lambda: load_method("gdpo_saw")(HAND), "mins is not given and the rewards' ranges are not known"),
        (lambda: load_method("sa_mrpo", mins=[0, 0])(HAND), "maxs is not given"),
        (lambda: load_method("gdpo_saw", mins=[0, 0.5])(HAND), "Reward 1 is 0.5 below its bound mins[1] = 0.5"),
        (lambda: load_method("sa_mrpo", mins=[0, 0], maxs=[0.5, 1])(HAND), "Reward 0 is 0.5 above its bound maxs[0]"),
        (lambda: load_method("sa_mrpo", mins=[0], maxs=[0])(HAND[..., 1:] * 0), "maxs[0] = 0 is not above mins[0]"),
        (lambda: load_method("gdpo")(HAND, ranges=[(0, 1)]), "ranges has shape (1, 2), but there are 2 reward(s)"),
        (lambda: load_method("gdpo")(HAND, ranges=[(0, 1), (1, 0)]), "ranges[1] is (1.0, 0.0): the minimum comes"),
        (lambda: load_method("gdpo")(HAND[0]), "must have shape (groups, responses, rewards) without a 0, not (2, 2)"),
        (lambda: load_method("gdpo")(HAND[:0]), "without a 0, not (0, 2, 2)"),
        (
            lambda: load_method("gdpo")(HAND[:, :1]),
            "A group needs at least 2 responses, but rewards has shape (2, 1, 2)",
        ),
        (lambda: load_method("gdpo")([[[1.0], [None]]]), "rewards must be a tensor of numbers without missing values"),
        (lambda: load_method("gdpo")(HAND, torch.ones(2, 3)), "lengths has shape (2, 3), but rewards has (2, 2, 2)"),
        (lambda: load_method("gdpo")(HAND, -torch.ones(2, 2)), "The length of response 0 in group 0 is -1.0"),
        (
            lambda: load_method("gdpo", final_normalization="token")(HAND),
            "'gdpo': the token normalisation needs lengths",
        ),
        (lambda: load_method("gdpo").load_state_dict({"a": 1}), "'gdpo' has no state, but the checkpoint holds one"),
    ],
)
def test_errors_say_what_and_where(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e200])
def test_bad_rewards_are_located(value):
    rewards = torch.zeros(3, 4, 2, dtype=torch.float64)
    rewards[1, 2, 1] = value
    for name in METHODS:
        params = {"weights": [1, 5]} if name.startswith("static") else {}
        with pytest.raises(ValueError, match="index 1 of response 2 in group 1 is"):
            load_method(name, **params)(rewards)


def test_every_method_file_is_short():
    for module in METHODS.values():
        assert len(Path(module.__file__).read_text().splitlines()) < 40
    assert Batch.__doc__
