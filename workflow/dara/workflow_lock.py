"""One workflow at a time in a clone, and no manual unlocking after a crash.

Snakemake leaves its lock files behind when it is killed. A kernel lock beside them dies with the process, so that files
which nobody holds can be told from a workflow that runs. It also stops what Snakemake's own lock does not: commands
that delete, mark or unlock, and a second workflow of other files, at whose end Snakemake removes the first one's locks.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

from dara.loading import ConfigurationError
from dara.snakemake_command import READ, Command
from dara.store import LockedError, directory_lock

_held = ExitStack()  # closed by the end of the process, as a workflow's lock should be


def guard_directory(command: Command, state: Path = Path(".snakemake")) -> None:
    """Hold the clone until the process ends, and clear what a killed one left locked; not for a command that reads.

    Args:
        command: Snakemake's command line.
        state: Snakemake's directory in the working directory.

    Raises:
        ConfigurationError: another workflow runs here.
    """
    if command.purpose == READ:
        return
    try:
        _held.enter_context(directory_lock(state / "workflow", seconds=0))
    except LockedError as error:
        raise ConfigurationError(
            f"Another workflow runs in this clone: {error}. `snakemake -n` works beside it, and so does a second clone."
        ) from None
    shutil.rmtree(state / "locks", ignore_errors=True)
