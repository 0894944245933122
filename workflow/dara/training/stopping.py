"""Reasons to stop a training before its last step: its job's time limit, to be continued, or divergence.

A batch system kills a job at its limit, and every step since the last checkpoint is lost. So after each checkpoint a
training checks whether the next one can still be reached. It stops at scheduled checkpoints only: an extra checkpoint
would be evaluated, and a run would then depend on the limits of its jobs.

A run has diverged by one of three rules with fixed thresholds, the same for every method and engine: NaN or infinity in
a step's numbers; a gradient norm before clipping above 100 times the median of all earlier steps, in three steps in a
row (clipping makes a single spike harmless); a training reward of the last ten steps below a fifth of the best ten
steps before, the mean of the K rewards as shares of their declared ranges. In the cached runs of this repository the
largest ratio of three norms in a row is 1.6 and the smallest share of the best reward is 0.97.

Divergence is an outcome of the run, recorded with its step and reason; its files end before that step. The run is never
repeated with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

RECENT = 10  # steps whose seconds say how long the next ones take
CAUTION = 1.25  # responses get longer while a model learns
RESERVE_SHARE, RESERVE_SECONDS = 0.2, 300.0  # kept free: the job is older than the process, a file system may be slow

EXPLOSION_FACTOR = 100.0
EXPLOSION_STEPS = 3
EXPLOSION_EARLIER = 10  # number of earlier steps that the median norm needs
COLLAPSE_SHARE = 0.2
COLLAPSE_WINDOW = 10

Metrics = Mapping[str, float | int]
"""A line of metrics.jsonl."""


class OutOfTime(Exception):
    """A training stopped before its job's time limit, without an error; the next attempt continues."""


class LimitTooShort(ValueError):
    """A job's time limit is too short even for the steps to the next checkpoint, so no attempt would make progress."""


@dataclass(frozen=True)
class Deadline:
    """The time limit of a job: the requested `minutes`, counted from `started` (seconds, time.monotonic())."""

    minutes: float
    started: float

    def check(self, step: int, checkpoint_steps: Sequence[int], seconds: Sequence[float], now: float) -> None:
        """Raise if a training should not go on after `step`, and after its checkpoint if it has one.

        checkpoint_steps: the scheduled ones, ascending. seconds: wall-clock seconds of the steps that this process has
        made, at least one. now: time.monotonic().

        Raises OutOfTime if `step` has its checkpoint and the next cannot be reached, LimitTooShort if this process has
        written no checkpoint and cannot reach its first.
        """
        coming = next((scheduled for scheduled in checkpoint_steps if scheduled > step), None)
        if coming is None:  # the last step needs no check
            return
        since = max((scheduled for scheduled in checkpoint_steps if scheduled <= step), default=0)
        recent, end = seconds[-RECENT:], self.started + 60 * self.minutes
        pace = fmean(recent)
        if step == since:
            # The slowest recent step also stands in for the time to write the checkpoint.
            needed = CAUTION * pace * (coming - step) + max(recent)
            if now + needed > end - min(RESERVE_SECONDS, RESERVE_SHARE * 60 * self.minutes):
                raise OutOfTime(
                    f"stopped at step {step} before the time limit of {self.minutes:g} minutes; "
                    "the next attempt continues"
                )
        elif len(seconds) == step - since and now + pace * (coming - step) > end:
            raise LimitTooShort(
                f"the job's limit of {self.minutes:g} minutes is too short to get from step {since} to the checkpoint "
                f"at step {coming}, at {pace:.0f} s a step; raise `hours` in the model's resources"
            )


@dataclass(frozen=True)
class Divergence:
    """The step in which a run diverged, and why, in one sentence."""

    step: int
    reason: str


def divergence(metrics: Sequence[Metrics], ranges: Mapping[str, tuple[float, float]]) -> Divergence | None:
    """Return the divergence of the run in the last of these steps (all from step 1 on), or None.

    Call it before the step is recorded. ranges: reward -> its (minimum, maximum).
    """
    reason = not_finite(metrics[-1]) or _explosion(metrics) or _collapse(metrics, ranges)
    return Divergence(len(metrics), reason) if reason else None


def not_finite(line: Metrics) -> str | None:
    """Return a sentence if a step's numbers (its metrics, or those measured so far) contain NaN or infinity."""
    bad = sorted(name for name, value in line.items() if not math.isfinite(value))
    return f"{bad[0]} is {line[bad[0]]}" if bad else None


def _explosion(metrics: Sequence[Metrics]) -> str | None:
    norms = [line["grad_norm"] for line in metrics]
    earlier, last = norms[:-EXPLOSION_STEPS], norms[-EXPLOSION_STEPS:]
    if len(earlier) < EXPLOSION_EARLIER:
        return None
    usual = median(earlier)
    if usual == 0 or min(last) <= EXPLOSION_FACTOR * usual:
        return None
    return (
        f"the gradient norm was above {EXPLOSION_FACTOR:g} times its median ({usual:.3g}) for {EXPLOSION_STEPS} steps"
    )


def _collapse(metrics: Sequence[Metrics], ranges: Mapping[str, tuple[float, float]]) -> str | None:
    if len(metrics) < 2 * COLLAPSE_WINDOW:
        return None
    rewards = [
        fmean((line[f"reward/{name}/mean"] - low) / (high - low) for name, (low, high) in ranges.items())
        for line in metrics
    ]
    means = [fmean(rewards[i : i + COLLAPSE_WINDOW]) for i in range(len(rewards) - COLLAPSE_WINDOW + 1)]
    best, last = max(means[:-COLLAPSE_WINDOW]), means[-1]
    if last >= COLLAPSE_SHARE * best:
        return None
    return (
        f"the mean reward of {COLLAPSE_WINDOW} steps fell from {best:.3f} to {last:.3f} "
        "(each reward as 0..1 of its range)"
    )
