"""Profiles: their mistakes are one sentence with file, key and the right one, and what they make of the rules."""

import asyncio
import re
import resource
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import snakemake_executor_plugin_slurm as slurm
import snakemake_executor_plugin_slurm_jobstep as jobstep
import yaml
from snakemake.cli import parse_args
from snakemake.profiles import ProfileConfigFileParser
from snakemake.settings.types import ResourceSettings

from dara.loading import ConfigurationError
from dara.profiles import MAPPINGS, SLURM, check_profile_files, check_resources, check_rule_names
from project import ROOT, counts, snakemake

PROFILE = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
SITE = yaml.safe_load((ROOT / "profiles/slurm/site.example.yaml").read_text())

# --- mistakes that Snakemake itself takes without a word --------------------------------------------------------------


@pytest.fixture
def check(tmp_path):
    """Check a profile with a site file of this text beside the cluster's settings."""
    shutil.copy(ROOT / "slurm/config.yaml", tmp_path)

    def checked(text: str) -> None:
        (tmp_path / "site.yaml").write_text(text)
        check_profile_files(ROOT, [tmp_path])

    return checked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("set-resorces: {train: {gpu_model: a100}}", "site.yaml: 'set-resorces' .*; did you mean 'set-resources'?"),
        ("set_resources: {train: {gpu_model: a100}}", "site.yaml: 'set_resources' .*did you mean 'set-resources'"),
        ("default-resource: {mem_mb: 1}", "'default-resource' .*did you mean 'default-resources'"),
        ("set-threds: {train: 4}", "'set-threds' .*did you mean 'set-threads'"),
        ("dry-run: {a: b}", "'dry-run' is not a key under which Snakemake reads a mapping"),
        ("set-resources: {train: {gpu_modle: a100}}", "set-resources.train: 'gpu_modle' .*did you mean 'gpu_model'"),
        ("set-resources: {train: {gpus: 4}}", "site.yaml: set-resources.train: 'gpus' .*did you mean 'gpu'"),
        ("set-resources: [train:gpu_modle=a100]", "site.yaml: set-resources.train: 'gpu_modle'"),
        ("set-resources: train:gpu_modle=a100", "site.yaml: set-resources.train: 'gpu_modle'"),
        ("set-resources: {trian: {gpu: 4}}", "site.yaml: set-resources: 'trian' is not a rule.*did you mean 'train'"),
        ("set-resources: {trian: {gpu: 4}, train: {}}", "set-resources: 'trian' is not a rule"),
        ("set-threads: {evaluat: 4}", "site.yaml: set-threads: 'evaluat' is not a rule.*did you mean 'evaluate'"),
        ("set-threads: [evaluat=4]", "site.yaml: set-threads: 'evaluat' is not a rule"),
        ("groups: {scor: fast}", "site.yaml: groups: 'scor' is not a rule.*did you mean 'score'"),
        ("default-resources: {slurm_acount: a}", "default-resources: 'slurm_acount' .*mean 'slurm_account'"),
        ("default-resources: [slurm_partion=a]", "default-resources: 'slurm_partion' .*mean 'slurm_partition'"),
        ("resources: {mem_bm: 4000}", "site.yaml: resources: 'mem_bm' .*did you mean 'mem_mb'"),
        ("set-resources: {train: {threads: 4}}", "set-resources.train: 'threads' is not a resource"),
        ("jobs: 4\njobs: 5", "site.yaml, line 2: .*'jobs' stands twice"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_key_and_the_right_one(check, text, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        check(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "set-resources:\ndefault-resources:",
        "set-resources: {train: {gpu_model: a100, slurm_partition: 'a,b', qos: long, slurm_extra: '--nice', runtime: 10h}}",
        "set-resources: {train: {disk: 4GB, mem_mib: 7, tmpdir: /x, constraint: '', cpus_per_gpu: 4}}",
        "set-resources: {train: {license: 1}}\nresources: {license: 2}",  # at most two at a time
        "set-threads: {train: 4, evaluate_part: 8}",
        "retries: 4\nslurm-qos: long",
        "groups: {score: fast}\ngroup-components: {fast: 4}",
        "__use_yte__: true\n?if True:\n  set-resources:\n    train:\n      gpu: 4",
    ],
)
def test_what_a_site_may_say(check, text):
    check(text)


def test_the_profiles_of_the_repository_are_right():
    check_profile_files(ROOT)


def test_resources_of_an_executor_that_is_not_known_here_pass(tmp_path):
    text = "executor: {}\nset-resources: {{train: {{machine_type: x}}}}"
    (tmp_path / "config.yaml").write_text(text.format("kubernetes"))
    check_profile_files(ROOT, [tmp_path])
    (tmp_path / "config.yaml").write_text(text.format("local"))
    with pytest.raises(ConfigurationError, match="machine_type"):
        check_profile_files(ROOT, [tmp_path])


def settings(*arguments: str) -> ResourceSettings:
    """What Snakemake gives a workflow of this command."""
    given = parse_args(arguments)[1]
    return ResourceSettings(
        resources=given.resources,
        overwrite_threads=given.set_threads,
        overwrite_resources=given.set_resources,
        default_resources=given.default_resources,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set-resources", "train:gpu_modle=a100"], "profile: set-resources.train: 'gpu_modle' .*mean 'gpu_model'"),
        (["--default-resources", "slurm_acount=a"], "default-resources: 'slurm_acount'"),
        (["--resources", "gup=1"], "resources: 'gup' .*did you mean 'gpu'"),
    ],
)
def test_resources_from_elsewhere_are_checked_when_jobs_start(arguments, message):
    for executor in ("local", "slurm"):
        with pytest.raises(ConfigurationError, match=f"^command line or .*{message}"):
            check_resources(executor, settings(*arguments))
    check_resources("kubernetes", settings(*arguments))


def test_what_may_be_said_elsewhere():
    limited = ["--set-resources", "train:license=1", "train:disk=4GB", "--resources", "license=2", "mem_mb=4000"]
    check_resources("slurm", settings(*limited, "--default-resources", "mem_mb=1", "tmpdir='/x'"))
    check_resources("local", settings())


@pytest.mark.parametrize("option", ["--set-threads=trian=4", "--set-resources=trian:gpu=4"])
def test_rules_from_elsewhere_are_checked_in_a_dry_run(option):
    with pytest.raises(ConfigurationError, match=r"'trian' is not a rule of this workflow; did you mean 'train'"):
        check_rule_names(ROOT, settings(option))


def test_resources_and_mappings_are_those_that_snakemake_and_the_executor_read(tmp_path):
    folders = (Path(module.__file__).parent for module in (slurm, jobstep))
    source = "\n".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    read = set(re.findall(r"resources(?:\.get\(\s*|\[)['\"](\w+)", source))
    assert read - {"threads"} == set(SLURM)  # threads of a rule are set by set-threads
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({name: {"a": {"b": 1}} for name in (*MAPPINGS, "set-resorces")}))
    with path.open() as file:
        assert set(ProfileConfigFileParser().parse(file)) == set(MAPPINGS)


# --- the profiles of the repository -----------------------------------------------------------------------------------


def dry_run(directory: Path, *arguments: str) -> str:
    """A dry run of this repository in another directory, so that nothing here is touched."""
    done = snakemake(ROOT, "-n", "--directory", str(directory), *arguments)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def jobs_of(rule: str, shown: str) -> list[tuple[str, set[str]]]:
    """The jobs of a rule in a dry run: all that is shown of it, and its resources."""
    blocks = [block.split("\n[")[0] for block in shown.split("\nrule ") if block.startswith(f"{rule}:")]
    return [(block, set(block.split("resources: ")[1].splitlines()[0].split(", "))) for block in blocks]


@pytest.mark.parametrize("option", ["--profile", "--workflow-profile"])
def test_both_literal_commands_plan_the_smoke_preset_without_a_gpu(tmp_path, option):
    """`slurm` is a link at the top, so that the literal command works."""
    assert (ROOT / "slurm").is_symlink()
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


def test_rules_with_a_gpu_have_a_partition_and_cheap_ones_run_on_the_login_node():
    texts = [path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk")]
    rule = re.compile(r"^rule (\w+):\n((?:    .*\n|\n)+)", re.M)
    rules = {match[1]: match[2] for text in texts for match in rule.finditer(text)}
    assert {name for name, body in rules.items() if "gpu=" in body} == set(SITE["set-resources"])
    submitted = {name for name, body in rules.items() if "localrule: True" not in body}
    assert submitted == {"train", "evaluate_part", "evaluate", "score"}


def test_the_settings_for_slurm_suit_its_executor():
    assert set(PROFILE["default-resources"]) <= set(SITE["default-resources"])  # a site file replaces whole keys
    assert "executor" not in SITE
    assert PROFILE["default-resources"]["mem_mb"] > 0  # without a limit Slurm would give a job its node
    assert "slurm-array-jobs" not in PROFILE  # with these versions a failing task removes another's output
    assert PROFILE["retries"] >= 1
    assert PROFILE["slurm-keep-successful-logs"] is False  # else the executor deletes no old log at all
    assert PROFILE["slurm-delete-logfiles-older-than"] > 0
    assert PROFILE["slurm-status-attempts"] / PROFILE["max-status-checks-per-second"] >= 24 * 3600


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
