"""The whole workflow, for real, on the smoke preset in a copy of the repository: it trains, evaluates, compares and draws."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pandas as pd
import pytest

from dara.cli import main
from dara.loading import read_yaml
from dara.store import directory_lock
from project import ROOT, counts, environment, planned, snakemake

SMOKE = ["--profile", "profiles/local", "--configfile", "config/presets/smoke.yaml"]
ODD = """it's $HOME; #1 & "2"%"""
"""Spaces, quotes and what a shell has a meaning for: in every path of the smoke runs."""
RESULTS, SCRATCH = f"results {ODD}/smoke", f"scratch {ODD}"
pytestmark = pytest.mark.slow


def copy_repository(to: Path, *but: str) -> Path:
    """The files that a clone would have but those of these names, with new code that is not committed yet."""
    return shutil.copytree(ROOT, to, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*but))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def change_preset(clone: Path, **tool_settings) -> None:
    """Give the smoke preset odd directories; with settings of the tool task, it has this task and one method alone."""
    preset = read_yaml(clone / "config/presets/smoke.yaml")
    preset |= {"results": f"results {ODD.replace('$', '$$')}", "scratch": f"scratch {ODD.replace('$', '$$')}"}
    if tool_settings:
        del preset["experiments"]["math_main"], preset["tasks"]["math"]
        preset["experiments"]["tool_main"]["methods"] = ["gdpo"]
        preset["tasks"]["tool_calling"] |= tool_settings
    (clone / "config/presets/smoke.yaml").write_text(json.dumps(preset))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """A copy of the repository in which the smoke preset has run from nothing, whatever its paths are called."""
    clone = copy_repository(tmp_path_factory.mktemp("smoke") / f"clone {ODD}", "cached")
    change_preset(clone)
    before = {path.name for path in clone.iterdir()}
    done = snakemake(clone, *SMOKE, "--", "all", "html")
    assert done.returncode == 0, done.stdout[-8000:]
    assert {path.name for path in clone.iterdir()} - before == {".snakemake", Path(RESULTS).parent.name, SCRATCH}
    return clone


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Path:
    return copy_repository(tmp_path_factory.mktemp("fresh"))


def metrics_of(clone: Path) -> dict[str, list[dict]]:
    return {
        path.parent.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((clone / RESULTS / "runs").glob("*/metrics.jsonl"))
    }


def test_every_run_is_trained_evaluated_and_drawn(smoke):
    """Both rewards vary at the start, so that the models learn and the two methods are two trainings."""
    by_task: dict[str, list[list[dict]]] = {"tool_calling": [], "math": []}
    for run, rows in metrics_of(smoke).items():
        by_task[run.split("-")[0]].append(rows)
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert all(any(row[name] > 0 for row in rows) for name in rows[0] if name.startswith("density/"))
        assert all(row["grad_norm"] > 0 for row in rows)
        manifest = json.loads((smoke / RESULTS / f"runs/{run}/manifest.json").read_text())
        assert manifest["outcome"] == "completed"
        weights = {step: entry["sha256"]["model.safetensors"] for step, entry in manifest["checkpoints"].items()}
        assert weights.keys() == {"3", "6"}
        assert weights["3"] != weights["6"]
        [scores] = (smoke / RESULTS / f"scores/{run}").glob("*/scores.csv.gz")
        assert set(pd.read_csv(scores)["step"]) == {3, 6}
    for first, second in by_task.values():
        assert first != second
    assert len(list((smoke / RESULTS / "scores").glob("base-*/*/scores.csv.gz"))) == 2
    for task in ("", "math_"):
        for name in ("learning", "crossing", "energy", "checkpoints"):
            for form in ("png", "svg"):
                assert (smoke / RESULTS / f"figures/{task}{name}.{form}").stat().st_size > 5000
        for name in ("crossings", "final_scores", "runs"):
            table = (smoke / RESULTS / f"tables/{task}{name}.md").read_text()
            assert "DARA-Sym" in table
            assert "GDPO" in table


def test_a_second_time_there_is_nothing_to_do(smoke):
    again = snakemake(smoke, *SMOKE, "--", "all", "html")
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout


def test_our_report_opens_offline(smoke):
    page = (smoke / RESULTS / "report.html").read_text(encoding="utf-8")
    assert "not tested" in page  # one seed tests no claim
    assert "data:image/png;base64," in page or "<svg" in page
    assert 'src="http' not in page


def test_one_figure_is_one_job_and_trains_nothing(fresh):
    """Ours of the cached runs needs their frames, and a published one needs nothing."""
    targets = [f"results/{name}/figures/learning.png" for name in ("laptop", "published")]
    done = snakemake(fresh, "-n", "--profile", "profiles/local", "--config", "reuse=only", "--", *targets)
    assert done.returncode == 0, done.stdout[-4000:]
    drawn = {"figures_learning_curves": 1, "published_figures_learning_curves": 1}
    assert counts(done.stdout) == {"configuration": 1, "frames": 1, **drawn, "total": 4}


def test_the_report_has_every_figure_and_table(smoke):
    done = snakemake(smoke, *SMOKE, "--report", "report.html")
    assert done.returncode == 0, done.stdout[-4000:]
    html = (smoke / "report.html").read_text(encoding="utf-8")
    for name in ("learning", "math_crossing", "crossings", "math_final_scores"):
        assert name in html
    assert "Figures" in html
    assert "Tables" in html


def test_what_was_deleted_is_made_again(smoke):
    results = smoke / RESULTS
    victims = [*results.glob("data/*.csv"), results / "tables/runs.tex", results / "figures/learning.svg"]
    before = [path.read_bytes() for path in victims]
    for path in victims:
        path.unlink()
    done = snakemake(smoke, *SMOKE, "--", *(str(path.relative_to(smoke)) for path in victims))
    assert done.returncode == 0, done.stdout[-4000:]
    assert [path.read_bytes() for path in victims] == before
    assert len(victims) == 6 + 2


def test_drawing_again_in_another_process_gives_identical_bytes(smoke, monkeypatch):
    monkeypatch.chdir(smoke)
    drawn = [path for kind in ("figures", "tables") for path in Path(RESULTS).glob(f"{kind}/*.*")]
    before = {path: path.read_bytes() for path in drawn}
    names: dict[str, list[str]] = {"figure": [], "table": [], "side-by-side": []}
    for path in drawn:
        path.unlink()
        if path.suffix in (".svg", ".md"):
            name = path.stem.removesuffix("_side_by_side")
            verb = "figure" if path.suffix == ".svg" else "table" if name == path.stem else "side-by-side"
            names[verb].append(name)
    for verb, own in names.items():
        main(["--root", str(smoke), verb, *own, f"{RESULTS}/configuration.json"])
    assert len(drawn) == 2 * 15 + 3 * (18 + 6)  # figures and tables in their forms, six tables beside the published
    assert [path for path in drawn if path.read_bytes() != before[path]] == []


def test_an_edited_threshold_or_label_makes_tables_and_figures_again(smoke, tmp_path):
    """They are settings of no run, so nothing is trained for them; and nothing old may stay under the new name."""
    clone = tmp_path / "clone"
    shutil.copytree(smoke, clone, symlinks=True)
    edit(clone / "config/experiments/tool_main.yaml", "[0.5, 0.8, 0.9]", "[0.25]")
    again = snakemake(clone, *SMOKE, "--", f"{RESULTS}/tables/crossings.md")
    assert again.returncode == 0, again.stdout[-4000:]
    assert "rule train:" not in again.stdout
    table = (clone / RESULTS / "tables/crossings.md").read_text()
    assert "| 0.25 |" in table
    assert "| 0.8 |" not in table
    edit(clone / "config/methods.yaml", "label: DARA-Sym", "label: Renamed")
    planned = counts(snakemake(clone, "-n", "--configfile", "config/presets/smoke.yaml").stdout)
    assert not {"train", "evaluate", "score"} & planned.keys()
    assert sum(number for rule, number in planned.items() if rule.startswith("tables_")) == 6  # all of them
    assert sum(number for rule, number in planned.items() if rule.startswith("figures_")) == 9


def test_another_version_of_a_scorer_only_scores_again(smoke, tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(smoke, clone, symlinks=True)
    files = sorted((clone / RESULTS / "scores").glob("*/laptop_tools-*/scores.csv.gz"))
    before = [path.read_bytes() for path in files]
    edit(clone / "workflow/dara/evaluation/bfcl.py", "scorer_version=2,", "scorer_version=9,")
    done = snakemake(clone, *SMOKE, "--", "evaluated")
    assert done.returncode == 0, done.stdout[-4000:]
    assert counts(done.stdout) == {"score": 3, "evaluated": 1, "total": 4}
    assert [path.read_bytes() for path in files] == before
    records = [json.loads(path.with_name("scores.json").read_text()) for path in files]
    assert [record["scorer"]["scorer"]["scorer"] for record in records] == [9, 9, 9]


def test_another_version_of_a_scorer_scores_the_responses_of_the_cache(tmp_path):
    clone = copy_repository(tmp_path)
    edit(clone / "workflow/dara/evaluation/math.py", "scorer_version=2,  # 2: as", "scorer_version=9,  # 2: as")
    run, evaluation = next(iter(sorted((clone / "results/cached").glob("math-*-s100-*/laptop_math-*")))).parts[-2:]
    target = f"results/laptop/scores/{run}/{evaluation}/scores.json"
    done = snakemake(clone, "--profile", "profiles/local", "--configfile", "config/presets/laptop.yaml", "--", target)
    assert done.returncode == 0, done.stdout[-4000:]
    assert counts(done.stdout) == {"spec": 1, "data": 1, "score": 1, "total": 3}
    kept = json.loads((clone / "results/cached" / run / evaluation / "scores.json").read_text())
    assert json.loads((clone / target).read_text())["scores_sha256"] == kept["scores_sha256"]


def test_a_killed_workflow_continues_without_unlocking(smoke, tmp_path):
    """kill -9 of Snakemake in the middle: the trainers stop by themselves, and the rerun repeats no step in the files."""
    clone = tmp_path / "clone"
    shutil.copytree(smoke, clone, symlinks=True)
    for directory in (clone / RESULTS / "runs", *(clone / SCRATCH).glob("*-smoke-*-g4-*")):
        shutil.rmtree(directory)
    change_preset(clone, steps=12)  # long enough to be in the middle of
    command = [sys.executable, "-m", "snakemake", *SMOKE, "--", "trained"]
    with subprocess.Popen(
        command, cwd=clone, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as process:
        trainers = wait_for(lambda: trainers_after_step_four(clone), process)
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(is_alive(pid) for pid in trainers))
    again = snakemake(clone, *SMOKE, "--", "trained")
    assert again.returncode == 0, again.stdout[-8000:]
    short = {run.rpartition("-")[0]: rows for run, rows in metrics_of(smoke).items()}
    [(run, rows)] = metrics_of(clone).items()
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[:6] == short[run.rpartition("-")[0]], "the same steps as those of the run that was not killed"
    starts = json.loads((clone / RESULTS / "runs" / run / "timings.json").read_text())["seconds_to_start"]
    assert len(starts) == 2, "a run that had a checkpoint went on from it"


def trainers_after_step_four(clone: Path) -> list[int]:
    """Process ids of the trainings, once one of them has written its fourth step."""
    files = list((clone / SCRATCH).glob("*-smoke-*-g4-*/metrics.jsonl"))
    if not any(len(path.read_text().splitlines()) >= 4 for path in files):
        return []
    return [json.loads(path.with_name("lock").read_text())["pid"] for path in files]


def wait_for(condition, process: subprocess.Popen | None = None, seconds: float = 120):
    """Poll until `condition` is true, and return its value; fail when time or the process ends first."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        assert process is None or process.poll() is None, "the process ended first"
        time.sleep(0.05)
    return value


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_and_scratch_may_be_on_another_disk(tmp_path, monkeypatch):
    """By a link and a variable, to places of any name; so may the environment that the Python is of be."""
    clone, disk = copy_repository(tmp_path / f"clone {ODD}", "cached"), tmp_path / f"disk {ODD}"
    (disk / "results").mkdir(parents=True)
    (clone / f"results {ODD}").symlink_to(disk / "results")
    change_preset(clone, steps=2)
    edit(clone / "config/presets/smoke.yaml", '"scratch": "', '"scratch": "${DARA_TEST_DISK}/')
    edit(clone / "config/models.yaml", "steps: 160", "steps: 2")
    monkeypatch.setenv("DARA_TEST_DISK", str(disk))
    [model] = planned("smoke", clone).matrix.models
    before = {path.name for path in clone.iterdir()}
    targets = [f"{RESULTS}/configuration.json", f"{RESULTS}/models/{model}/manifest.json"]
    done = snakemake(clone, *SMOKE, "--", *targets, python=python_in(disk))
    assert done.returncode == 0, done.stdout[-8000:]
    assert len(list((disk / SCRATCH).glob(f"models/{model}/model.safetensors"))) == 1
    assert {path.name for path in clone.iterdir()} - before == {".snakemake"}
    clean = [sys.executable, "-m", "dara", "--root", str(clone), "clean", "--results", "--preset", "smoke"]
    search = {"PYTHONPATH": str(clone / "workflow")}
    done = subprocess.run(clean, env=environment() | search, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no workflow made it" not in done.stdout
    assert list((clone / f"results {ODD}").iterdir()) == []


def python_in(directory: Path) -> Path:
    """A Python below a directory, with the packages of this one."""
    venv.create(directory / "environment", symlinks=True)
    packages = directory / "environment/lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "all.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "environment/bin/python"


def test_a_second_workflow_gets_a_clear_message(smoke):
    with directory_lock(smoke / ".snakemake/workflow", seconds=0):
        second = snakemake(smoke, *SMOKE, "--forcerun", "configuration")
    assert second.returncode == 1
    assert "Another workflow runs in this clone" in second.stdout
    assert "Traceback" not in second.stdout


def test_lint_is_clean(fresh):
    advice = {line.strip() for line in snakemake(fresh, "--lint").stdout.splitlines() if line.startswith("    *")}
    # Where a job runs, and for how long, is no param: a changed one would train finished runs again.
    outside = "* Shell command directly uses variable {} from outside of the rule:"
    outside = [outside.format(name) for name in ("PLAN", "TIME_LIMIT", "EVALUATION_PYTHON")]
    assert advice == {"* Specify a conda environment or container for each rule.:", *outside}
