"""Reasons to stop a training before its last step: its job's time limit, to be continued, or divergence.

A batch system kills a job at its limit, and every step since the last checkpoint is lost. So after each checkpoint a
training checks whether the next one can still be reached. It stops at scheduled checkpoints only: an extra checkpoint
would be evaluated, and a run would then depend on the limits of its jobs.

A run has diverged by one of three rules with fixed thresholds, the same for every method and engine:

* not finite: NaN or infinity in a step's numbers.
* explosion: the gradient norm before clipping is more than 100 times the median of all earlier steps, in three steps in
  a row. Clipping makes a single spike harmless; three mean that the policy left the region it was trained in.
* collapse: the training reward of the last ten steps is less than a fifth of the best ten steps before. Each reward is
  scaled to 0..1 of its declared range and the K rewards are averaged, so that the rule does not depend on the task.

Divergence is an outcome of the run, recorded with its step and reason; its files end before that step. The run is never
repeated with another seed. In the cached runs of this repository the largest ratio of three norms in a row is 1.6 and
the smallest share of the best reward is 0.97, so no rule is close to its threshold on a healthy run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RECENT = 10  # steps whose seconds say how long the next ones take
CAUTION = 1.25  # responses get longer while a model learns
RESERVE_SHARE, RESERVE_SECONDS = 0.2, 300.0

EXPLOSION_FACTOR = 100.0
EXPLOSION_STEPS = 3
EXPLOSION_EARLIER = 10  # number of earlier steps that the median norm needs
COLLAPSE_SHARE = 0.2
COLLAPSE_WINDOW = 10

Metrics = Mapping[str, float | int]


# --- the time limit of a job ------------------------------------------------------------------------------------------


class OutOfTime(Exception):
    """A training stopped before its job's time limit, without an error; the next attempt continues."""


class LimitTooShort(ValueError):
    """A job's time limit is too short even for the steps to the next checkpoint, so no attempt would make progress."""


@dataclass(frozen=True)
class Deadline:
    """The time limit of a job: the requested `minutes`, counted from `started` (seconds, time.monotonic())."""

    minutes: float
    started: float

    @classmethod
    def of(cls, minutes: float | None, started: float) -> Deadline | None:
        """Return the deadline of a job that started at `started`; None if no limit is enforced."""
        return None if minutes is None else cls(minutes, started)

    @property
    def end(self) -> float:
        """Return the time at which the batch system ends the job."""
        return self.started + 60 * self.minutes

    @property
    def reserve(self) -> float:
        """Return the seconds kept free: the job is older than the process, and a file system may be slow."""
        return min(RESERVE_SECONDS, RESERVE_SHARE * 60 * self.minutes)

    def after_step(self, step: int, checkpoint_steps: Sequence[int], seconds: Sequence[float], now: float) -> None:
        """Call `check` after a step, and after its checkpoint if it has one; the last step needs no check.

        checkpoint_steps: the scheduled checkpoints, ascending. seconds, now: as in `check`.
        """
        later = [scheduled for scheduled in checkpoint_steps if scheduled > step]
        if later:
            since = max((scheduled for scheduled in checkpoint_steps if scheduled <= step), default=0)
            self.check(now, seconds, step=step, since=since, next_checkpoint=later[0])

    def check(self, now: float, seconds: Sequence[float], *, step: int, since: int, next_checkpoint: int) -> None:
        """Raise if the training should not go on.

        Args:
            now: time.monotonic().
            seconds: wall-clock seconds of the steps that this process has made, at least one.
            step: the step just completed.
            since: the newest checkpoint (0: none); equal to `step` if one was just written.
            next_checkpoint: the next one, later than `step`.

        Raises:
            OutOfTime: `step` has its checkpoint, and the next cannot be reached.
            LimitTooShort: this process has written no checkpoint and cannot reach its first.
        """
        pace = statistics.fmean(seconds[-RECENT:])
        to_go = next_checkpoint - step
        if step == since:
            if now + seconds_needed(seconds, to_go) > self.end - self.reserve:
                raise OutOfTime(
                    f"stopped at step {step} before the time limit of {self.minutes:g} minutes; "
                    "the next attempt continues"
                )
        elif len(seconds) == step - since and now + pace * to_go > self.end:
            raise LimitTooShort(
                f"the job's limit of {self.minutes:g} minutes is too short to get from step {since} to the checkpoint "
                f"at step {next_checkpoint}, at {pace:.0f} s a step; raise `hours` in the model's resources"
            )


def seconds_needed(seconds: Sequence[float], steps: int) -> float:
    """Return a cautious estimate of the seconds that `steps` more steps and their checkpoint take.

    seconds: those of earlier steps. The slowest recent step also stands in for the time to write the checkpoint.
    """
    recent = seconds[-RECENT:]
    return CAUTION * statistics.fmean(recent) * steps + max(recent)


# --- divergence -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Divergence:
    """The step in which a run diverged, and why, in one sentence."""

    step: int
    reason: str


def divergence(metrics: Sequence[Metrics], ranges: Mapping[str, tuple[float, float]]) -> Divergence | None:
    """Return the divergence of the run in the last of these steps (all from step 1 on), or None.

    Call it before the step is recorded. ranges: reward -> its (minimum, maximum).
    """
    return not_finite(len(metrics), metrics[-1]) or exploded(metrics) or collapsed(metrics, ranges)


def not_finite(step: int, line: Metrics) -> Divergence | None:
    """Return a divergence if a step's numbers (its metrics, or those measured so far) contain NaN or infinity."""
    bad = sorted(name for name, value in line.items() if not math.isfinite(value))
    return Divergence(step, f"{bad[0]} is {line[bad[0]]}") if bad else None


def exploded(metrics: Sequence[Metrics]) -> Divergence | None:
    """Return the explosion of the gradient norm if it is complete in the last step."""
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
    """Return the collapse of the rewards if it is complete in the last step."""
    if len(metrics) < 2 * COLLAPSE_WINDOW:
        return None
    rewards = [
        statistics.fmean((line[f"reward/{name}/mean"] - low) / (high - low) for name, (low, high) in ranges.items())
        for line in metrics
    ]
    means = [statistics.fmean(rewards[i : i + COLLAPSE_WINDOW]) for i in range(len(rewards) - COLLAPSE_WINDOW + 1)]
    best, last = max(means[:-COLLAPSE_WINDOW]), means[-1]
    if last >= COLLAPSE_SHARE * best:
        return None
    return Divergence(
        len(metrics),
        f"the mean reward of {COLLAPSE_WINDOW} steps fell from {best:.3f} to {last:.3f} "
        "(each reward as 0..1 of its range)",
    )
