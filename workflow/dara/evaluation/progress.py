"""A line of progress with the time left, for the log of a job and for a person at a terminal alike."""

from __future__ import annotations

import logging
import time

BAR = 20  # characters
EVERY_SECONDS = 5.0
QUIET_SECONDS = 60.0  # while nothing ends, as long dialogues side by side do not for a while


class Progress:
    """Logs `label: [####      ] 20%, 660 of 3301, about 12 s left` every few seconds and at the end.

    Args:
        done: what was there before; it does not count for the time left.
    """

    def __init__(self, logger: logging.Logger, label: str, total: int, done: int = 0) -> None:
        self._logger, self._label, self._total, self._done, self._before = logger, label, total, done, done
        self._started = self._shown = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """`count` more are done; 0: work goes on, and nothing has ended."""
        self._done += count
        now = time.monotonic()
        if now - self._shown >= (EVERY_SECONDS if count else QUIET_SECONDS) or self._done == self._total:
            self._shown = now
            self._logger.info("%s: %s", self._label, self.line(now - self._started))

    def line(self, seconds: float) -> str:
        """The line after `seconds` of work."""
        share = self._done / self._total if self._total else 1.0
        filled = "#" * round(BAR * share)
        here = f"[{filled:<{BAR}}] {share:.0%}, {self._done} of {self._total}"
        if self._done == self._before:
            return f"{here}, since {seconds:.0f} s"
        return f"{here}, about {seconds / (self._done - self._before) * (self._total - self._done):.0f} s left"
