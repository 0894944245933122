"""Mistakes in profiles that Snakemake itself takes without a word, each one sentence with file, key and the right one."""

import re
import shutil
from pathlib import Path

import pytest
import snakemake_executor_plugin_slurm
import snakemake_executor_plugin_slurm_jobstep
import yaml
from snakemake.cli import parse_args
from snakemake.profiles import ProfileConfigFileParser
from snakemake.settings.types import ResourceSettings

from dara.loading import ConfigurationError
from dara.profiles import MAPPINGS, SLURM, check_profile_files, check_resources, check_rule_names
from project import ROOT


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


def test_rules_from_elsewhere_are_checked_in_a_dry_run():
    for option in ("--set-threads=trian=4", "--set-resources=trian:gpu=4"):
        with pytest.raises(ConfigurationError, match=r"'trian' is not a rule of this workflow; did you mean 'train'"):
            check_rule_names(ROOT, settings(option))


def test_the_resources_are_those_that_the_executor_reads():
    folders = (Path(module.__file__).parent for module in MODULES)
    source = "\n".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    read = set(re.findall(r"resources(?:\.get\(\s*|\[)['\"](\w+)", source))
    assert read - {"threads"} == set(SLURM)  # threads of a rule are set by set-threads


MODULES = (snakemake_executor_plugin_slurm, snakemake_executor_plugin_slurm_jobstep)


def test_the_mappings_are_those_that_snakemake_reads(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({name: {"a": {"b": 1}} for name in (*MAPPINGS, "set-resorces")}))
    with path.open() as file:
        assert set(ProfileConfigFileParser().parse(file)) == set(MAPPINGS)
