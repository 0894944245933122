"""Files that are read back: a damaged one is named. A git that refuses, fails or hangs is not git that is absent."""

import os

import pytest

from dara import files
from dara.files import GitError, commit, gunzip, gzipped, read_json, read_text, tracked


def outcome(path, content: bytes) -> str:
    try:
        return "as it was" if gunzip(path) == content else "other content"
    except ValueError as error:
        return str(error).partition(" (")[0]


def test_a_damaged_gzip_file_is_an_error_that_names_it(tmp_path):
    path, content = tmp_path / "a.jsonl.gz", b'{"a": 1}\n' * 50
    whole = gzipped(content)
    path.write_bytes(whole)
    assert gunzip(path) == content
    messages = set()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        messages.add(outcome(path, content))
    assert messages <= {"as it was", f"{path} is damaged: not a complete gzip file"}, "or an error without the name"
    assert len(messages) == 2
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz is damaged"):
        read_text(tmp_path / "a.jsonl")


@pytest.mark.parametrize("content", [b'{"a": ', b"\xff", b""])
def test_a_damaged_json_file_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is damaged: it is no JSON \(.*\); delete it to have it made again"):
        read_json(tmp_path / "a.json")


@pytest.fixture
def repository(tmp_path, git):
    """A checkout with a file that is kept and one that is not."""
    top = tmp_path / "clone"
    top.mkdir()
    git(top, "init", "-q")
    (top / "kept.csv").write_text("a")
    (top / "other.csv").write_text("a")
    git(top, "add", "kept.csv")
    return top


def test_what_git_answers(repository, tmp_path, git):
    assert (commit(tmp_path), tracked(tmp_path)) == (None, []), "no repository"
    assert (commit(repository), tracked(repository)) == (None, ["kept.csv"]), "no commit yet"
    git(repository, "commit", "-q", "-m", "first")
    assert len(commit(repository)) == 40
    (repository / "results").mkdir()
    assert tracked(repository / "results") == []
    assert commit(repository / "results") == commit(repository)
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
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(files, "GIT_SECONDS", 0.2 if "tail" in script else 60.0)
    for question in (commit, tracked):
        with pytest.raises(GitError) as error:
            question(repository)
        place = f"{repository}, which is in the repository {repository}"
        assert str(error.value) == f"git says nothing about {place}: {why}"
    assert tracked(tmp_path) == [], "where no repository is, git is not asked"


def test_git_that_is_not_installed_matters_only_in_a_repository(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (commit(tmp_path), tracked(tmp_path)) == (None, [])
    with pytest.raises(GitError, match="it is not installed"):
        tracked(repository)


@pytest.mark.parametrize("damage", ["HEAD", "objects"])
def test_a_damaged_repository_is_not_passed_over_for_one_further_up(repository, tmp_path, git, damage):
    git(tmp_path, "init", "-q")
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
