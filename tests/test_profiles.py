"""What the profiles make of the rules, from dry runs; no Slurm is needed for it."""

import asyncio
import re
import resource
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import snakemake_executor_plugin_slurm as slurm
import yaml

from project import ROOT
from test_workflow import counts, environment

PROFILE = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
SITE = yaml.safe_load((ROOT / "profiles/slurm/site.example.yaml").read_text())


def dry_run(directory: Path, *arguments: str) -> str:
    """A dry run of this repository in another directory, so that nothing here is touched."""
    where = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(directory)]
    command = [sys.executable, "-m", "snakemake", "-n", *where, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def jobs_of(rule: str, shown: str) -> list[tuple[str, set[str]]]:
    """The jobs of a rule in a dry run: all that is shown of it, and its resources."""
    blocks = [block.split("\n[")[0] for block in shown.split("\nrule ") if block.startswith(f"{rule}:")]
    return [(block, set(block.split("resources: ")[1].splitlines()[0].split(", "))) for block in blocks]


def test_the_link_at_the_top_makes_the_literal_command_work():
    assert (ROOT / "slurm").is_symlink()
    assert (ROOT / "slurm").resolve() == ROOT / "profiles/slurm"


@pytest.mark.parametrize("option", ["--profile", "--workflow-profile"])
def test_both_literal_commands_plan_the_smoke_preset_without_a_gpu(tmp_path, option):
    shown = dry_run(tmp_path, option, "slurm", "--configfile", "config/presets/smoke.yaml", "--", "evaluated")
    assert counts(shown)["configuration"] == 1  # without it `dara clean` takes the runs for those of nobody
    for rule, number in (("train", 4), ("evaluate", 6)):
        jobs = jobs_of(rule, shown)
        assert len(jobs) == number
        assert all({"gpu=0", "mem_mb=4000", "runtime=60"} <= asked for _, asked in jobs)


def test_the_whole_paper_is_planned_in_seconds_and_asks_for_what_its_models_need(tmp_path):
    """130 trainings, 780 checkpoints in 390 shares. Processor time, so that a loaded machine measures the same."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = dry_run(tmp_path, "--profile", "slurm", "--profile", "profiles/slurm/site.example.yaml")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30
    planned = counts(shown)
    assert planned["train"] == 130
    assert planned["evaluate_part"] == 5 * (60 + 18)
    assert planned["evaluate"] == planned["score"] == 2 * (60 + 18 + 16 + 6)  # 36 runs are not evaluated; 6 base models
    models = yaml.safe_load((ROOT / "config/models.yaml").read_text())
    site = {"slurm_partition=gpu", "slurm_account=my_account"}
    for rule, gpus, hours in (("train", "gpus", "hours"), ("evaluate_part", "evaluation_gpus", "evaluation_hours")):
        jobs = jobs_of(rule, shown)
        assert jobs
        for job, asked in jobs:
            wanted = next(entry["resources"] for name, entry in models.items() if f"-{name}-" in job)
            assert {f"gpu={wanted[gpus]}", f"runtime={wanted[hours] * 60}", "gpu_model=a100", *site} <= asked
            if rule == "train":
                assert f"mem_mb={wanted['memory_gb'] * 1000}" in asked
    gathering = [asked for job, asked in jobs_of("evaluate", shown) if ".done" in job]
    assert len(gathering) == 60 + 18
    assert all("gpu=0" in asked for asked in gathering)


def test_every_rule_that_may_ask_for_a_gpu_has_its_partition_in_the_site_file():
    rules = rules_of_the_workflow()
    assert {name for name, body in rules.items() if "gpu=" in body} == set(SITE["set-resources"])


def rules_of_the_workflow() -> dict[str, str]:
    """Name -> text of every rule of the rule files."""
    texts = [path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk")]
    rule = re.compile(r"^rule (\w+):\n((?:    .*\n|\n)+)", re.M)
    return {match[1]: match[2] for text in texts for match in rule.finditer(text)}


def test_cheap_rules_and_those_that_need_a_network_run_on_the_login_node():
    submitted = {name for name, body in rules_of_the_workflow().items() if "localrule: True" not in body}
    assert submitted == {"train", "evaluate_part", "evaluate", "score"}


def test_the_site_file_replaces_whole_keys_so_it_must_repeat_the_defaults():
    assert set(PROFILE["default-resources"]) <= set(SITE["default-resources"])
    assert "executor" not in SITE


def test_every_job_has_a_memory_limit_because_slurm_would_give_it_the_node():
    assert PROFILE["default-resources"]["mem_mb"] > 0
    assert "slurm-array-jobs" not in PROFILE  # with these versions a failing task removes another's output
    assert PROFILE["retries"] >= 1


@pytest.mark.parametrize(("attempts", "left"), [(5, []), (PROFILE["slurm-status-attempts"], ["a job"])])
def test_a_slurm_that_does_not_answer_for_a_while_loses_no_job(monkeypatch, attempts, left):
    """The executor forgets its jobs after a round of failed questions, so a round of the profile is long."""
    answers = iter([(None, None)] * 20 + [({"7": "RUNNING"}, 0.1)])

    async def ask(command, logger):
        return next(answers)

    monkeypatch.setattr(slurm, "query_job_status", ask)
    monkeypatch.setattr(slurm, "get_min_job_age", lambda: 300)
    settings = SimpleNamespace(status_attempts=attempts, init_seconds_before_status_checks=20)
    executor = Mock(
        workflow=SimpleNamespace(executor_settings=settings), status_rate_limiter=nullcontext(), run_uuid="x"
    )
    executor.get_status_command.return_value = "squeue"
    executor.configure_mock(_status_query_failures=0, _status_query_calls=0, _status_query_total_seconds=0.0)
    executor.configure_mock(_status_query_min_seconds=0.0, _status_query_max_seconds=0.0, _status_query_cycle_rows=[])
    executor.next_seconds_between_status_checks = 20
    job = SimpleNamespace(external_jobid="7", aux={})

    async def check():
        return ["a job" async for _ in slurm.Executor.check_active_jobs(executor, [job])]

    assert asyncio.run(check()) == left
    seconds = PROFILE["slurm-status-attempts"] / PROFILE["max-status-checks-per-second"]
    assert seconds >= 24 * 3600


def test_the_logs_of_slurm_jobs_are_bounded():
    """The executor deletes no old log at all where those of successful jobs are kept."""
    assert PROFILE["slurm-keep-successful-logs"] is False
    assert PROFILE["slurm-delete-logfiles-older-than"] > 0
