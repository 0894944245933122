"""A git that refuses, fails or hangs is not git that is absent."""

import os
import subprocess

import pytest

from dara import files
from dara.files import GitError, commit, tracked


def run_git(directory, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(directory), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """A checkout with a file that is kept and one that is not."""
    top = tmp_path / "clone"
    top.mkdir()
    run_git(top, "init", "-q")
    (top / "kept.csv").write_text("a")
    (top / "other.csv").write_text("a")
    run_git(top, "add", "kept.csv")
    return top


def fake_git(tmp_path, monkeypatch, script: str) -> None:
    """The git of this machine for the rest of the test: a shell script."""
    path = tmp_path / "bin/git"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


def test_what_git_answers(repository, tmp_path):
    assert (commit(tmp_path), tracked(tmp_path)) == (None, []), "no repository"
    assert (commit(repository), tracked(repository)) == (None, ["kept.csv"]), "no commit yet"
    run_git(repository, "commit", "-q", "-m", "first")
    assert len(commit(repository)) == 40
    (repository / "results").mkdir()
    assert tracked(repository / "results") == []
    assert commit(repository / "results") == commit(repository)


def test_a_linked_directory_is_asked_about_where_it_is(repository, tmp_path):
    (tmp_path / "link").symlink_to(repository)
    assert tracked(tmp_path / "link") == ["kept.csv"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo fatal: detected dubious ownership in repository >&2\necho To add an exception >&2; exit 128", "fatal: detected dubious ownership in repository To add an exception"),
        ("exit 1", "it ended with status 1"),
        ("kill -SEGV $$", "it ended with status -11"),
        ("exec tail -f /dev/null", "it did not answer within 0.2 seconds"),
    ],
)  # fmt: skip
def test_git_that_fails_is_an_error_with_its_reason(repository, tmp_path, monkeypatch, script, why):
    fake_git(tmp_path, monkeypatch, script)
    monkeypatch.setattr(files, "GIT_SECONDS", 0.2 if "tail" in script else 60.0)
    for question in (commit, tracked):
        with pytest.raises(GitError) as error:
            question(repository)
        assert (
            str(error.value) == f"git says nothing about {repository}, which is in the repository {repository}: {why}"
        )
    assert tracked(tmp_path) == [], "where no repository is, git is not asked"


def test_git_that_is_not_installed_matters_only_in_a_repository(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (commit(tmp_path), tracked(tmp_path)) == (None, [])
    with pytest.raises(GitError, match="it is not installed"):
        tracked(repository)


@pytest.mark.parametrize("damage", ["HEAD", "objects"])
def test_a_damaged_repository_is_not_passed_over_for_one_further_up(repository, tmp_path, damage):
    run_git(tmp_path, "init", "-q")
    (repository / ".git" / damage).rename(tmp_path / "taken away")
    with pytest.raises(GitError, match="not a git repository"):
        tracked(repository)


def test_an_owner_whom_git_does_not_trust(repository, monkeypatch, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    monkeypatch.setenv("HOME", str(tmp_path))  # no safe.directory
    for directory, _, _ in os.walk(repository):
        os.chown(directory, 12345, 12345)
    with pytest.raises(GitError, match=r"dubious ownership.*safe\.directory"):
        tracked(repository)
