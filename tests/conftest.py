"""Options of the test suite."""

import json
from pathlib import Path

import pytest

REAL_ROWS = Path(__file__).parents[1].parent / "shared" / "data"


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
