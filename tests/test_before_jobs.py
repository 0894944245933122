"""What would go wrong after hours is said before the first job, in one sentence: Slurm, GPUs, and the preset that is meant."""

import re
import shutil
import subprocess
import sys

import pytest

from dara.dag import Workflow
from dara.loading import ConfigurationError, merge, read_yaml
from dara.preflight import check_gpus, check_slurm, check_targets
from dara.snakemake_command import Command
from project import ROOT
from test_workflow import environment

ANSWERS = "#!/bin/sh\n"
REFUSES = "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n"


def flow(preset: str, **settings) -> Workflow:
    files = [ROOT / "config" / "config.yaml", ROOT / "config" / "presets" / f"{preset}.yaml"]
    return Workflow.load(ROOT, merge(merge(read_yaml(files[0]), read_yaml(files[1])), settings), files[1:])


def command(*arguments: str) -> Command:
    return Command.read(arguments, ROOT)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Make this machine's only programs, beside the one with which the executor looks for them."""
    (tmp_path / "which").symlink_to(shutil.which("which"))
    monkeypatch.setenv("PATH", str(tmp_path))

    def made(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)

    return made


SLURM = ("--profile", "slurm")


def test_jobs_are_submitted_only_where_slurm_is(programs):
    options = command(*SLURM)
    with pytest.raises(
        ConfigurationError, match=r"^slurm/config\.yaml: executor slurm: sbatch, squeue, scancel not found"
    ):
        check_slurm(options)
    with pytest.raises(ConfigurationError, match=r"^command line: executor slurm: sbatch, squeue, scancel not found"):
        check_slurm(command("--executor", "slurm", "-j4"))
    programs(sbatch=ANSWERS, squeue=ANSWERS)
    with pytest.raises(ConfigurationError, match=r"executor slurm: scancel not found .*--profile profiles/local"):
        check_slurm(options)
    programs(scancel=ANSWERS)
    check_slurm(options)


def test_a_controller_that_does_not_answer_is_named(programs, monkeypatch, tmp_path):
    programs(sbatch=ANSWERS, squeue=REFUSES, scancel=ANSWERS)
    with pytest.raises(
        ConfigurationError, match=r"does not answer `squeue` .*: slurm_load_jobs error: Unable to contact"
    ):
        check_slurm(command(*SLURM))
    programs(squeue=ANSWERS, sacct=REFUSES.replace("slurm_load_jobs error: ", "accounting: "))
    with pytest.raises(ConfigurationError, match=r"`sacct` .*: accounting: Unable to contact"):
        check_slurm(command(*SLURM, "--slurm-status-command", "sacct"))
    check_slurm(command(*SLURM))
    (tmp_path / "sacct").unlink()  # then the executor asks squeue
    check_slurm(command(*SLURM, "--slurm-status-command", "sacct"))
    programs(squeue="#!/bin/sh\nwhile :; do :; done\n")
    monkeypatch.setattr("dara.preflight.SLURM_SECONDS", 0.1)
    with pytest.raises(ConfigurationError, match=r"`squeue` gave no answer within 0\.1 s"):
        check_slurm(command(*SLURM))


def test_one_machine_needs_no_slurm(programs):
    check_slurm(command("--profile", "profiles/local"))
    check_slurm(command("-j4"))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            "train:gpu=8",
            "^command line: set-resources.train asks for 8 GPUs, and a training of .* uses 4: `gpus` of its",
        ),
        ("train:gpu=2", "asks for 2 GPUs, .* uses 8"),
        ("train:gpu='8'", "asks for 8 GPUs"),
        ("train:gres='gpu:a100:4'", "asks for 12 GPUs"),  # gpu of the rule stays
        ("evaluate_part:gpu=0", "evaluate_part asks for 0 GPUs, and benchmark .* needs 2"),
    ],
)
def test_a_profile_gives_jobs_the_gpus_that_they_use(asked, message):
    flows = flow("paper")
    with pytest.raises(ConfigurationError, match=message):
        check_gpus(flows, command("--set-resources", asked))


def test_what_a_profile_may_say_of_gpus():
    hardware = {"gpus": 4, "evaluation_gpus": 2, "cpus": 8, "memory_gb": 100, "hours": 1}
    same = flow("paper", resources=hardware)
    for asked in ("train:gpu=4", "train:gpu=attempt*4", "train:runtime=60", "evaluate_part:gpu=4", "score:gpu=1"):
        check_gpus(same, command("--set-resources", asked))
    check_gpus(same, command("--set-resources", "train:gpu=0", "train:gres='gpu:4'"))  # where --gpus is not known
    check_gpus(flow("laptop"), command("--set-resources", "train:gpu=1", "evaluate:gpu=1"))


def test_the_file_that_gives_them_is_named(tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text("set-resources: {train: {gpu: 8}}")
    with pytest.raises(ConfigurationError, match=f"^{re.escape(str(site))}: set-resources.train asks for 8"):
        check_gpus(flow("paper"), command(*SLURM, "--profile", str(site)))


def test_a_file_of_another_preset_names_that_preset(monkeypatch):
    monkeypatch.chdir(ROOT)
    laptop = flow("laptop")
    with pytest.raises(
        ConfigurationError, match=r"belongs to preset laptop-study.* of preset laptop; .*laptop-study\.yaml -- r"
    ):
        check_targets(laptop, command("-n", "--", "results/laptop-study/figures/learning.png"))
    with pytest.raises(ConfigurationError, match="belongs to preset smoke"):
        check_targets(laptop, command("-n", "figures", str(ROOT / "results/smoke/report.html")))
    for target in (
        "figures",
        "results/laptop/report.html",
        "results/published/tables/x.md",
        "results/other/x",
        "results",
    ):
        check_targets(laptop, command("-n", target))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--profile", "slurm", "--profile", "site.yaml"],
            "site.yaml: set-resources.train: 'gpu_modle' is not a resource",
        ),
        (["--profile", "slurm", "--configfile", "keys.yaml"], "keys.yaml: is no preset: it has neither"),
        (["-c1", "--", "results/smoke/report.html"], "results/smoke/report.html belongs to preset smoke"),
    ],
)
def test_a_mistake_ends_a_dry_run_with_one_sentence(tmp_path, arguments, message):
    (tmp_path / "site.yaml").write_text("set-resources: {train: {gpu_modle: a100}}\n")
    (tmp_path / "keys.yaml").write_text("hub_mirror: http://mirror.test\n")
    arguments = [str(tmp_path / word) if word in ("site.yaml", "keys.yaml") else word for word in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--directory", str(tmp_path), *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_preset_that_extends_another_is_the_same_for_snakemake_and_dara(tmp_path):
    """With one key of its own: everything else is the other preset's, not the laptop's.

    What it trains is told to `dara clean`, which would take its runs for those of nobody.
    """
    own = tmp_path / "own.yaml"
    own.write_text("extends: smoke\ntrackers: []\n")
    where = ["-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path), "--configfile", str(own)]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", *where, "--config", "reuse=none", "--", "trained"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^configuration +1$", done.stdout, re.M)
    assert re.search(r"^train +4$", done.stdout, re.M)
