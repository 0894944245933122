"""Tests in a clone that was used: nothing that workflows and people left there changes one, and none changes it."""

import os
import re
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
PRESETS = ("laptop", "paper", "smoke")
LEFT = [
    *(f"clone/results/{name}/configuration.json" for name in ("laptop", "laptop-study", "mine", "paper", "smoke")),
    *("clone/results/laptop/data/runs.csv", "clone/results/published/tables/runs.md", "clone/results/published/data/my.csv"),
    *(f"clone/results/cached/math-mine/{name}" for name in ("spec.json", "manifest.json", "metrics.jsonl.gz")),
    *(f"clone/.snakemake/{name}" for name in ("workflow/lock", "locks/0.output.lock", "metadata/cmVzdWx0cw==")),
    *("clone/config/presets/broken.yaml", "clone/config/experiments/broken.yaml"),
    "clone/logs/slurm/rule_train/x/1.log",
    *("home/git/config", "home/matplotlib/matplotlibrc", "home/snakemake/slurm/config.yaml"),
]  # fmt: skip
"""Files that workflows and people leave. Each is no text, so what reads one fails."""
OF_RUNS = ("metrics.jsonl", "manifest.json", "spec.json", "starts.json", "owners.json", "lock", "train.log")
OWN_METHOD = 'used: {function: "used.py:contributions", label: Used, color: "#040302"}\n'
SETTINGS = {
    **{"SNAKEMAKE_PROFILE": "nowhere", "GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere", "DARA_WORKFLOW": "x/1/1"},
    **{"HF_HOME": "/dev/null", "HF_HUB_OFFLINE": "1", "http_proxy": "http://127.0.0.1:9", "PYTHONPATH": "workflow"},
}
SELECTION = [f"tests/test_{name}.py" for name in ("config", "plan", "system", "published", "status")]
SELECTION += ["tests/test_hub.py", "tests/test_training_run_files.py::test_a_git_that_refuses_is_no_missing_commit"]
SELECTION += ["--deselect=tests/test_system.py::test_a_directory_of_another_user"]  # may not read a clone of a test
SELECTION += ["tests/test_profiles.py::test_both_literal_commands_plan_the_smoke_preset_without_a_gpu[--profile]"]


@pytest.fixture
def used(tmp_path, git) -> Path:
    """A clone with results of every preset, scratch on another disk, presets, a method and odd files of its user's."""
    clone = shutil.copytree(ROOT, tmp_path / "clone", symlinks=True)
    git(clone, "init", "-q")
    git(clone, "add", ".")
    (tmp_path / "disk").mkdir()
    (clone / ".scratch").symlink_to(tmp_path / "disk")
    plans = {name: plan_runs(load_preset(ROOT, ROOT / f"config/presets/{name}.yaml")) for name in PRESETS}
    runs = [(preset, run) for preset, plan in plans.items() for run in plan.runs]
    folders = [folder for preset, run in runs for folder in (f"clone/results/{preset}/runs/{run}", f"disk/{run}")]
    left = [*LEFT, *(f"{folder}/{file}" for folder in folders for file in OF_RUNS)]
    for model in plans["paper"].models.values():
        left.append(f"disk/hub/models/{model.hub.replace('/', '--')}/{model.revision}/config.json")
    for name in left:
        write(tmp_path / name, NO_TEXT)
    write(clone / "config/presets/mine.yaml", b"preset: mine\nextends: laptop\n")
    write(clone / "config/used.py", b"def contributions(batch):\n    return batch.z\n")
    with (clone / "config/methods.yaml").open("a") as methods:
        methods.write(OWN_METHOD)
    (clone / "config/presets/gone.yaml").symlink_to("nowhere")
    for name in ("config/presets/pipe.yaml", "results/published/data/pipe.csv", ".scratch/pipe"):
        os.mkfifo(clone / name)  # what reads one waits for ever
    return clone


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
    options = f"-x -m 'not slow' -p no:cacheprovider --basetemp={tmp_path_factory.mktemp('inner') / 'tmp'}"
    settings = {"XDG_CONFIG_HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": options}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *SELECTION], cwd=used, env=os.environ | SETTINGS | settings, timeout=1800,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    after = everything(tmp_path)
    assert [path for path in before | after if before.get(path) != after.get(path)] == []


COPIED = {"Snakefile", "config/presets/smoke.yaml", "results/cached/x", "slurm", "workflow/dara/a b.py"}
COPIED |= {"workflow/dara/new.py"}


@pytest.fixture
def small(tmp_path, git) -> Path:
    """A clone of a few committed files, with others that are not committed."""
    clone = tmp_path / "small"
    for name in ("Snakefile", "config/config.yaml", *COPIED - {"slurm", "workflow/dara/new.py"}):
        write(clone / name, b"committed")
    (clone / "slurm").symlink_to("config")
    write(clone / ".gitignore", b"__pycache__/\n")
    git(clone, "init", "-q")
    git(clone, "add", ".")
    for name in ("config/presets/mine.yaml", "results/cached/y", "results/laptop/x", ".scratch/x", "notes"):
        write(clone / name)
    for name in ("workflow/dara/new.py", "workflow/dara/__pycache__/a.pyc", "Snakefile"):
        write(clone / name, b"edited")
    os.mkfifo(clone / "workflow/dara/pipe")
    (clone / "config/config.yaml").unlink()
    return clone


@pytest.mark.parametrize("answers", ["git", "no git", "an archive", "damaged"])
def test_the_copy_has_what_is_committed_and_new_code_as_they_are_now(small, tmp_path, monkeypatch, answers):
    """Without git, all that is where sources are."""
    if answers == "no git":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif answers == "damaged":
        (small / ".git/HEAD").unlink()
    elif answers == "an archive":
        shutil.rmtree(small / ".git")
    copy = copy_project(small, tmp_path / "copy")
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_symlink() or path.is_file()}
    others = {".gitignore"} if answers == "git" else {"config/presets/mine.yaml", "results/cached/y"}
    assert copied == COPIED | others
    assert (copy / "Snakefile").read_text() == "edited"
    assert (copy / "slurm").readlink() == Path("config")


def test_no_test_finds_the_clone_by_itself():
    """Its root is `project.ROOT`. What conftest.py and project.py find is the clone that they make others independent of."""
    mine = re.compile(r"\(__file__\)(\.resolve\(\))?\.(parents\[1\]|parent\.parent)")
    found = {path.name for path in Path(__file__).parent.glob("*.py") if mine.search(path.read_text(encoding="utf-8"))}
    assert found == {"conftest.py", "project.py"}
