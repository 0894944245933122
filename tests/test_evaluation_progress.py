"""The line of progress while nothing has ended."""

import logging
import time

import pytest

from dara.evaluation.progress import Progress


def test_progress_tells_what_was_made_while_nothing_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of long outputs takes many minutes, in which a sampler tells of its tokens alone."""
    clock = [0.0, 30.0, 59.0, 60.0, 61.0, 120.0, 130.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock.pop(0))
    caplog.set_level("INFO", "progress")
    progress = Progress(logging.getLogger("progress"), "run", 220, done=22)
    for tokens in (1000, 200, 30, 4, 5000):
        progress.made(tokens, int(tokens == 30))
    progress.advance(2)
    nothing = "run: [##                  ] 10%, 22 of 220, 1 outputs and"
    assert caplog.messages == [
        f"{nothing} 1,230 tokens in 60 s",
        f"{nothing} 6,234 tokens in 120 s",
        "run: [##                  ] 11%, 24 of 220, 1 outputs and 6,234 tokens in 130 s, about 12740 s left",
    ]
