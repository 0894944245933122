"""What the operating system refuses is one sentence: what, where, and what to do."""

import errno
import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dara import system
from dara.cli import main
from dara.places import make_writable
from dara.preflight import user_errors
from dara.system import SENTENCES, name_user, sentence
from dara.training.openrlhf.node import build_directory


def said(capsys, *arguments: str) -> str:
    """What `dara` says when it ends with a sentence."""
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    assert end.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("number", SENTENCES)
def test_an_error_says_what_where_and_what_to_do(number):
    what, remedy = SENTENCES[number]
    error = OSError(number, os.strerror(number), "a/file")
    assert sentence(error) == "; ".join(filter(None, [f"a/file: {what}", remedy]))
    assert "\n" not in sentence(error)


def test_other_errors_keep_their_own_words(tmp_path):
    assert sentence(OSError(errno.EPIPE, os.strerror(errno.EPIPE), "a")) == "a: broken pipe"
    assert sentence(OSError(errno.ENOLCK, "the file system has no locks", "a")) == "a: the file system has no locks"
    assert sentence(OSError("a host does not answer")) == "a host does not answer"
    assert sentence(KeyError("a mistake of ours"), [tmp_path]) is None
    assert sentence(RuntimeError("a mistake of ours"), [tmp_path]) is None


def test_a_write_that_fails_names_the_disk_that_is_full(capsys):
    """Python does not say which file it was writing to."""
    assert said(capsys, "config-docs", "--out", "/dev/full").startswith(
        "dara: /dev: the disk is full; make room (`dara clean"
    )


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),  # safetensors
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 5120 vs 5012"),  # torch.save
    ],
)
def test_libraries_have_errors_of_their_own_for_a_full_disk(tmp_path, monkeypatch, error):
    usage = {tmp_path: 10**9, tmp_path / "full": 4096}
    (tmp_path / "full").mkdir()
    monkeypatch.setattr(system.shutil, "disk_usage", lambda path: type("Usage", (), {"free": usage[path]}))
    assert sentence(error, [tmp_path, tmp_path / "full/run/step_3"]).startswith(f"{tmp_path}/full: the disk is full; ")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a" * 256, "the name is longer than the file system allows"),
        ("file/keys.md", "a part of this path is a file"),
        ("absent/keys.md", "there is no such file or directory"),
        ("directory", "it is a directory"),
        ("loop", "its links lead in a circle"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path, capsys, name, what):
    (tmp_path / "file").write_text("x")
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    assert f"dara: {tmp_path / name}: {what}" in said(capsys, "config-docs", "--out", tmp_path / name)


def test_a_mistake_of_ours_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr("dara.config.keys_page", lambda: {}["absent"])
    with pytest.raises(KeyError):
        main(["config-docs", "--out", str(tmp_path / "keys.md")])


def test_a_workflow_says_the_same_before_any_job(capsys):
    with pytest.raises(SystemExit), user_errors():
        Path("/dev/full").write_text("x")
    assert capsys.readouterr().err.startswith("the disk is full; make room")


# --- what only root can try -------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """A function that mounts a small file system, with options of mount."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    place = tmp_path / "disk"

    def mount(options: str) -> Path:
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this machine mounts nothing: {done.stderr.strip()}")
        return place

    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", place], check=True)


def test_a_full_disk(disk, tmp_path, capsys):
    place = disk("size=16k")
    spec = {"source": "laptop_tools", "version": 1, "seed": 1, "train_rows": 64, "held_out_rows": 8}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert f"dara: {place}" in said(capsys, "prepare", tmp_path / "spec.json", "--out", place / "data")
    assert not (place / "data/manifest.json").exists()


def test_a_read_only_disk(disk):
    place = disk("ro")
    for directory in (place, place / "results"):
        with pytest.raises(OSError, match=str(place)) as error:
            make_writable(directory)
        assert "the file system is read-only; make it writable" in sentence(error.value)


# --- users without a name ---------------------------------------------------------------------------------------------


@pytest.fixture
def nobody(monkeypatch):
    """This process as a user whom the system does not know."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])


def test_a_user_whom_the_system_does_not_know_has_a_name(nobody):
    with pytest.raises((KeyError, OSError)):
        getpass.getuser()
    name_user()
    assert getpass.getuser() == f"user-{os.getuid()}"


def test_a_user_with_a_name_keeps_it(monkeypatch):
    monkeypatch.setenv("LOGNAME", "me")
    name_user()
    assert getpass.getuser() == "me"


def test_a_user_without_a_home_is_told_to_set_it(nobody):
    with pytest.raises(ValueError, match="no home directory, where DeepSpeed's extensions are built; set HOME"):
        build_directory()


def test_a_directory_of_another_user():
    """As user 12345, who may read everything here and write nothing."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    user = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    command = [*user, *reading, sys.executable, "-m", "dara", "config-docs", "--out", "/root/keys.md"]
    here = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(system.__file__).parents[1])}
    done = subprocess.run(command, env=here, capture_output=True, text=True)
    if "setpriv" in done.stderr:
        pytest.skip(f"this machine changes no user: {done.stderr.strip()}")
    assert done.stderr.startswith("dara: /root/keys.md: this user has no access to it; change its owner or its mode")
    assert done.returncode == 1
