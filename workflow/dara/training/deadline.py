"""Stop a training at a checkpoint before its job's time limit, so that the next job continues and loses no step.

A batch system kills a job at its limit, and with it every step since the last checkpoint. So after each checkpoint a
training asks whether the next one can still be reached. It stops at scheduled checkpoints only: an extra one would be
evaluated, and a run would then depend on the limits of its jobs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RECENT = 10  # steps whose seconds tell how long the next ones take
CAUTION = 1.25  # responses get longer while a model learns
RESERVE_SHARE, RESERVE_SECONDS = 0.2, 300.0


class OutOfTime(Exception):
    """A training stopped before its job's time limit: nothing is wrong, the next attempt continues."""


class LimitTooShort(ValueError):
    """A job's time limit does not even hold the steps to the next checkpoint, so no attempt would ever get on."""


@dataclass(frozen=True)
class Deadline:
    """The time limit of a job: `minutes` as it was asked for, counted from `started` (seconds, time.monotonic())."""

    minutes: float
    started: float

    @classmethod
    def of(cls, minutes: float | None, started: float) -> Deadline | None:
        """The deadline of a job that started then; None where no limit is enforced."""
        return None if minutes is None else cls(minutes, started)

    @property
    def end(self) -> float:
        """When the batch system ends the job."""
        return self.started + 60 * self.minutes

    @property
    def reserve(self) -> float:
        """Seconds that are kept free: the job was older than the process, and a file system may be slow."""
        return min(RESERVE_SECONDS, RESERVE_SHARE * 60 * self.minutes)

    def after_step(self, step: int, checkpoint_steps: Sequence[int], seconds: Sequence[float], now: float) -> None:
        """`check` after a step, and after its checkpoint is written where it has one; the last step needs none.

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
            since: the newest checkpoint (0: none): the same as `step` where one was just written.
            next_checkpoint: the next one, later than `step`.

        Raises:
            OutOfTime: `step` has its checkpoint, and the next cannot be reached.
            LimitTooShort: this process has made no checkpoint and cannot reach its first.
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
    """A cautious estimate of the seconds that `steps` more steps and their checkpoint take.

    seconds: those of earlier steps, of which the slowest recent one stands for writing the checkpoint.
    """
    recent = seconds[-RECENT:]
    return CAUTION * statistics.fmean(recent) * steps + max(recent)
