"""Responses of a checkpoint while they are made: a file that grows line by line and is never taken for finished."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType

from dara.evaluation.records import Response, parse_response, response_line

logger = logging.getLogger(__name__)

Place = tuple[str, int]
"""A case and the number of a sample."""


def partial_path(finished: Path) -> Path:
    """Where the work for a finished file is: `.bfcl_v4.jsonl.partial` beside `bfcl_v4.jsonl.gz`."""
    return finished.with_name(f".{finished.name.removesuffix('.gz')}.partial")


class PartialResponses:
    """The responses made so far, on disk; a context manager that keeps the file open for more.

    A line is written at once, so a kill loses at most the response that it interrupts. The end of such a line, if any,
    is cut off when the file is opened again.

    Attributes:
        done: responses by (case, sample).

    Raises:
        ValueError: a whole line is wrong, which no kill can cause.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.done: dict[Place, Response] = _read(path)
        self._stream = path.open("a", encoding="utf-8", newline="\n")

    def __enter__(self) -> PartialResponses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    def add(self, case: str, sample: int, response: Response) -> None:
        """Keep one more response. ValueError for one that is already there."""
        if (case, sample) in self.done:
            raise ValueError(f"{self._path}: case {case}, sample {sample} is already there")
        self._stream.write(response_line(case, sample, response))
        self._stream.flush()
        self.done[case, sample] = response


def _read(path: Path) -> dict[Place, Response]:
    """The responses in the whole lines of `path`; an unfinished last line is cut off."""
    if not path.is_file():
        return {}
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
    done: dict[Place, Response] = {}
    try:
        text = whole.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: not UTF-8 text ({error}); delete it to have it made again") from None
    for number, line in enumerate(text.split("\n")[:-1], 1):
        row = parse_response(path, number, line)
        if (row.case, row.sample) in done:
            raise ValueError(f"{path}, row {number}: case {row.case}, sample {row.sample} again; delete the file")
        done[row.case, row.sample] = row.response
    logger.info("%s: goes on after %d responses", path.parent, len(done))
    return done
