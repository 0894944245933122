"""A training stops when the Snakemake that started it is gone, and only then."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import dara
from dara import orphan_guard
from project import ROOT

PACKAGE = Path(dara.__file__).parents[1]
SECONDS = 30  # deadline of what takes about two


class FakeProcess:
    def __init__(self, pid: int, command: list[str]):
        self.pid, self.command = pid, command

    def cmdline(self) -> list[str]:
        return self.command


def ancestors(monkeypatch, *commands: list[str]) -> list[FakeProcess]:
    """Make these command lines the ancestors of this process, the nearest first, above them process 1."""
    processes = [FakeProcess(100 - i, command) for i, command in enumerate(commands)] + [FakeProcess(1, ["/sbin/init"])]
    fake = type("Fake", (), {"parents": lambda self: processes})
    monkeypatch.setattr(orphan_guard.psutil, "Process", fake)
    return processes


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/usr/bin/python3.11", "/env/bin/snakemake", "--cores", "2"], True),
        (["/env/bin/python", "-m", "snakemake", "--snakefile", "Snakefile"], True),
        (["snakemake", "-n"], True),
        (["bash", "-c", "snakemake --cores 2"], False),
        (["vim", "snakemake"], False),
        (["make", "laptop"], False),
        ([], False),
    ],
)
def test_snakemake_is_told_by_its_command_line(command, expected):
    assert orphan_guard.is_snakemake(command) is expected


def test_all_up_to_the_topmost_snakemake_are_watched(monkeypatch):
    job, main = ["python", "-m", "snakemake", "--mode", "subprocess"], ["python", "/env/bin/snakemake"]
    processes = ancestors(monkeypatch, ["bash", "-c", "dara train"], job, ["sh"], main, ["make"], ["bash"])
    assert orphan_guard.watched_processes() == processes[:4], "neither make nor the login shell above Snakemake matters"


def test_without_snakemake_the_direct_parent_is_watched(monkeypatch):
    processes = ancestors(monkeypatch, ["bash"], ["sshd"])
    monkeypatch.setattr(orphan_guard.signal, "getsignal", lambda number: signal.SIG_DFL)
    assert orphan_guard.watched_processes() == processes[:1]


@pytest.mark.parametrize("commands", [[["bash"], ["sshd"]], []])
def test_nohup_and_an_orphan_watch_nothing(monkeypatch, commands):
    ancestors(monkeypatch, *commands)
    monkeypatch.setattr(orphan_guard.signal, "getsignal", lambda number: signal.SIG_IGN)
    assert orphan_guard.watched_processes() == []
    assert orphan_guard.stop_with_parent() is None


def test_nohup_below_snakemake_is_watched(monkeypatch):
    processes = ancestors(monkeypatch, ["sh"], ["python", "/env/bin/snakemake"])
    monkeypatch.setattr(orphan_guard.signal, "getsignal", lambda number: signal.SIG_IGN)
    assert orphan_guard.watched_processes() == processes[:2]


SNAKEMAKE = "import subprocess, sys; subprocess.run(['sh', '-c', sys.argv[1]])"
TRAINER = """
import os, signal
from dara.orphan_guard import stop_with_parent
stop_with_parent()
print(os.getpid(), flush=True)
signal.pause()
"""


def test_a_killed_snakemake_ends_the_trainer_below_its_shell(tmp_path):
    (tmp_path / "snakemake").write_text(SNAKEMAKE)
    (tmp_path / "trainer.py").write_text(TRAINER)
    shell = f"{sys.executable} {tmp_path / 'trainer.py'}; exit $?"  # `exit` keeps the shell between the two
    snakemake = subprocess.Popen(
        [sys.executable, tmp_path / "snakemake", shell],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    trainer = psutil.Process(int(snakemake.stdout.readline()))
    shell_process = trainer.parent()
    assert shell_process.name() == "sh"
    assert shell_process.parent().pid == snakemake.pid
    snakemake.send_signal(signal.SIGKILL)
    snakemake.wait()
    gone, alive = psutil.wait_procs([trainer, shell_process], timeout=SECONDS)
    for process in alive:
        process.kill()
    assert not alive
    assert len(gone) == 2
    assert "which started this job, is gone" in snakemake.stderr.read()


def test_a_finished_process_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", ""])
    watched, deadline = psutil.Process(process.pid), time.monotonic() + SECONDS
    while orphan_guard.is_alive(watched) and time.monotonic() < deadline:
        pass
    assert not orphan_guard.is_alive(watched), "a zombie counts as gone"
    process.wait()
    assert orphan_guard.is_alive(psutil.Process())


JOB = (
    f"import sys; from dara.cli import main; sys.argv = ['dara', '--root', {str(ROOT)!r}, 'check-config']; main(); "
    "import signal; signal.pause()"
)


def test_a_job_whose_workflow_died_before_it_started_ends_at_once():
    """Its shell waits for it and lives on; only the mark that the workflow left can tell."""
    ended = subprocess.run([sys.executable, "-c", "from dara.orphan_guard import workflow_mark; print(workflow_mark())"],
                           env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True, check=True)  # fmt: skip
    job = subprocess.run(
        [sys.executable, "-c", JOB],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), orphan_guard.WORKFLOW: ended.stdout.strip()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert job.returncode == orphan_guard.EXIT_CODE
    assert "the workflow, which started this job, is gone" in job.stderr


def test_a_workflow_that_lives_and_one_elsewhere_are_not_gone(monkeypatch):
    monkeypatch.setenv(orphan_guard.WORKFLOW, orphan_guard.workflow_mark())
    assert not orphan_guard.workflow_is_gone()
    boot = orphan_guard.psutil.boot_time()
    monkeypatch.setattr(orphan_guard.psutil._pslinux, "boot_time", lambda: boot + 1)  # the clock is set
    assert not orphan_guard.workflow_is_gone()
    host, pid, start = orphan_guard.workflow_mark().split("/")
    monkeypatch.setenv(orphan_guard.WORKFLOW, f"{host}/{pid}/{int(start) - 500}")  # another process with its pid
    assert orphan_guard.workflow_is_gone()
    monkeypatch.setenv(orphan_guard.WORKFLOW, f"elsewhere/{pid}/1.0")
    assert not orphan_guard.workflow_is_gone()
    monkeypatch.delenv(orphan_guard.WORKFLOW)
    assert not orphan_guard.workflow_is_gone()
