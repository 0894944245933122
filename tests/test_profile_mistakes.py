"""Mistakes in profiles that Snakemake itself takes without a word, each one sentence with file, key and the right one."""

import re
from pathlib import Path

import pytest
import snakemake_executor_plugin_slurm
import snakemake_executor_plugin_slurm_jobstep
import yaml
from snakemake.profiles import ProfileConfigFileParser

from dara.loading import ConfigurationError
from dara.profiles import MAPPINGS, SLURM, check_profiles
from dara.snakemake_command import Command
from project import ROOT


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check a command with a site file of this text on top of the cluster's profile."""
    monkeypatch.chdir(tmp_path)

    def checked(text: str, *arguments: str) -> None:
        Path("site.yaml").write_text(text)
        profiles = ["--profile", str(ROOT / "slurm"), "--profile", "site.yaml"]
        check_profiles(Command.read([*profiles, *arguments], tmp_path), ROOT)

    return checked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("set-resorces: {train: {gpu_model: a100}}", "^site.yaml: 'set-resorces' .*; did you mean 'set-resources'?"),
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
    for profile in ("slurm", "profiles/local", "profiles/slurm/site.example.yaml"):
        check_profiles(Command.read(["--profile", profile], ROOT), ROOT)


def test_resources_of_an_executor_that_is_not_known_here_pass(check, tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text("set-resources: {train: {machine_type: x}}")
    command = Command.read(["--profile", str(site)], ROOT)
    command.options.executor = "kubernetes"
    check_profiles(command, ROOT)
    command.options.executor = "local"
    with pytest.raises(ConfigurationError, match="machine_type"):
        check_profiles(command, ROOT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set-resources", "train:gpu_modle=a100"], "^command line: set-resources.train: 'gpu_modle'"),
        (["--set-threads", "trian=4"], "command line: set-threads: 'trian' is not a rule"),
        (["--default-resources", "slurm_acount=a"], "command line: default-resources: 'slurm_acount'"),
        (["--resources", "gup=1"], "command line: resources: 'gup' .*did you mean 'gpu'"),
        (["--workflow-profile", "other.yaml"], "^other.yaml: 'set-resorces'"),
    ],
)
def test_the_command_line_and_every_kind_of_profile_count(check, arguments, message):
    Path("other.yaml").write_text("set-resorces: {}")
    with pytest.raises(ConfigurationError, match=message):
        check("jobs: 4", *arguments)


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
