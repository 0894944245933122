"""A line of progress with the time left, for the log of a job and for a person at a terminal alike."""

from __future__ import annotations

import logging
import time

BAR = 20  # characters
EVERY_SECONDS = 5.0
QUIET_SECONDS = 60.0  # while nothing ends, as long dialogues side by side do not for a while


class Progress:
    """Logs `label: [####      ] 20%, 660 of 3301, about 12 s left` every few seconds and at the end.

    While nothing ends it logs every minute, and where it is told so, how much was made:
    `label: [##        ] 10%, 22 of 220, 61 outputs and 14,205 tokens in 180 s`.

    Args:
        done: what was there before; it does not count for the time left.
    """

    def __init__(self, logger: logging.Logger, label: str, total: int, done: int = 0) -> None:
        self._logger, self._label, self._total, self._done, self._before = logger, label, total, done, done
        self._tokens = self._outputs = 0
        self._started = self._shown = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """`count` more are done; 0: work goes on, and nothing has ended."""
        self._done += count
        self._show(0.0 if self._done == self._total else EVERY_SECONDS if count else QUIET_SECONDS)

    def made(self, tokens: int, outputs: int) -> None:
        """So much more was made for what is not done yet. To be called often: it logs when it is time."""
        self._tokens += tokens
        self._outputs += outputs
        self._show(QUIET_SECONDS)

    def _show(self, after: float) -> None:
        now = time.monotonic()
        if now - self._shown >= after:
            self._shown = now
            self._logger.info("%s: %s", self._label, self.line(now - self._started))

    def line(self, seconds: float) -> str:
        """The line after `seconds` of work."""
        share = self._done / self._total if self._total else 1.0
        filled = "#" * round(BAR * share)
        here = f"[{filled:<{BAR}}] {share:.0%}, {self._done} of {self._total}"
        if self._tokens:
            here += f", {self._outputs} outputs and {self._tokens:,} tokens in {seconds:.0f} s"
        if self._done > self._before:
            return f"{here}, about {seconds / (self._done - self._before) * (self._total - self._done):.0f} s left"
        return here if self._tokens else f"{here}, since {seconds:.0f} s"
