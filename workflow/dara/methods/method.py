"""The class `Method`: runs a method's contributions between the shared steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from dara.methods import checks, core


class Method:
    """A method with its parameters: `method(rewards, lengths, ranges) -> Output`.

    contributions is a function `(batch, *, parameters...)`, or a class with such a method; a class's own parameters may
    also be keywords of its constructor. A class with state_dict and load_state_dict is a method with state.
    """

    def __init__(
        self,
        name: str,
        contributions: Callable[..., Any],
        params: Mapping[str, Any],
        *,
        default_final_normalization: str = "response",
        built_in: bool = False,
    ) -> None:
        self.name = name
        self.default_final_normalization = checks.check_value(name, "final_normalization", default_final_normalization)
        is_class = inspect.isclass(contributions)
        if is_class and not callable(getattr(contributions, "contributions", None)):
            raise ValueError(f"Method {name!r}: {contributions.__name__} is a class without a method `contributions`.")
        for_constructor = _parameters(name, contributions) if is_class else {}
        for_call = _parameters(name, contributions.contributions if is_class else contributions, first=1 + is_class)
        checks.check_names(name, params, {**for_constructor, **for_call})

        shared = {k: checks.check_value(name, k, params.get(k, v)) for k, v in checks.SHARED_DEFAULTS.items()}
        own = {k: v for k, v in params.items() if k not in shared}
        if built_in:  # a user's method checks its own parameters
            own = {k: checks.check_value(name, k, v) for k, v in own.items()}
        self.params = own
        self.reward_weights = shared["reward_weights"]
        self.final_normalization = shared["final_normalization"] or self.default_final_normalization
        self.eps, self.tau = shared["eps"], shared["tau"]
        self._call_params = {k: v for k, v in own.items() if k in for_call}
        self._object = contributions(**{k: v for k, v in own.items() if k in for_constructor}) if is_class else None
        self._contributions = self._object.contributions if is_class else contributions
        self.has_state = hasattr(self._object, "state_dict")
        if self.has_state != hasattr(self._object, "load_state_dict"):
            raise ValueError(f"Method {name!r}: a method with state has both state_dict and load_state_dict.")

    def __call__(self, rewards: Tensor, lengths: Tensor | None = None, ranges: Any = None) -> core.Output:
        """Return the advantages of one rollout batch.

        rewards (B, G, K) raw, any float type; lengths (B, G) response tokens, needed for the token normalisation;
        ranges: K pairs (min, max), needed by methods that use a reward's bounds. Raises ValueError for invalid inputs.
        """
        batch = self._batch(rewards, lengths, ranges)
        result = checks.check_aggregate(self.name, self._contributions(batch, **self._call_params), batch.rewards)
        contributed = result.contributed * batch.reward_weights
        scores = contributed.sum(dim=-1)
        return core.Output(
            advantages=core.normalize(scores, result.keep, batch.lengths, self.final_normalization, self.eps),
            z=batch.z,
            contributed=contributed,
            density=batch.density,
            weights=result.weights,
            keep=result.keep,
            loss_weight=result.loss_weight,
            total=batch.total,
            diagnostics=result.diagnostics,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint; empty for a method without state."""
        return self._object.state_dict() if self.has_state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; raise ValueError if there is one and the method has none."""
        if self.has_state:
            self._object.load_state_dict(state)
        elif state:
            raise ValueError(f"Method {self.name!r} has no state, but the checkpoint holds one: {sorted(state)}.")

    def _batch(self, rewards: Any, lengths: Any, ranges: Any) -> core.Batch:
        rewards = checks.check_rewards(rewards)
        n_rewards = rewards.shape[-1]
        lengths = checks.check_lengths(lengths, rewards)
        if lengths is None and self.final_normalization == "token":
            raise ValueError(f"Method {self.name!r}: the token normalisation needs lengths, one for each response.")
        given = (1.0,) * n_rewards if self.reward_weights is None else self.reward_weights
        if len(given) != n_rewards:
            raise ValueError(f"reward_weights has {len(given)} value(s), but there are {n_rewards} reward(s).")
        reward_weights = rewards.new_tensor(given)
        z = core.z_scores(rewards, self.eps)
        return core.Batch(
            rewards=rewards,
            z=z,
            centered=core.center(rewards),
            total=(rewards * reward_weights).sum(dim=-1),
            density=core.active_density(z, self.tau),
            reward_weights=reward_weights,
            lengths=lengths,
            ranges=checks.check_ranges(ranges, n_rewards),
            eps=self.eps,
            tau=self.tau,
        )


def _parameters(method: str, function: Callable[..., Any], first: int = 0) -> dict[str, bool]:
    """Return parameter -> required, of a function whose first arguments (self, batch) are not parameters."""
    found = list(inspect.signature(function).parameters.values())
    positional = [p for p in found[:first] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    own = found[first:]
    if len(positional) < first or any(p.kind is not p.KEYWORD_ONLY for p in own):
        form = "contributions(batch, *, parameter=default, ...)" if first else "__init__(self, *, parameter=default)"
        raise ValueError(f"Method {method!r}: write its function as {form}, without *args and **kwargs.")
    for p in own:
        if p.name in checks.SHARED_DEFAULTS:
            raise ValueError(f"Method {method!r}: {p.name!r} is a parameter of every method; read it from the batch.")
    return {p.name: p.default is p.empty for p in own}
