"""The contract of a method, checked on small random batches; `dara check-method` checks a user's own method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from dara.methods import core
from dara.methods.method import Method

# Errors that a method's own code can raise on a valid batch: a violation to report, not a crash of the check.
FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, RuntimeError),
    *(SystemExit, TypeError, ValueError),
)
TOLERANCE = 1e-8
Case = tuple[Tensor, Tensor, list[tuple[float, float]]]  # rewards (B, G, K), lengths (B, G), ranges


def check_method(method: Method) -> list[str]:
    """Return violations of the contract, each one sentence; empty if there are none.

    Batches have 1, 2 and 3 rewards, or as many as the method's list parameters have values. Every call gets a copy of
    the method, so the method is not changed and its state is the same before each call.
    """
    found: list[str] = []
    lists = [len(v) for v in [*method.params.values(), method.reward_weights] if isinstance(v, list | tuple)]
    for n_rewards, (groups, responses) in product(sorted({*lists}) or [1, 2, 3], ((5, 4), (3, 2), (1, 3))):
        where = f"with {groups} group(s) of {responses} and {n_rewards} reward(s)"
        try:
            case = _case(method, groups, responses, n_rewards)
            found += [f"{text} ({where})." for text in _violations(method, case)]
        except FAILURES as error:
            found.append(f"It fails {where}: {type(error).__name__}: {error}")
    return found


def _violations(method: Method, case: Case) -> Iterator[str]:
    """Yield the violations on one batch. The call itself checks shapes and finite values (ValueError)."""
    rewards, lengths, ranges = case
    out = copy.deepcopy(method)(*case)
    if not torch.equal(out.z, core.z_scores(rewards, method.eps)):
        yield "It changes batch.z in place; work on a copy"
    if not _same(copy.deepcopy(method)(*case), out):
        yield "Two calls with the same rewards differ; randomness needs a generator that the method seeds itself"
    constant = (rewards.amax(dim=1) == rewards.amin(dim=1)).unsqueeze(1).expand_as(rewards)
    if (out.contributed[constant] != 0).any():
        yield "A reward that is constant in a group contributes to it; it must contribute exactly 0"

    generator = torch.Generator().manual_seed(2)
    order = torch.randperm(len(rewards), generator=generator)
    permuted = copy.deepcopy(method)(rewards[order], lengths[order], ranges)
    if not _same(permuted, out, lambda x: x[order]):
        yield "Permuting the groups does not permute its result alike"
    order = torch.rand(rewards.shape[:2], generator=generator).argsort(dim=1)
    permuted = copy.deepcopy(method)(_take(rewards, order), _take(lengths, order), ranges)
    if not _same(permuted, out, lambda x: _take(x, order)):
        yield "Permuting the responses of a group does not permute its result alike"
    used = copy.deepcopy(method)
    for batch in (rewards, rewards[:, :1].expand_as(rewards).clone()):  # the second has density 0
        used(batch, lengths, ranges)
    if not method.has_state and not _same(used(*case), out):
        yield "It keeps a state between batches and has no state_dict and load_state_dict, so a resumed run loses it"
    if method.has_state:
        restored, original = copy.deepcopy(method), copy.deepcopy(method)
        original(*case)
        restored.load_state_dict(copy.deepcopy(original.state_dict()))
        if not _same(restored(*case), original(*case)):
            yield "After load_state_dict of its own state_dict the method gives another result"


def _take(x: Tensor, order: Tensor) -> Tensor:
    """Return x (B, G, ...) with the responses of each group in `order` (B, G)."""
    return x.gather(1, order if x.ndim == 2 else order.unsqueeze(-1).expand_as(x))


def _same(result: core.Output, reference: core.Output, permute: Callable[[Tensor], Tensor] = lambda x: x) -> bool:
    pairs = [(result.weights, reference.weights)] + [
        (getattr(result, name), permute(getattr(reference, name)))
        for name in ("advantages", "contributed", "keep", "loss_weight")
    ]
    return all(torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE) for a, b in pairs)


def _case(method: Method, groups: int, responses: int, n_rewards: int) -> Case:
    """Return rewards within the method's bounds: most groups vary, the last reward is constant in the last group."""
    low = torch.tensor(method.params.get("mins") or [-1.0] + [0.0] * (n_rewards - 1), dtype=torch.float64)
    high = torch.tensor(method.params.get("maxs") or (low + 1).tolist(), dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    shape = (groups, responses, n_rewards)
    # Quarters are exact in floating point, so that no threshold of a method sees the rounding of a sum.
    steps = torch.randint(0, 5, shape, generator=generator).double() / 4
    steps[-1, :, -1] = steps[-1, 0, -1]
    lengths = torch.randint(1, 20, shape[:2], generator=generator)
    return low + (high - low) * steps, lengths, list(zip(low.tolist(), high.tolist(), strict=True))
