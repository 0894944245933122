"""The metrics of a step (schema 1), from raw rewards and a method's output: the same for every method and engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from dara.methods import Output, energies

SCHEMA = 1
ENGINE_METRICS = ("clip_fraction", "kl", "entropy", "grad_norm", "lr")
"""What only the engine knows: share of tokens whose policy ratio is clipped; an estimate of the KL divergence (nats a
token) between the policy that sampled and the one that is updated; entropy (nats a token); norm of the gradient before
clipping; learning rate. Each is the mean over the step's optimiser updates."""
KL_REFERENCE = "kl_reference"
"""Likewise, in runs with a KL in the loss and only there: its estimate of the KL divergence between the policy that is
updated and the base model (nats a token), before the coefficient."""


def metric_names(rewards: Sequence[str]) -> list[str]:
    """Names that every step has, for these rewards; a method or a filter may add its own."""
    parts = ["reward/{}/mean", "reward/{}/std", "density/{}", "active_groups/{}", "weight/{}"]
    parts += [f"{energy}/{{}}/{sign}" for energy in ("energy", "energy_contributed") for sign in ("pos", "neg")]
    common = ["advantage/mean", "advantage/std", "groups", "group_size", "response_length/mean", "response_length/max"]
    return [part.format(name) for name in rewards for part in parts] + common + list(ENGINE_METRICS)


def step_metrics(
    step: int,
    names: Sequence[str],
    *,
    pool_rewards: torch.Tensor,
    pool_lengths: torch.Tensor,
    output: Output,
    engine: Mapping[str, float],
    filtered: Mapping[str, float] | None = None,
) -> dict[str, float | int]:
    """One line of metrics.jsonl.

    step: 1-based number of the rollout batch. names: the K rewards. pool_rewards (P, G, K) and pool_lengths (P, G): the
    whole rollout pool, before any group is filtered; lengths in tokens, end token included. output: what the method
    made of the B groups it was handed. engine: ENGINE_METRICS, exactly, and KL_REFERENCE where the loss has a KL.
    filtered: `filter/*`, where a filter is on.
    Standard deviations have divisor n - 1. An energy is the sum of squares over all responses; that of the
    contributions leaves out those that the method does not keep.

    Raises ValueError where shapes or names do not fit, or where a name would be written twice.
    """
    _check(names, pool_rewards, pool_lengths, output.z, engine)
    groups, group_size, _ = output.z.shape
    pool = pool_rewards.double().flatten(0, 1)
    line: dict[str, float | int] = {"schema": SCHEMA, "step": step}
    for k, name in enumerate(names):
        line[f"reward/{name}/mean"], line[f"reward/{name}/std"] = pool[:, k].mean().item(), pool[:, k].std().item()
        line[f"density/{name}"] = output.density[k].item()
        line[f"active_groups/{name}"] = round(output.density[k].item() * groups)
        line[f"weight/{name}"] = output.weights[k].item()
        parts = {"energy": (output.z, None), "energy_contributed": (output.contributed, output.keep)}
        for energy, (values, keep) in parts.items():
            positive, negative = energies(values[..., k : k + 1], keep)
            line[f"{energy}/{name}/pos"], line[f"{energy}/{name}/neg"] = positive.item(), negative.item()
    line |= {"advantage/mean": output.advantages.mean().item(), "advantage/std": output.advantages.std().item()}
    line |= {"groups": groups, "group_size": group_size}
    line["response_length/mean"] = pool_lengths.double().mean().item()
    line["response_length/max"] = int(pool_lengths.max())
    line |= {name: float(engine[name]) for name in (*ENGINE_METRICS, KL_REFERENCE) if name in engine}
    return _add(line, {**output.diagnostics, **(filtered or {})})


def all_finite(line: Mapping[str, float | int]) -> bool:
    """Whether no value of a line is NaN or infinite."""
    return all(math.isfinite(value) for value in line.values())


def _add(line: dict[str, float | int], extra: Mapping[str, float]) -> dict[str, float | int]:
    for name, value in extra.items():
        if name in line:
            raise ValueError(f"the method's diagnostic {name!r} is the name of a metric of every step; rename it")
        line[name] = float(value)
    return line


def _check(
    names: Sequence[str], rewards: torch.Tensor, lengths: torch.Tensor, z: torch.Tensor, engine: Mapping[str, float]
) -> None:
    if rewards.ndim != 3 or rewards.shape[-1] != len(names):
        raise ValueError(f"pool_rewards is {tuple(rewards.shape)}; it must be (groups, responses, {len(names)})")
    if lengths.shape != rewards.shape[:2]:
        raise ValueError(f"pool_lengths is {tuple(lengths.shape)}; it must be {tuple(rewards.shape[:2])}")
    if z.shape[1:] != rewards.shape[1:]:
        raise ValueError(f"the method's z is {tuple(z.shape)}; it must be (groups, {rewards.shape[1]}, {len(names)})")
    if set(engine) - {KL_REFERENCE} != set(ENGINE_METRICS):
        raise ValueError(f"the engine's metrics are {sorted(engine)}; they must be {sorted(ENGINE_METRICS)}")
