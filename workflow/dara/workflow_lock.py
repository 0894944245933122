"""One workflow at a time in a clone, and no manual unlocking after a crash.

Snakemake leaves its lock files behind when it is killed. A kernel lock beside them dies with the process, so that files
which nobody holds can be told from a workflow that runs.
"""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

from dara.loading import ConfigurationError
from dara.locking import LockedError, directory_lock

# Command lines that run no job: they take no lock and are welcome beside a running workflow.
_READS_ONLY = re.compile(
    r"-[a-zA-Z]*n[a-zA-Z]*|--(dry-?run|lint|report|list-\w+|list|dag|rulegraph|filegraph|d3dag|summary|detailed-summary|unlock)"
)
_held = ExitStack()  # closed by the end of the process, as a workflow's lock should be


def runs_jobs(arguments: list[str]) -> bool:
    """Whether a Snakemake command line executes jobs (a dry run or a report does not)."""
    return not any(_READS_ONLY.fullmatch(argument.split("=")[0]) for argument in arguments)


def guard_directory(arguments: list[str], state: Path = Path(".snakemake")) -> None:
    """Hold the clone for this workflow until the process ends, and clear what a killed one left locked.

    Args:
        arguments: Snakemake's command line.
        state: Snakemake's directory in the working directory.

    Raises:
        ConfigurationError: another workflow runs here.
    """
    if not runs_jobs(arguments):
        return
    try:
        _held.enter_context(directory_lock(state / "workflow", seconds=0))
    except LockedError as error:
        raise ConfigurationError(
            f"Another workflow runs in this clone: {error}. `snakemake -n` works beside it, and so does a second clone."
        ) from None
    shutil.rmtree(state / "locks", ignore_errors=True)
