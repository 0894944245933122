"""Options of the test suite, and surroundings in which nothing is the user's."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[1]
REAL_ROWS = CLONE.parent / "shared" / "data"
OF_THE_USER = re.compile("DARA_|GIT_|HF_|HUGGING|MATPLOTLIB|MPL|SLURM_|SNAKEMAKE_|TRANSFORMERS_|WANDB_")
"""How variables begin that settings of the user's are in: of this project, and of what it calls."""


def pytest_configure(config):
    """Settings, caches and profiles of the user's are gone before a test module is imported."""
    for name in filter(OF_THE_USER.match, [*os.environ]):
        del os.environ[name]
    home = tempfile.TemporaryDirectory(prefix="dara-home-")
    config.add_cleanup(home.cleanup)
    empty = {name: f"{home.name}/{name}" for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "HF_HOME")}
    git = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    # Where Slurm is installed but does not run, its executor would wait ten seconds for it whenever Snakemake starts.
    slurm = {"SLURM_CONF": os.devnull}
    # Servers of tests are on this machine. Processes that tests start have this package, wherever they are.
    os.environ.update(empty | git | slurm | {"no_proxy": "*", "NO_PROXY": "*", "PYTHONPATH": str(CLONE / "workflow")})


@pytest.fixture(scope="session", autouse=True)
def _outside_of_the_clone(tmp_path_factory):
    """Relative paths, such as results/ and .scratch, are not those of the clone."""
    with contextlib.chdir(tmp_path_factory.mktemp("working_directory")):
        yield


@pytest.fixture
def git():
    """A function that runs git in a directory; the test skips where there is none."""
    if shutil.which("git") is None:
        pytest.skip("git is not here")
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    return lambda directory, *words: subprocess.run(["git", "-C", str(directory), *identity, *words], check=True)


def pytest_addoption(parser):
    parser.addoption(
        "--require-real-rows",
        action="store_true",
        help="fail where rows of the real data sets (../shared/data) are absent, instead of skipping",
    )
    parser.addoption(
        "--require-slurm", action="store_true", help="fail where no Slurm can be started, instead of skipping"
    )


@pytest.fixture
def real_rows(request):
    """A function that reads rows of a real data set, kept outside the repository; the test skips where they are not."""

    def read(name: str) -> list[dict]:
        path = REAL_ROWS / name
        if not path.exists():
            reason = f"the real rows are not here: ../shared/data/{name}"
            (pytest.fail if request.config.getoption("--require-real-rows") else pytest.skip)(reason)
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return read
