"""Tests in a clone that was used: nothing that workflows and people left there changes one, and none changes it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dara.loading import load_preset
from dara.runs import plan_runs
from project import ROOT, copy_project

NO_TEXT = b"{\xff: ["
LEFT = [
    *(f"results/{name}/configuration.json" for name in ("laptop", "laptop-study", "mine", "paper", "smoke")),
    *("results/laptop/data/runs.csv", "results/published/tables/runs.md", "results/published/data/mine.csv"),
    *(
        "results/cached/math-mine/spec.json",
        "results/cached/math-mine/metrics.jsonl.gz",
        "logs/slurm/rule_train/x/1.log",
    ),
    *(".snakemake/workflow/lock", ".snakemake/locks/0.output.lock", ".snakemake/metadata/cmVzdWx0cw=="),
    *("config/presets/broken.yaml", "config/experiments/broken.yaml", "profiles/default/config.yaml", "matplotlibrc"),
]
"""Files of a used clone. Each is no text, and so what reads one fails."""
OF_RUNS = ("metrics.jsonl", "manifest.json", "spec.json", "starts.json", "owners.json", "lock", "train.log")
OWN_METHOD = 'my_method: {function: "my_methods.py:contributions", label: Mine, color: "#8c564b"}\n'
SETTINGS = {
    **{"SNAKEMAKE_PROFILE": "nowhere", "GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere", "DARA_WORKFLOW": "x/1/1"},
    **{"HF_HOME": "/dev/null", "HF_HUB_OFFLINE": "1", "http_proxy": "http://127.0.0.1:9", "PYTHONPATH": "workflow"},
}
SELECTION = ("cache", "config", "dag", "outputs", "parent", "planning", "published", "status", "training_divergence")


@pytest.fixture
def used(tmp_path) -> Path:
    """A clone with results of every preset, scratch on another disk, presets, a method and odd files of its user's."""
    clone = shutil.copytree(ROOT, tmp_path / "clone", symlinks=True)
    commit_all(clone)
    (tmp_path / "disk").mkdir()
    (clone / ".scratch").symlink_to(tmp_path / "disk")
    presets = [load_preset(ROOT, ROOT / f"config/presets/{name}.yaml") for name in ("laptop", "smoke", "paper")]
    runs = [(configuration.preset.preset, run) for configuration in presets for run in plan_runs(configuration).runs]
    folders = [folder for preset, run in runs for folder in (f"results/{preset}/runs/{run}", f".scratch/{run}")]
    for name in [*LEFT, *(f"{folder}/{file}" for folder in folders for file in OF_RUNS)]:
        write(clone / name, NO_TEXT)
    write(clone / "config/presets/mine.yaml", b"preset: mine\nextends: laptop\n")
    write(clone / "config/my_methods.py", b"def contributions(batch):\n    return batch.z\n")
    with (clone / "config/methods.yaml").open("a") as methods:
        methods.write(OWN_METHOD)
    (clone / "config/presets/gone.yaml").symlink_to("nowhere")
    for name in ("config/presets/pipe.yaml", "results/published/data/pipe.csv", ".scratch/pipe"):
        os.mkfifo(clone / name)  # what reads one waits for ever
    return clone


def commit_all(clone: Path) -> None:
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-c", "core.compression=0", *command], cwd=clone, check=True)


def write(path: Path, content: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def everything(directory: Path) -> dict[Path, tuple]:
    """What is where, and since when."""
    found = {path: path.lstat() for path in directory.rglob("*")}
    return {
        path: (status.st_mode, status.st_mtime_ns, stat.S_ISREG(status.st_mode) and path.read_bytes())
        for path, status in found.items()
    }


@pytest.mark.slow
def test_tests_pass_in_a_used_clone_and_leave_it_as_it_is(used, tmp_path, tmp_path_factory):
    before = everything(tmp_path)
    inner = [
        "-m",
        "pytest",
        "-x",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(tmp_path_factory.mktemp("inner") / "tmp"),
    ]
    done = subprocess.run(
        [sys.executable, *inner, *(f"tests/test_{name}.py" for name in SELECTION)],
        cwd=used, env=os.environ | SETTINGS | {"PYTHONDONTWRITEBYTECODE": "1"}, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    after = everything(tmp_path)
    assert [path for path in before | after if before.get(path) != after.get(path)] == []


@pytest.fixture
def small(tmp_path) -> Path:
    """A clone of a few committed files, with others that are not committed."""
    clone = tmp_path / "small"
    for name in (
        "Snakefile",
        "config/config.yaml",
        "config/presets/smoke.yaml",
        "workflow/dara/a b.py",
        "results/cached/x",
    ):
        write(clone / name, b"committed")
    (clone / "slurm").symlink_to("config")
    write(clone / ".gitignore", b"__pycache__/\n")
    commit_all(clone)
    for name in ("config/presets/mine.yaml", "results/cached/y", "results/laptop/x", ".scratch/x", "notes"):
        write(clone / name)
    for name in ("workflow/dara/new.py", "workflow/dara/__pycache__/a.pyc", "Snakefile"):
        write(clone / name, b"edited")
    os.mkfifo(clone / "workflow/dara/pipe")
    (clone / "config/config.yaml").unlink()
    return clone


COPIED = {"Snakefile", "config/presets/smoke.yaml", "results/cached/x", "slurm"}
COPIED |= {"workflow/dara/a b.py", "workflow/dara/new.py"}


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_symlink() or path.is_file()}


def test_the_copy_has_what_is_committed_and_new_code_as_they_are_now(small, tmp_path):
    copy = copy_project(small, tmp_path / "copy")
    assert names(copy) == COPIED | {".gitignore"}
    assert (copy / "Snakefile").read_text() == "edited"
    assert (copy / "slurm").readlink() == Path("config")


@pytest.mark.parametrize("git", ["absent", "an archive", "damaged"])
def test_without_git_the_copy_has_all_that_is_where_sources_are(small, tmp_path, monkeypatch, git):
    if git == "absent":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif git == "damaged":
        (small / ".git/HEAD").unlink()
    else:
        shutil.rmtree(small / ".git")
    copy = copy_project(small, tmp_path / "copy")
    assert names(copy) == COPIED | {"config/presets/mine.yaml", "results/cached/y"}
