"""Standard output, written whole, or the reason why not: a full disk, a reader that has gone, a closed descriptor."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

PIPE_EXIT_CODE = 141
"""What a shell reports of a command that ended because nobody reads its output: 128 + SIGPIPE."""


class OutputError(Exception):
    """Standard output cannot be written; the OSError that says why is its cause. It is no file of a verb's own."""


class _Output:
    """A stream whose errors are its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputError from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputError from error


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Write all that is printed in the body before it ends, or end the process.

    In silence where whoever read it has gone, with a sentence where it cannot be written. What is closed is written to
    nowhere; without that, the next file to be opened would take its place and get what is printed.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 (for as long as the process lives)
    try:
        with contextlib.redirect_stdout(_Output(sys.stdout)) as output:
            try:
                yield
            finally:
                output.flush()
    except OutputError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left, at the end of the process
        if isinstance(error.__cause__, BrokenPipeError):
            raise SystemExit(PIPE_EXIT_CODE) from None
        sys.stderr.write(f"dara: standard output: {error.__cause__.strerror}\n")
        raise SystemExit(1) from None
