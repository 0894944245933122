"""When a run has diverged: three rules with fixed thresholds, the same for every method and engine.

* not finite: NaN or infinity in a step's numbers.
* explosion: the gradient norm before clipping is more than 100 times the median of all earlier steps, in three steps in
  a row. Clipping makes a single spike harmless; three are a policy that left the region it was trained in.
* collapse: the training reward of the last ten steps is less than a fifth of the best ten steps before. Each reward is
  scaled to 0..1 of its declared range and the K rewards are averaged, so that the rule knows no task.

Divergence is an outcome of the run, recorded with its step and reason; its files end before that step. It is never
tried again with another seed. In the cached runs of this repository the largest ratio of three norms in a row is 1.6
and the smallest share of the best reward is 0.97, so that no rule is near to firing on a healthy run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EXPLOSION_FACTOR = 100.0
EXPLOSION_STEPS = 3
EXPLOSION_EARLIER = 10
"""Steps whose median norm must be there before the rule is asked."""
COLLAPSE_SHARE = 0.2
COLLAPSE_WINDOW = 10

Metrics = Mapping[str, float | int]


@dataclass(frozen=True)
class Divergence:
    """The step in which a run diverged, and why, in one sentence."""

    step: int
    reason: str


def divergence(
    before: Sequence[Metrics], line: Metrics, ranges: Mapping[str, tuple[float, float]]
) -> Divergence | None:
    """Whether a step ends its run. To be asked before the step is recorded: the files hold the steps before it.

    before: the metrics of all earlier steps. line: those of this step. ranges: reward -> its (minimum, maximum).
    """
    return not_finite(int(line["step"]), line) or diverging([*before, line], ranges)


def not_finite(step: int, line: Metrics) -> Divergence | None:
    """Whether a step's numbers (its metrics, or what the engine measured so far) hold NaN or infinity."""
    bad = sorted(name for name, value in line.items() if not math.isfinite(value))
    return Divergence(step, f"{bad[0]} is {line[bad[0]]}") if bad else None


def diverging(metrics: Sequence[Metrics], ranges: Mapping[str, tuple[float, float]]) -> Divergence | None:
    """Whether the last of these steps (all from step 1 on, complete) makes the run a diverged one.

    ranges: reward -> its (minimum, maximum).
    """
    return exploded(metrics) or collapsed(metrics, ranges)


def exploded(metrics: Sequence[Metrics]) -> Divergence | None:
    """The explosion of the gradient norm, as the module says."""
    norms = [line["grad_norm"] for line in metrics]
    earlier, last = norms[:-EXPLOSION_STEPS], norms[-EXPLOSION_STEPS:]
    if len(earlier) < EXPLOSION_EARLIER:
        return None
    usual = statistics.median(earlier)
    if usual == 0 or min(last) <= EXPLOSION_FACTOR * usual:
        return None
    return Divergence(
        len(metrics),
        f"the gradient norm was above {EXPLOSION_FACTOR:g} times its median ({usual:.3g}) for {EXPLOSION_STEPS} steps",
    )


def collapsed(metrics: Sequence[Metrics], ranges: Mapping[str, tuple[float, float]]) -> Divergence | None:
    """The collapse of the rewards, as the module says."""
    if len(metrics) < 2 * COLLAPSE_WINDOW:
        return None
    rewards = [_scaled(line, ranges) for line in metrics]
    means = [statistics.fmean(rewards[i : i + COLLAPSE_WINDOW]) for i in range(len(rewards) - COLLAPSE_WINDOW + 1)]
    best, last = max(means[:-COLLAPSE_WINDOW]), means[-1]
    if last >= COLLAPSE_SHARE * best:
        return None
    return Divergence(
        len(metrics),
        f"the mean reward of {COLLAPSE_WINDOW} steps fell from {best:.3f} to {last:.3f} "
        "(each reward as 0..1 of its range)",
    )


def _scaled(line: Metrics, ranges: Mapping[str, tuple[float, float]]) -> float:
    return statistics.fmean((line[f"reward/{name}/mean"] - low) / (high - low) for name, (low, high) in ranges.items())
