"""The pinned environments and the script that makes them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from project import ROOT

ENVS = ROOT / "envs"


@pytest.mark.parametrize("file", sorted(ENVS.glob("*.txt")), ids=lambda path: path.name)
def test_every_requirement_is_pinned_and_names_no_index(file):
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._\[\]-]+==[A-Za-z0-9.+!]+( *;.*)?", line)] == []


def create(requirements: Path, target: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [ENVS / "create", sys.executable, requirements, target, "--no-index"],
        env=os.environ | {"PATH": "/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
    )


def test_what_is_compiled_asks_for_its_compiler_before_anything_is_installed(tmp_path):
    (tmp_path / "cuda.txt").write_text("# compiled: flash-attn==2.8.3\n")
    made = create(tmp_path / "cuda.txt", tmp_path / "venv", CUDA_HOME=str(tmp_path / "nowhere"))
    assert made.returncode == 1
    assert "compiles flash-attn==2.8.3, which needs nvcc: load your CUDA module, or set CUDA_HOME" in made.stderr
    assert not (tmp_path / "venv").exists()


def test_an_environment_is_kept_under_the_hash_of_its_file(tmp_path):
    (tmp_path / "small.txt").write_text("# nothing\n")
    kept = {"DARA_ENVIRONMENTS": str(tmp_path / "kept")}
    assert create(tmp_path / "small.txt", tmp_path / "venv", **kept).returncode == 0
    (environment,) = (tmp_path / "kept").iterdir()
    assert (tmp_path / "venv").resolve() == environment
    assert re.fullmatch("small-[0-9a-f]{12}", environment.name)
    (environment / "mark").touch()
    assert create(tmp_path / "small.txt", tmp_path / "other", **kept).returncode == 0
    assert (tmp_path / "other" / "mark").is_file(), "not made again"
