"""The project as tests see it: a copy of what is committed and of all code, so that a used clone is like a fresh one.

A clone also holds results, scratch, Snakemake's state and presets of its user's. No test reads or writes them: the root
of the project is `ROOT`, for whatever a test does there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CLONE = Path(__file__).parents[1]
CODE = ("workflow", "tests", "*.py")
"""What counts before it is committed: code, that of a method in config/methods.yaml too. Other files may be the user's."""
SOURCES = (
    *("Makefile", "README.md", "Snakefile", "pyproject.toml", "config", "docs", "envs", "profiles", "slurm", "tests"),
    *("workflow", "results/cached", "results/published/data"),
)
"""Where git does not answer (it is absent, or this is an archive), everything in here is the project's."""


def project_files(clone: Path) -> list[str]:
    """Paths, relative to `clone`, of the committed files and of new code."""
    # Told where .git is, git looks nowhere else, and answers in a clone that is another user's.
    git = ["git", f"--git-dir={clone}/.git", "-C", str(clone), "ls-files", "-z"]
    asked = (["--cached"], ["--others", "--exclude-standard", "--", *CODE])
    answers = (clone / ".git").exists() and shutil.which("git") is not None
    listed = [subprocess.run([*git, *which], stdout=subprocess.PIPE) for which in asked if answers]
    if listed and not any(done.returncode for done in listed):
        names = b"".join(done.stdout for done in listed).split(b"\0")
        return list(dict.fromkeys(os.fsdecode(name) for name in names if name))
    found = [path for name in SOURCES for path in (clone / name, *(clone / name).rglob("*"))]
    return [str(path.relative_to(clone)) for path in found if "__pycache__" not in path.parts]


def copy_project(clone: Path, to: Path) -> Path:
    """Copy the project's files as they are in `clone` now; what is neither a file nor a link is not one of them."""
    for name in project_files(clone):
        source, target = clone / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            shutil.copy(source, target)
        elif source.is_symlink():
            target.symlink_to(source.readlink())
    return to


_directory = tempfile.TemporaryDirectory(prefix="dara-project-")  # goes with this process
ROOT = copy_project(CLONE, Path(_directory.name))


def planned(preset: str, root: Path = ROOT, **changes):
    """The plan of a preset with other values on top, as `--config` gives them."""
    from dara.loading import merge, read_yaml
    from dara.plan import WorkflowPlan

    files = [root / "config/config.yaml", root / f"config/presets/{preset}.yaml"]
    return WorkflowPlan.load(root, merge(merge(read_yaml(files[0]), read_yaml(files[1])), changes), files[1:])


def environment() -> dict[str, str]:
    """Variables of a process that a user starts: its code is that of its clone."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def snakemake(directory: Path, *arguments: str, python: str | Path = sys.executable, **variables: str):
    """Run Snakemake in a directory; its output and errors are in `stdout`."""
    return subprocess.run(
        [python, "-m", "snakemake", *arguments],
        cwd=directory,
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def counts(output: str) -> dict[str, int]:
    """Jobs of each rule, from the table that a dry run prints."""
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
