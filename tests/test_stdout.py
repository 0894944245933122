"""What becomes of a verb's output when nobody reads it, or when it cannot be written."""

import os
import subprocess
import sys

import pytest

from dara.cli import main
from dara.system import OutputError, whole_output
from project import ROOT, environment

VERBS = [["status"], ["plan"], ["--help"], ["status", "--help"]]
BUFFERED = environment() | {"PYTHONUNBUFFERED": ""}
UNBUFFERED = environment() | {"PYTHONUNBUFFERED": "1"}


def run(arguments: list[str], **how) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "dara", *arguments]
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **{"env": BUFFERED, **how})


@pytest.fixture
def nobody():
    """The end of a pipe whose reader has gone, as `head` does after its last line."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error_to_speak_of(nobody, arguments):
    done = run(arguments, stdout=nobody)
    assert (done.stderr, done.returncode) == ("", 141)  # as of any command that a pipe ends
    assert run(arguments, stdout=nobody, env=UNBUFFERED).stderr == ""


@pytest.mark.parametrize("environment", [BUFFERED, UNBUFFERED], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", VERBS[:3], ids=" ".join)
def test_output_that_cannot_be_written_is_one_sentence(arguments, environment):
    with open("/dev/full", "w") as full:
        done = run(arguments, stdout=full, env=environment)
    assert (done.stderr, done.returncode) == ("dara: standard output: No space left on device\n", 1)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-"])
def test_closed_output_is_output_that_nobody_wants(tmp_path, closed):
    page = tmp_path / "keys.md"
    command = (
        f'"{sys.executable}" -m dara config-docs --out {page} {closed} && "{sys.executable}" -m dara status {closed}'
    )
    done = subprocess.run(command, shell=True, cwd=ROOT, env=BUFFERED, stderr=subprocess.PIPE, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    assert page.read_text() == (ROOT / "docs/configuration.md").read_text()


def test_a_mistake_is_told_whoever_reads(nobody):
    done = run(["status", "--preset", "laptob"], stdout=nobody)
    assert "did you mean 'laptop'" in done.stderr
    assert done.returncode == 1


def test_a_pipe_of_the_verbs_own_is_not_its_output(monkeypatch, capsys):
    """A broken connection of a training must be told."""

    def breaks():
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("dara.config.keys_page", breaks)
    with pytest.raises(SystemExit) as ended:
        main(["config-docs", "--out", "x"])
    assert ended.value.code == 1
    assert "broken pipe" in capsys.readouterr().err


def test_output_in_this_process_is_left_as_it_was(capsys):
    before = sys.stdout
    with whole_output():
        print("a line")
    assert sys.stdout is before
    assert capsys.readouterr().out == "a line\n"
    assert not issubclass(OutputError, OSError)  # so that no verb takes it for a file's
