"""Versions of scorers; which of them made the scores below a directory, and of which checkpoints.

A workflow asks this before any job runs, so nothing that takes time to import is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dara.files import read_json

SCORERS = {
    "laptop_tools": 2,  # 2: a call with NaN is a call
    "laptop_math": 2,  # 2: as math_five
    "bfcl_v4": 3,  # 2: tools that check dates work; 3: calls and ends of dialogues count as for the authors
    "math_five": 2,  # 2: the second chance reads LaTeX's spaces and powers; a truncated response can be right
    "toolrl_validation": 1,
    "deepscaler_validation": 1,
}
"""Benchmark -> version of its scorer: the next one whenever the same responses get other scores. Then they are scored
again; nothing is generated or trained again."""
UNRECORDED = {"laptop_tools": 2, "laptop_math": 2}
"""Benchmark -> version whose scores have no record of what made them. Those that are kept in git have none: they are
older than it, and this version gives the same ones to all of their responses."""


def scorer_path(out_dir: Path, benchmark: str) -> Path:
    """What scored the responses below `out_dir`; written when all of them are scored."""
    return out_dir / f"{benchmark}.scorer.json"


def covers(directory: Path, benchmark: str, steps: Iterable[int]) -> bool:
    """Whether scoring is done below `directory`, and these steps are among those that it scored."""
    listing = directory / f"{benchmark}.scored.json"
    return listing.is_file() and {f"step_{step}" for step in steps} <= {
        name.split("/")[0] for name in read_json(listing)
    }


def is_recorded(benchmark: str) -> bool:
    """Whether scores of today's scorer have a record."""
    return UNRECORDED.get(benchmark) != SCORERS[benchmark]


def scored_by(directory: Path, benchmark: str) -> Any:
    """The version of the scorer that made the scores below `directory`; None where that is not recorded."""
    path = scorer_path(directory, benchmark)
    if path.is_file():
        return read_json(path)["scorer"].get("scorer", 1)
    return UNRECORDED.get(benchmark)
