"""Drawing jobs: each is a process of its own, so it must not import what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dara.analysis.figures import FIGURES, describe
from dara.table_options import SIDE_BY_SIDE, TABLES
from project import ROOT

HEAVY = ("torch", "transformers", "scipy.stats", "scipy.special", "matplotlib", "matplotlib.pyplot")


def imported(directory: Path, kind: str, output: str) -> set[str]:
    """Which of HEAVY a process has that draws a published table or figure."""
    code = (
        "import json, sys; from dara.cli import main; "
        f"main(['--root', {str(ROOT)!r}, {kind!r}, {output!r}, {str(directory)!r}]); "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("kind", "output", "needed"),
    [("table", "tool_step60", set()), ("figure", "heldout", {"matplotlib"})],
)
def test_a_job_imports_what_it_needs(kind, output, needed, tmp_path):
    (tmp_path / "data").symlink_to(ROOT / "results/published/data")
    assert imported(tmp_path, kind, output) == needed
    assert (tmp_path / f"{kind}s" / f"{output}.{'md' if kind == 'table' else 'svg'}").stat().st_size > 1000


def test_every_listed_table_and_figure_is_a_function():
    assert all(describe(name) for name in FIGURES)
    for known in (TABLES, SIDE_BY_SIDE):
        for module, _, function in (target.partition(":") for target in known.values()):
            assert callable(getattr(import_module(f"dara.analysis.tables.{module}"), function))
