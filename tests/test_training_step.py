"""A step: the rewards of a sample, and schema 1 of the metrics on the toy batch of the paper's first figure."""

import dataclasses
import math
import pickle

import pytest
import torch

from dara.methods import load_method
from dara.training.step import ENGINE_METRICS, RewardError, metric_names, score_sample, step_metrics, weights_are_finite

NAMES = ("correctness", "format")
LENGTHS = torch.arange(16).view(4, 4) + 1
ENGINE = {name: 0.1 * i for i, name in enumerate(ENGINE_METRICS, 1)}


@pytest.fixture
def rewards() -> torch.Tensor:
    """4 groups of 4: two of four responses correct in each, one well-formatted response in the last group only."""
    rewards = torch.zeros(4, 4, 2)
    rewards[:, :2, 0] = 1.0
    rewards[3, 0, 1] = 1.0
    return rewards


def line_of(rewards, method="dara_asym", lengths=LENGTHS, **changes):
    arguments = {"pool_rewards": rewards, "pool_lengths": lengths, "output": load_method(method)(rewards, lengths)}
    return step_metrics(7, NAMES, **{**arguments, "engine": ENGINE, **changes})


def test_names_are_the_same_for_every_method(rewards):
    for method in ("grpo", "gdpo", "dara_sym", "dvao"):
        assert list(line_of(rewards, method)) == ["schema", "step", *metric_names(NAMES)]
    extra = set(line_of(rewards, "gd2po_hard")) - {"schema", "step", *metric_names(NAMES)}
    assert extra == {"conflict_ratio", "keep_ratio"}


def test_toy_batch(rewards):
    line = line_of(rewards)
    expected = {
        "schema": 1,
        "step": 7,
        "reward/correctness/mean": 0.5,
        "reward/correctness/std": (16 * 0.25 / 15) ** 0.5,
        "reward/format/mean": 1 / 16,
        "density/correctness": 1.0,
        "density/format": 0.25,
        "active_groups/format": 1,
        "weight/correctness": 1.0,
        "weight/format": 2.0,
        "energy/correctness/pos": 6.0,  # (G - 1)(1 - p) in each of 4 groups, p = 1/2
        "energy/correctness/neg": 6.0,
        "energy/format/pos": 2.25,
        "energy/format/neg": 0.75,
        "energy_contributed/format/pos": 9.0,  # w^2 on the positive side alone
        "energy_contributed/format/neg": 0.75,
        "advantage/mean": 0.0,
        "advantage/std": 1.0,
        "groups": 4,
        "group_size": 4,
        "response_length/mean": 8.5,
        "response_length/max": 16,
        **ENGINE,
    }
    assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=2e-5)
    assert line_of(rewards, engine={**ENGINE, "kl_reference": 0.25}) == line | {"kl_reference": 0.25}


def test_symmetric_weights_balance_the_energies(rewards):
    line = line_of(rewards, "dara_sym")
    totals = [sum(line[f"energy_contributed/{name}/{sign}"] for sign in ("pos", "neg")) for name in NAMES]
    assert totals == pytest.approx([12, 12], abs=1e-3)


def test_responses_that_are_not_kept_contribute_no_energy():
    """In the first group both responses are in conflict; only the second group's correctness is left."""
    rewards = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]])
    line = line_of(rewards, "gd2po_hard", lengths=torch.ones(2, 2, dtype=torch.int64))
    expected = {"energy/correctness": 1.0, "energy/format": 0.5}
    expected |= {"energy_contributed/correctness": 0.5, "energy_contributed/format": 0.0}
    for name, value in expected.items():
        assert [line[f"{name}/{sign}"] for sign in ("pos", "neg")] == pytest.approx([value, value], abs=1e-5)


def test_reward_means_are_those_of_the_pool_before_filtering(rewards):
    kept = load_method("gdpo")(rewards[2:])
    line = line_of(rewards, output=kept, filtered={"filter/candidate_groups": 4, "filter/accepted_groups": 2})
    names = ("reward/format/mean", "density/format", "groups", "filter/candidate_groups")
    assert [line[name] for name in names] == [1 / 16, 0.5, 2, 4.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {**ENGINE, "loss": 1.0}}, "engine's metrics are"),
        ({"engine": {"kl": 0.0}}, "engine's metrics are"),
        ({"filtered": {"kl": 1.0}}, "'kl' is the name of a metric"),
        ({"diagnostics": {"entropy": 3.0}}, "diagnostic 'entropy' is the name of a metric of every step; rename it"),
    ],
)
def test_what_does_not_fit_is_an_error(rewards, changes, message):
    if "diagnostics" in changes:
        changes = {"output": dataclasses.replace(load_method("gdpo")(rewards), **changes)}
    with pytest.raises(ValueError, match=message):
        line_of(rewards, **changes)


def test_weights_that_are_not_finite_are_seen_in_a_shard_too():
    whole, shard = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.empty(0))
    shard.ds_tensor = torch.ones(2)  # ZeRO stage 3 leaves the parameter itself empty
    assert weights_are_finite([whole, shard])
    shard.ds_tensor[1] = torch.nan
    assert not weights_are_finite([whole, shard])
    assert not weights_are_finite([torch.nn.Parameter(torch.tensor([1.0, torch.inf]))])


# --- the rewards of a sample ------------------------------------------------------------------------------------------


def scored(response: str, n_tokens: int, reference: str = "36") -> dict[str, float]:
    sample = {"prompt_id": "p3", "prompt": "<user>solve 33+3</user>\n", "reference": reference}
    names, params = ("correctness", "length"), {"length": {"limit": 4}}
    return score_sample("math", names, params, **sample, response=response, n_tokens=n_tokens)


def test_rewards_by_name_in_order():
    assert list(scored("so \\boxed{36}", 4).items()) == [("correctness", 1.0), ("length", 1.0)]
    assert scored("so \\boxed{36}", 5) == {"correctness": 1.0, "length": 0.0}


def test_error_of_a_reward_names_the_sample_and_survives_the_way_between_processes():
    with pytest.raises(RewardError) as caught:
        scored("my answer", 3, reference=" ")
    text = str(caught.value)
    assert text.startswith("the rewards correctness, length failed (ValueError: reference is blank (' ')")
    assert "for prompt p3 ('<user>solve 33+3</user>\\n') and response 'my answer'" in text
    assert "\n" not in text
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (isinstance(copy, ValueError), str(copy)) == (True, text)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_value_that_is_no_number_is_an_error(monkeypatch, value):
    monkeypatch.setattr("dara.training.step.score", lambda *_, **__: [1.0, value])
    with pytest.raises(RewardError, match=f"reward length is {value}, not a number, for prompt p3"):
        scored("x", 1)


def test_long_response_is_shown_by_its_ends():
    with pytest.raises(RewardError, match=r"'begin.*end' \(50008 characters\)") as caught:
        scored("begin" + "x" * 50_000 + "end", 3, reference="")
    assert len(str(caught.value)) < 2000
