"""A training stops when the Snakemake that started it is gone, and only then."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import dara
from dara import system
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
    monkeypatch.setattr(system.psutil, "Process", fake)
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
    assert system.is_snakemake(command) is expected


def test_all_up_to_the_topmost_snakemake_are_watched(monkeypatch):
    job, main = ["python", "-m", "snakemake", "--mode", "subprocess"], ["python", "/env/bin/snakemake"]
    processes = ancestors(monkeypatch, ["bash", "-c", "dara train"], job, ["sh"], main, ["make"], ["bash"])
    assert system.watched_processes() == processes[:4], "neither make nor the login shell above Snakemake matters"


def test_without_snakemake_the_direct_parent_is_watched(monkeypatch):
    processes = ancestors(monkeypatch, ["bash"], ["sshd"])
    monkeypatch.setattr(system.signal, "getsignal", lambda number: signal.SIG_DFL)
    assert system.watched_processes() == processes[:1]


@pytest.mark.parametrize("commands", [[["bash"], ["sshd"]], []])
def test_nohup_and_an_orphan_watch_nothing(monkeypatch, commands):
    ancestors(monkeypatch, *commands)
    monkeypatch.setattr(system.signal, "getsignal", lambda number: signal.SIG_IGN)
    assert system.watched_processes() == []
    system.stop_with_parent()
    assert not any(thread.name == "parent-watch" for thread in threading.enumerate())


def test_nohup_below_snakemake_is_watched(monkeypatch):
    processes = ancestors(monkeypatch, ["sh"], ["python", "/env/bin/snakemake"])
    monkeypatch.setattr(system.signal, "getsignal", lambda number: signal.SIG_IGN)
    assert system.watched_processes() == processes[:2]


SNAKEMAKE = "import subprocess, sys; subprocess.run(['sh', '-c', sys.argv[1]])"
TRAINER = """
import os, signal
from dara.system import stop_with_parent
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
    while system.is_alive(watched) and time.monotonic() < deadline:
        pass
    assert not system.is_alive(watched), "a zombie counts as gone"
    process.wait()
    assert system.is_alive(psutil.Process())


JOB = (
    f"import sys; from dara.cli import main; sys.argv = ['dara', '--root', {str(ROOT)!r}, 'check-config']; main(); "
    "import signal; signal.pause()"
)


def test_a_job_whose_workflow_died_before_it_started_ends_at_once():
    """Its shell waits for it and lives on; only the mark that the workflow left can tell."""
    ended = subprocess.run([sys.executable, "-c", "from dara.system import workflow_mark; print(workflow_mark())"],
                           env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True, check=True)  # fmt: skip
    job = subprocess.run(
        [sys.executable, "-c", JOB],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), system.WORKFLOW: ended.stdout.strip()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert job.returncode == system.EXIT_CODE
    assert "the workflow, which started this job, is gone" in job.stderr


def test_a_workflow_that_lives_and_one_elsewhere_are_not_gone(monkeypatch):
    monkeypatch.setenv(system.WORKFLOW, system.workflow_mark())
    assert not system.workflow_is_gone()
    boot = system.psutil.boot_time()
    monkeypatch.setattr(system.psutil._pslinux, "boot_time", lambda: boot + 1)  # the clock is set
    assert not system.workflow_is_gone()
    host, pid, start = system.workflow_mark().split("/")
    monkeypatch.setenv(system.WORKFLOW, f"{host}/{pid}/{int(start) - 500}")  # another process with its pid
    assert system.workflow_is_gone()
    monkeypatch.setenv(system.WORKFLOW, f"elsewhere/{pid}/1.0")
    assert not system.workflow_is_gone()
    monkeypatch.delenv(system.WORKFLOW)
    assert not system.workflow_is_gone()
