"""From a rollout batch's rewards to the advantages that a loss gets: the same two functions for every engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dara.config import RunSpec
from dara.methods import Method, Output, load_method
from dara.rewards import load_rewards, reward_ranges


def run_method(spec: RunSpec, methods_dir: Path | None = None) -> Method:
    """The method of a run with its parameters; the run's own rewards are loaded, too.

    A run with `final_normalization: token` lets the methods whose own normalisation is over responses normalise over
    tokens; a method that has another of its own, or is given one by its parameters, keeps that.
    methods_dir: where a user's own files are relative to.
    """
    load_rewards(spec.task, {name: one.function for name, one in spec.reward_functions.items()}, methods_dir)
    entry = spec.method
    method = load_method(entry.name, function=entry.function, base_dir=methods_dir, **entry.params)
    own = method.default_final_normalization == "response" and "final_normalization" not in entry.params
    if spec.final_normalization == "own" or not own:
        return method
    params = {**entry.params, "final_normalization": spec.final_normalization}
    return load_method(entry.name, function=entry.function, base_dir=methods_dir, **params)


def batch_advantages(
    spec: RunSpec, method: Method, rewards: Tensor, lengths: Tensor, penalty: Tensor | None = None
) -> tuple[Output, Tensor]:
    """What the method makes of a rollout batch, and the advantages (B, G) for the loss.

    rewards (B, G, K) raw, in the order of spec.rewards; lengths (B, G) response tokens, the end token included.
    penalty (B, G): GRPO only, added to the sum of the rewards before the group's z-score; densities, weights and
    energies are those of the rewards alone.
    The advantages carry the method's loss weight: for q >= 0 the clipped surrogate of q A is q times that of A, so no
    engine changes its loss.
    """
    ranges = reward_ranges(spec.task, spec.rewards)
    output = method(rewards, lengths=lengths, ranges=ranges)
    if penalty is not None:
        output = replace(output, advantages=_penalised_grpo(spec, rewards, lengths, penalty))
    return output, output.advantages * output.loss_weight


def _penalised_grpo(spec: RunSpec, rewards: Tensor, lengths: Tensor, penalty: Tensor) -> Tensor:
    """GRPO's advantages with the penalty as one more reward: GRPO looks at nothing but their sum."""
    if spec.method.name != "grpo":
        raise ValueError(f"a penalty on the summed reward is for grpo, not for {spec.method.name}")
    params = dict(spec.method.params)
    if params.get("reward_weights") is not None:
        params["reward_weights"] = (*params["reward_weights"], 1.0)
    with_penalty = torch.cat([rewards, penalty.to(rewards)[..., None]], dim=-1)
    return load_method("grpo", **params)(with_penalty, lengths=lengths).advantages
