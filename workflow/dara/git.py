"""Queries of git about files here. A git error is never taken for the absence of a repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SECONDS = 60.0


class GitError(ValueError):
    """A repository exists but git cannot answer; the message has git's reason."""


def commit(directory: Path) -> str | None:
    """Return the commit of the checkout with `directory`; None without checkout or commit. Raises GitError."""
    said = _ask(directory, "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno", "--ignore-submodules")
    if said is None:
        return None
    oid = next(line.split()[-1] for line in said.splitlines() if line.startswith("# branch.oid"))
    return None if oid == "(initial)" else oid


def tracked(directory: Path, name: str = ".") -> list[str]:
    """Return the tracked files of `name`, relative to `directory`; empty without a checkout. Raises GitError."""
    return (_ask(directory, "ls-files", "-z", "--", name) or "").split("\0")[:-1]


def _ask(directory: Path, *question: str) -> str | None:
    """Return git's answer; None if no repository holds `directory`. Raises GitError if one does and git fails."""
    here = directory.resolve()
    top = next((place for place in (here, *here.parents) if os.path.lexists(place / ".git")), None)
    if top is None and "GIT_DIR" not in os.environ:
        return None
    # A damaged repository must not be skipped in favour of one further up, which has none of its files.
    environment = os.environ | ({"GIT_CEILING_DIRECTORIES": str(top.parent)} if top else {})
    command = ["git", "-C", str(here), *question]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        why = "it is not installed"
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {SECONDS:g} seconds"
    except OSError as error:
        why = f"it does not start: {error.strerror}"
    else:
        if done.returncode == 0:
            return done.stdout.decode("utf-8", errors="replace")
        said = " ".join(done.stderr.decode("utf-8", errors="replace").split())
        why = said or f"it ended with status {done.returncode}"
    raise GitError(f"git says nothing about {directory}, which is in the repository {top or here}: {why}")
