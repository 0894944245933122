"""What the profiles make of the rules, from dry runs; no Slurm is needed for it."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from test_workflow import counts, environment

ROOT = Path(__file__).parents[1]
PROFILE = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
SITE = yaml.safe_load((ROOT / "profiles/slurm/site.example.yaml").read_text())

pytest.importorskip("snakemake_executor_plugin_slurm", reason="the environment lacks snakemake-executor-plugin-slurm")


def dry_run(directory: Path, *arguments: str) -> str:
    """A dry run of this repository in another directory, so that nothing here is touched."""
    where = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(directory)]
    command = [sys.executable, "-m", "snakemake", "-n", *where, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_the_link_at_the_top_makes_the_literal_command_work():
    assert (ROOT / "slurm").is_symlink()
    assert (ROOT / "slurm").resolve() == ROOT / "profiles/slurm"


def test_the_whole_paper_is_planned_in_seconds(tmp_path):
    """About 130 trainings and 1,800 checkpoints. Processor time, so that a loaded machine measures the same."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    planned = counts(dry_run(tmp_path, "--profile", "slurm"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert planned["train"] > 100
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30


def test_trainings_and_evaluations_ask_for_what_their_model_needs(tmp_path):
    models = yaml.safe_load((ROOT / "config/models.yaml").read_text())
    shown = dry_run(tmp_path, "--profile", "slurm", "--profile", "profiles/slurm/site.example.yaml", "--", "trained")
    jobs = [block for block in shown.split("\nrule ") if block.startswith("train:")]
    assert jobs
    for job in jobs:
        wanted = next(entry["resources"] for name, entry in models.items() if f"-{name}-" in job)
        asked = job.split("resources: ")[1].splitlines()[0].split(", ")
        assert f"gpu={wanted['gpus']}" in asked
        assert f"runtime={wanted['hours'] * 60}" in asked
        assert f"mem_mb={wanted['memory_gb'] * 1000}" in asked
        assert {"gpu_model=a100", "slurm_partition=gpu", "slurm_account=my_account"} <= set(asked)


def test_cheap_rules_and_those_that_need_a_network_run_on_the_login_node():
    texts = [path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk")]
    rules = {
        match[1]: match[2] for text in texts for match in re.finditer(r"^rule (\w+):\n((?:    .*\n|\n)+)", text, re.M)
    }
    assert {name for name, body in rules.items() if "localrule: True" not in body} == {"train", "evaluate", "score"}


def test_the_site_file_replaces_whole_keys_so_it_must_repeat_the_defaults():
    assert set(PROFILE["default-resources"]) <= set(SITE["default-resources"])
    assert "executor" not in SITE


def test_every_job_has_a_memory_limit_because_slurm_would_give_it_the_node():
    assert PROFILE["default-resources"]["mem_mb"] > 0
    assert "slurm-array-jobs" not in PROFILE  # with these versions a failing task removes another's output
    assert PROFILE["retries"] >= 1
