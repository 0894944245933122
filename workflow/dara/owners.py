"""Whose a run's directory in scratch is. Clones may share a scratch, and so may directories of results."""

from __future__ import annotations

import json
from pathlib import Path

from dara.files import read_json, write_atomically

OWNERS = "owners.json"
"""In a run's directory: the absolute directories into which trainings there publish."""


def record_owner(directory: Path, out: Path) -> None:
    """Put down that what is made in `directory` is published into `out`; both are results of whoever did so before."""
    # The results of a preset may be a link to a disk that the results of others have too, so that is not resolved.
    absolute = out.absolute()
    results = absolute.parents[min(2, len(absolute.parents) - 1)]
    before, own = owners(directory), str(results.resolve() / absolute.relative_to(results))
    if own not in before:
        write_atomically(directory / OWNERS, json.dumps([*before, own], indent=2) + "\n")


def owners(directory: Path) -> list[str]:
    """Where what is made in `directory` is published; nothing of a directory that is older than this record."""
    path = directory / OWNERS
    return read_json(path) if path.is_file() else []


def why_kept(directory: Path, results: Path) -> str | None:
    """Why nothing in `directory` may be deleted for the sake of `results`; None if it is theirs alone."""
    own = owners(directory)
    if not own:
        return f"it has no {OWNERS}, which says whose it is"
    # <results>/<preset>/runs/<run>: results below others are not theirs.
    others = [out for out in own if [*Path(out).parents][2:3] != [results.resolve()]]
    return f"it belongs to {others[0]}" if others else None
