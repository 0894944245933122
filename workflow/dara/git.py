"""What git says about files here. A git that does not answer is not git that is absent."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SECONDS = 60.0


class GitError(ValueError):
    """A repository is there and git says nothing about it; the message has git's reason."""


def commit(directory: Path) -> str | None:
    """Commit of the checkout that holds `directory`; None without a checkout or without a commit. GitError."""
    said = _ask(directory, "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno", "--ignore-submodules")
    if said is None:
        return None
    oid = next(line.split()[-1] for line in said.splitlines() if line.startswith("# branch.oid"))
    return None if oid == "(initial)" else oid


def tracked(directory: Path, name: str = ".") -> list[str]:
    """What of `name` in `directory` is kept in git, relative to `directory`; nothing without a checkout. GitError."""
    return (_ask(directory, "ls-files", "-z", "--", name) or "").split("\0")[:-1]


def _ask(directory: Path, *question: str) -> str | None:
    """What git answers; None where no repository holds `directory`. GitError where one does, and git fails."""
    here = directory.resolve()
    top = next((place for place in (here, *here.parents) if os.path.lexists(place / ".git")), None)
    if top is None and "GIT_DIR" not in os.environ:
        return None
    # A damaged repository must not be passed over for one further up, which has none of its files.
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
