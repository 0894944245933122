"""One workflow at a time in a clone; a killed one leaves nothing to unlock by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from dara.loading import ConfigurationError
from dara.snakemake_command import Command
from dara.store import directory_lock
from dara.workflow_lock import guard_directory


def command(*arguments: str) -> Command:
    return Command.read(arguments, Path.cwd())


def test_stale_locks_go_and_a_live_workflow_is_named(tmp_path: Path):
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "0.input.lock").write_text("results/a\n")
    code = f"from test_workflow_lock import *; guard_directory(command(), Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)  # it ends, and its lock with it
    assert not locks.exists()
    locks.mkdir()
    with directory_lock(tmp_path / "workflow", seconds=0):
        for arguments in (
            [],
            ["-Rconfiguration"],
            ["--config", "x=-n"],
            ["--unlock"],
            ["--touch"],
            ["--delete-all-output"],
        ):
            with pytest.raises(ConfigurationError, match=r"Another workflow runs in this clone: .* process \d+ on "):
                guard_directory(command(*arguments), tmp_path)
        for arguments in (["-n"], ["-nRconfiguration"], ["--summary"], ["--report", "x.html"]):
            guard_directory(command(*arguments), tmp_path)
    assert locks.exists()  # a live workflow's locks are not touched
