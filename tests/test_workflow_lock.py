"""One workflow at a time in a clone; a killed one leaves nothing to unlock by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from dara.loading import ConfigurationError
from dara.locking import directory_lock
from dara.workflow_lock import guard_directory, runs_jobs


@pytest.mark.parametrize(
    "arguments", [["-n"], ["-np"], ["--dry-run"], ["--report", "x.html"], ["--report=x.html"], ["--lint"], ["--unlock"]]
)
def test_command_lines_that_run_nothing(arguments):
    assert not runs_jobs(["--profile", "profiles/local", *arguments])


@pytest.mark.parametrize(
    "arguments",
    [[], ["--profile", "profiles/local"], ["-j2", "--", "figures"], ["--config", "reuse=none"], ["--rerun-incomplete"]],
)
def test_command_lines_that_run_jobs(arguments):
    assert runs_jobs(arguments)


def test_stale_locks_go_and_a_live_workflow_is_named(tmp_path: Path):
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "0.input.lock").write_text("results/a\n")
    code = f"from dara.workflow_lock import guard_directory; from pathlib import Path; guard_directory([], Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True)  # it ends, and its lock with it
    assert not locks.exists()
    locks.mkdir()
    with directory_lock(tmp_path / "workflow", seconds=0):
        with pytest.raises(ConfigurationError, match=r"Another workflow runs in this clone: .* process \d+ on "):
            guard_directory([], tmp_path)
        guard_directory(["-n"], tmp_path)
    assert locks.exists()  # a live workflow's locks are not touched
