"""From prompts to the advantages of a step, in OpenRLHF's data structures, without importing OpenRLHF.

With dynamic filtering, prompts whose responses all have the same reward are replaced by others: a step draws a pool of
candidate groups in rounds, with the same policy, until enough of them vary. The rules are those of the paper's math
training: whole groups only; the first groups in the order of the prompts are kept, so that the speed of responses does
not matter; a step with too few groups is an error, never a smaller batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dara.methods import Method
from dara.specs import Filter, RunSpec
from dara.training.step import Rollouts, batch_advantages, prompt_positions

PROMPTS_CONSUMED = "filter/prompts_generated_total"
LOWEST_ACCEPTANCE = Fraction(1, 20)
MARGIN = Fraction(5, 4)


@dataclass(frozen=True)
class Label:
    """A prompt's label, JSON in OpenRLHF's label column.

    position: number of the prompt in the whole run, from 0. It is unique in a run, with or without a filter, and an
    interruption does not change it. seed: the run's sampler seed.
    """

    id: str
    reference: str
    position: int
    seed: int

    def dumps(self) -> str:
        """Return the label as text."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def loads(cls, text: str) -> Label:
        """Return the label of a text."""
        return cls(**json.loads(text))

    def sample_seed(self, sample: int) -> int:
        """Return the seed of the sampler for one response to this prompt, in [0, 2^63).

        It depends on nothing else: not on which requests the sampler computes together, nor on the number of engines.
        """
        key = f"{self.seed}|{self.position}|{self.id}|{sample}".encode()
        return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1


def prompt_batches(
    path: Path, seed: int, sampler_seed: int, start: int = 0
) -> Iterator[tuple[list[str], list[str], list[str], list[None]]]:
    """Yield batches of one prompt without end: ([data source], [prompt], [label], [no image]).

    path: the file of `launch.prompt_file`. seed: seed of the order. sampler_seed: goes into the labels. start: position
    in the run of the first prompt, that is, the number of prompts taken before.
    """
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]  # bytes: a text may contain U+2028
    for position, i in enumerate(islice(prompt_positions(len(rows), seed), start, None), start):
        label = Label(**json.loads(rows[i]["label"]), position=position, seed=sampler_seed)
        yield ["default"], [rows[i]["input"]], [label.dumps()], [None]


def consumed(metrics: Sequence[Mapping[str, float]], prompts_per_step: int) -> int:
    """Return how many prompts the steps of these lines of metrics.jsonl have taken: the position of the next one."""
    return sum(round(line.get(PROMPTS_CONSUMED, prompts_per_step)) for line in metrics)


@dataclass(frozen=True)
class Pool:
    """All groups of a step in the order of their prompts, the indices of those that train, and the filter's metrics."""

    groups: list[Any]  # each with `rewards` (G, K) float64, raw
    kept: list[int]  # ascending indices of groups
    metrics: dict[str, float]


def varies(rewards: np.ndarray, criterion: str, weights: Sequence[float]) -> bool:
    """Return whether a group varies, so that it gives a training signal.

    rewards: (G, K) float64. weights: K, those of the summed reward. `sum_varies`: the weighted sum differs between
    responses, as in the paper (a group in which two rewards vary and cancel is dropped); `any_reward_varies`: at least
    one of the rewards with a weight differs. Both compare the largest with the smallest value, exactly.
    """
    factors = np.asarray(weights, dtype=np.float64)
    values = (rewards * factors).sum(axis=1, keepdims=True) if criterion == "sum_varies" else rewards[:, factors != 0]
    return bool((values.max(axis=0) != values.min(axis=0)).any())


def next_round(
    deficit: int, accepted: int, generated: int, *, group_size: int, world_size: int, candidates: int
) -> int:
    """Return the number of prompts of a further round: ceil(deficit / max(acceptance, 0.05) * 1.25).

    acceptance is accepted / generated over the rounds before. The number is at least `group_size`, at most
    `candidates`, and rounded up to a multiple of `world_size`. Exact arithmetic is used: a float could round
    12.000...01 up.
    """
    acceptance = max(Fraction(accepted, generated), LOWEST_ACCEPTANCE)
    wanted = max(group_size, ceil(deficit / acceptance * MARGIN))
    return min(candidates, ceil(Fraction(wanted, world_size)) * world_size)


def collect(
    draw: Callable[[int], Sequence[Any]],
    prompts: int,
    rule: Filter | None,
    weights: Sequence[float],
    *,
    world_size: int = 1,
    step: str = "a step",
) -> Pool:
    """Return the groups of a step: `prompts` of them train.

    draw(n): returns the groups of the next n prompts, in their order. rule: the run's filter; None keeps every group.
    weights: of the K rewards in their sum. world_size: GPUs of the actor. step: name of the step in an error, the
    ValueError if fewer than `prompts` groups vary after the last round.
    """
    if rule is None:
        return Pool(list(draw(prompts)), list(range(prompts)), {})
    # The first round draws all candidates; later rounds are sized by the share of groups that varied so far.
    groups, kept, rounds, size = [], [], 0, rule.candidate_prompts
    while len(kept) < prompts and rounds < rule.max_rounds:
        if rounds:
            limits = {"group_size": len(groups[0].rewards), "candidates": rule.candidate_prompts}
            size = next_round(prompts - len(kept), len(kept), len(groups), world_size=world_size, **limits)
        groups += draw(size)
        kept += [
            i for i in range(len(groups) - size, len(groups)) if varies(groups[i].rewards, rule.criterion, weights)
        ]
        rounds += 1
    if len(kept) < prompts:
        what = "the sum of the rewards" if rule.criterion == "sum_varies" else "a reward"
        raise ValueError(
            f"{step}: {what} varies in only {len(kept)} of the {len(groups)} groups of {rule.max_rounds} round(s), and "
            f"{prompts} are needed: raise filter.max_rounds ({rule.max_rounds}) or filter.candidate_prompts "
            f"({rule.candidate_prompts}), or train with fewer prompts_per_step"
        )
    metrics = {
        "filter/num_gen_batches": float(rounds),
        "filter/informative_groups_collected": float(len(kept)),
        PROMPTS_CONSUMED: float(len(groups)),
        "filter/generation_overhead": len(groups) / prompts - 1.0,
        "filter/acceptance": len(kept) / len(groups),
    }
    return Pool(groups, kept[:prompts], metrics)


def set_advantages(
    experiences: Sequence[Any],
    rollouts: Rollouts,
    spec: RunSpec,
    method: Method,
    kl_coefficient: float | None = None,
) -> None:
    """Set the method's advantages in the experiences of a rollout batch, and the method's output in the batch.

    experiences: OpenRLHF's micro-batches of n samples in any order, each with `index`, the positions of its samples in
    the rollout batch, `action_mask` (n, T), true for tokens of the response, and `kl` (n, T), from the base model.
    `advantages` and `returns` (n, T) are set: the response's value on each of its tokens, 0 elsewhere. kl_coefficient:
    coefficient of the KL in the reward; None without one. With placement `reward`, as in OpenRLHF without discount, a
    token also gets -coefficient times the sum of the KL from this token to the end of the response. With `reward_grpo`,
    as in the authors' code, the coefficient times the KL summed over a response's tokens is subtracted from the
    response's reward, before GRPO's z-score.

    Raises ValueError unless each position of the rollout batch has one sample.
    """
    rewards, lengths = rollouts.rewards, rollouts.lengths
    index = torch.tensor([i for experience in experiences for i in experience.index])
    order = index.argsort()  # for each position of the rollout batch, its sample in the concatenated experiences
    if not torch.equal(index[order], torch.arange(len(index))):
        raise ValueError(f"the samples of the rollout batch are numbered {index.sort().values.tolist()}")
    penalty = None
    if kl_coefficient is not None and spec.kl.placement == "reward_grpo":
        sums = torch.cat([(one.kl.double() * one.action_mask).sum(dim=1) for one in experiences])
        penalty, kl_coefficient = -kl_coefficient * sums[order].view(lengths.shape), None
    rollouts.output, advantages = batch_advantages(spec, method, rewards, lengths, penalty)
    for one in experiences:
        mask = one.action_mask.to(torch.float32)
        tokens = advantages.flatten()[torch.tensor(one.index)].to(torch.float32)[:, None] * mask
        if kl_coefficient is not None:
            to_go = (one.kl.to(torch.float32) * mask).flip(1).cumsum(1).flip(1)
            tokens = tokens - kl_coefficient * to_go * mask
        one.advantages, one.returns, one.kl = tokens, tokens.clone(), None


def shard_samples(lengths: Sequence[int], updates: int, ranks: int) -> list[list[int]]:
    """Return the samples of each rank, update by update, in the order in which the rank processes them.

    lengths: tokens of the samples in rollout order. An update gets the next n / updates samples, so it has whole groups
    unless a group lies across updates. Within an update, each rank gets the same number of samples, alternately long
    and short ones. `command.check_resources` holds that they can be divided evenly.
    """
    size = len(lengths) // updates
    shards: list[list[int]] = [[] for _ in range(ranks)]
    for start in range(0, len(lengths), size):
        ordered = sorted(range(start, start + size), key=lambda i: (-lengths[i], i))
        for turn, sample in enumerate(ordered):
            # Forwards and backwards over the ranks, so that no rank always gets the longer sample of a pair.
            place = turn % ranks
            shards[place if turn // ranks % 2 == 0 else ranks - 1 - place].append(sample)
    return shards
