"""Checks of a method's inputs from users and engines: rewards, lengths, ranges, parameters. All raise ValueError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from dara.methods.core import FINAL_NORMALIZATIONS, Aggregate
from dara.places import suggestion

LARGEST = 1e100  # the square of a larger value is not finite in float64
SHARED_DEFAULTS: dict[str, Any] = {
    "reward_weights": None,
    "final_normalization": None,
    "eps": 1e-6,
    "tau": 1e-8,
}
PER_REWARD = ("reward_weights", "weights", "base_weights", "mins", "maxs")
MAY_BE_NONE = ("reward_weights", "final_normalization", "base_weights", "mins", "maxs")


def as_float64(name: str, values: Any) -> Tensor:
    """Return values as a float64 tensor (on their own device); raise ValueError unless they are an array of numbers."""
    try:
        return torch.as_tensor(values, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a tensor of numbers without missing values: {error}") from error


def check_rewards(rewards: Any) -> Tensor:
    """Return rewards as float64 (B, G, K); raise ValueError for a wrong shape, G < 2, NaN, infinity."""
    rewards = as_float64("rewards", rewards)
    shape = tuple(rewards.shape)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(f"rewards must have shape (groups, responses, rewards) without a 0, not {shape}.")
    if shape[1] < 2:
        raise ValueError(
            f"A group needs at least 2 responses, but rewards has shape {shape} "
            "(groups, responses, rewards): set the group size to 2 or more."
        )
    wrong = ~(rewards.abs() <= LARGEST)
    if wrong.any():
        b, g, k = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"The reward with index {k} of response {g} in group {b} is {float(rewards[b, g, k])} "
            f"({int(wrong.sum())} such value(s) in the batch): every reward must be a finite number below {LARGEST:g}."
        )
    return rewards


def check_lengths(lengths: Any, rewards: Tensor) -> Tensor | None:
    """Return lengths as float64 (B, G), or None; ValueError for a wrong shape, negative or non-finite values."""
    if lengths is None:
        return None
    lengths = as_float64("lengths", lengths).to(rewards.device)
    if lengths.shape != rewards.shape[:2]:
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)}, but rewards has {tuple(rewards.shape)}: "
            "one length for each response, (groups, responses)."
        )
    wrong = ~(lengths.isfinite() & (lengths >= 0))
    if wrong.any():
        b, g = wrong.nonzero()[0].tolist()
        raise ValueError(f"The length of response {g} in group {b} is {float(lengths[b, g])}: it must be 0 or more.")
    return lengths


def check_ranges(ranges: Any, n_rewards: int) -> tuple[tuple[float, float], ...] | None:
    """Return ranges as K pairs (min, max), or None; ValueError for a wrong number of pairs or min > max."""
    if ranges is None:
        return None
    values = as_float64("ranges", ranges)
    if tuple(values.shape) != (n_rewards, 2):
        raise ValueError(
            f"ranges has shape {tuple(values.shape)}, but there are {n_rewards} reward(s): one (min, max) for each."
        )
    pairs = tuple((float(low), float(high)) for low, high in values)
    for k, (low, high) in enumerate(pairs):
        if not low <= high:
            raise ValueError(f"ranges[{k}] is ({low}, {high}): the minimum comes first.")
    return pairs


def check_names(method: str, given: Iterable[str], own: Mapping[str, bool]) -> None:
    """Raise ValueError for a parameter that the method lacks or that is missing; own: parameter -> required."""
    known = [*own, *SHARED_DEFAULTS]
    given = list(given)
    for name in given:
        if name not in known:
            raise ValueError(f"Method {method!r} has no parameter {name!r}.{suggestion(name, known)}")
    missing = [name for name, required in own.items() if required and name not in given]
    if missing:
        raise ValueError(f"Method {method!r} needs the parameter {missing[0]!r}: it has no default.")


def check_value(method: str, name: str, value: Any) -> Any:
    """Return the checked value of a built-in method's or a shared parameter; lists become tuples of floats."""
    where = f"Method {method!r}: {name}"
    if value is None and name in MAY_BE_NONE:
        return None
    if name == "final_normalization":
        if value not in FINAL_NORMALIZATIONS:
            raise ValueError(f"{where} is {value!r}.{suggestion(str(value), FINAL_NORMALIZATIONS)}")
        return value
    if name in PER_REWARD:
        return _numbers(where, value, at_least=-math.inf if name in ("mins", "maxs") else 0.0)
    if not isinstance(value, Real) or isinstance(value, bool) or math.isnan(value):
        raise ValueError(f"{where} is {value!r}: it must be a number.")
    if name == "w_max" and value < 1:
        raise ValueError(f"{where} is {value!r}: it caps weights that are 1 or more, so it must be at least 1.")
    if name in ("gamma", "tau") and not 0 <= value < math.inf:
        raise ValueError(f"{where} is {value!r}: it must be 0 or more.")
    if name == "eps" and not 0 < value < math.inf:
        raise ValueError(f"{where} is {value!r}: it must be greater than 0.")
    return float(value)


def _numbers(where: str, value: Any, at_least: float) -> tuple[float, ...]:
    values = as_float64(where, value)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"{where} is {value!r}: it must be a list with one number for each reward.")
    if not values.isfinite().all() or (values < at_least).any():
        limit = "" if at_least == -math.inf else f" of {at_least:g} or more"
        raise ValueError(f"{where} is {value!r}: each value must be a finite number{limit}.")
    return tuple(values.tolist())


def check_aggregate(method: str, result: Any, rewards: Tensor) -> Aggregate:
    """Return a method's result, complete and in float64; ValueError for wrong types, shapes, non-finite values."""
    if isinstance(result, Tensor):
        result = Aggregate(result)
    if not isinstance(result, Aggregate):
        raise ValueError(
            f"Method {method!r} returned {type(result).__name__}: return the contributions, a tensor "
            "(groups, responses, rewards), or Aggregate(contributed, ...)."
        )
    b, g, k = rewards.shape
    keep = _part(method, "keep", result.keep, (b, g), rewards)
    if not ((keep == 0) | (keep == 1)).all():
        raise ValueError(f"Method {method!r}: keep must be True or False for each response.")
    loss_weight = result.loss_weight
    if isinstance(loss_weight, Tensor) and tuple(loss_weight.shape) == (b, 1):
        loss_weight = loss_weight.expand(b, g)
    loss_weight = _part(method, "loss_weight", loss_weight, (b, g), rewards)
    if (loss_weight < 0).any():
        # A clipped surrogate times q equals the surrogate of q * A only for q >= 0.
        raise ValueError(f"Method {method!r}: loss_weight has a negative value; it must be 0 or more.")
    return Aggregate(
        _part(method, "contributed", result.contributed, (b, g, k), rewards),
        _part(method, "weights", result.weights, (k,), rewards),
        keep.bool(),
        loss_weight,
        {name: _diagnostic(method, name, value) for name, value in result.diagnostics.items()},
    )


def _part(method: str, name: str, value: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    if value is None and name != "contributed":
        return like.new_ones(shape)
    value = as_float64(f"Method {method!r}: {name}", value).to(like.device)
    if tuple(value.shape) != shape:
        raise ValueError(f"Method {method!r}: {name} has shape {tuple(value.shape)}, it must be {shape}.")
    wrong = ~value.isfinite()
    if wrong.any():
        index = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"Method {method!r}: {name}{list(index)} is {float(value[index])}, it must be finite.")
    return value


def _diagnostic(method: str, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"Method {method!r}: the diagnostic {name!r} must be one number, not {value!r}.") from error
    if not math.isfinite(number):
        raise ValueError(f"Method {method!r}: the diagnostic {name!r} is {number}, it must be finite.")
    return number
