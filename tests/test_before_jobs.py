"""What would go wrong after hours is said before the first job, in one sentence: Slurm, GPUs, and the preset that is meant."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from snakemake.cli import parse_args

from dara.loading import ConfigurationError, merge, read_yaml
from dara.plan import WorkflowPlan
from dara.preflight import check_gpus, check_slurm, refuse_other_preset, refuse_unknown_output
from project import ROOT
from test_workflow import counts, environment

ANSWERS = "#!/bin/sh\n"
REFUSES = "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n"


def flow(preset: str, **settings) -> WorkflowPlan:
    files = [ROOT / "config" / "config.yaml", ROOT / "config" / "presets" / f"{preset}.yaml"]
    return WorkflowPlan.load(ROOT, merge(merge(read_yaml(files[0]), read_yaml(files[1])), settings), files[1:])


def asked(*arguments: str) -> dict:
    """`set-resources` as Snakemake reads them."""
    return parse_args(["--set-resources", *arguments])[1].set_resources


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


def test_jobs_are_submitted_only_where_slurm_is(programs):
    with pytest.raises(ConfigurationError, match=r"^executor slurm: sbatch, squeue, scancel not found"):
        check_slurm("squeue")
    programs(sbatch=ANSWERS, squeue=ANSWERS)
    with pytest.raises(ConfigurationError, match=r"executor slurm: scancel not found .*--profile profiles/local"):
        check_slurm("squeue")
    programs(scancel=ANSWERS)
    check_slurm("squeue")


def test_a_controller_that_does_not_answer_is_named(programs, monkeypatch, tmp_path):
    programs(sbatch=ANSWERS, squeue=REFUSES, scancel=ANSWERS)
    with pytest.raises(
        ConfigurationError, match=r"does not answer `squeue` .*: slurm_load_jobs error: Unable to contact"
    ):
        check_slurm("squeue")
    programs(squeue=ANSWERS, sacct=REFUSES.replace("slurm_load_jobs error: ", "accounting: "))
    with pytest.raises(ConfigurationError, match=r"`sacct` .*: accounting: Unable to contact"):
        check_slurm("sacct")
    check_slurm("squeue")
    (tmp_path / "sacct").unlink()  # then the executor asks squeue
    check_slurm("sacct")
    programs(squeue="#!/bin/sh\nwhile :; do :; done\n")
    monkeypatch.setattr("dara.preflight.SLURM_SECONDS", 0.1)
    with pytest.raises(ConfigurationError, match=r"`squeue` gave no answer within 0\.1 s"):
        check_slurm("squeue")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "train:gpu=8",
            "^command line or profile: set-resources.train asks for 8 GPUs, and a training of .* uses 4: `gpus` of its",
        ),
        ("train:gpu=2", "asks for 2 GPUs, .* uses 8"),
        ("train:gpu='8'", "asks for 8 GPUs"),
        ("train:gres='gpu:a100:4'", "asks for 12 GPUs"),  # gpu of the rule stays
        ("evaluate_part:gpu=0", "evaluate_part asks for 0 GPUs, and benchmark .* needs 2"),
    ],
)
def test_a_profile_gives_jobs_the_gpus_that_they_use(given, message):
    with pytest.raises(ConfigurationError, match=message):
        check_gpus(flow("paper"), asked(given))


def test_what_a_profile_may_say_of_gpus():
    hardware = {"gpus": 4, "evaluation_gpus": 2, "cpus": 8, "memory_gb": 100, "hours": 1}
    same = flow("paper", resources=hardware)
    for given in ("train:gpu=4", "train:gpu=attempt*4", "train:runtime=60", "evaluate_part:gpu=4", "score:gpu=1"):
        check_gpus(same, asked(given))
    check_gpus(same, asked("train:gpu=0", "train:gres='gpu:4'"))  # where --gpus is not known
    check_gpus(flow("laptop"), asked("train:gpu=1", "evaluate:gpu=1"))


def test_the_file_of_profiles_that_gives_them_is_named(tmp_path):
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    (tmp_path / "profiles/slurm/site.yaml").write_text("set-resources: {train: {gpu: 8}}")
    paper = replace(flow("paper"), root=tmp_path)
    with pytest.raises(ConfigurationError, match=r"^profiles/slurm/site\.yaml: set-resources.train asks for 8"):
        check_gpus(paper, asked("train:gpu=8"))


def test_a_file_of_another_preset_names_that_preset():
    laptop = flow("laptop")
    assert {"smoke", "paper"} < set(laptop.other_presets) - {"laptop"}
    assert "laptop" not in laptop.other_presets
    with pytest.raises(ConfigurationError, match=r"belongs to preset smoke.* of preset laptop; .*smoke\.yaml -- r"):
        refuse_other_preset(laptop, "smoke", "figures/learning.png")
    with pytest.raises(ConfigurationError, match=r"'figures/learnig\.png' is not .* mean 'figures/learning\.png'\?"):
        refuse_unknown_output(laptop, "figures/learnig.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--profile", "slurm", "--profile", "site.yaml"],
            "command line or profile: set-resources: 'trian' is not a rule",
        ),
        (["--profile", "slurm", "--configfile", "keys.yaml"], "keys.yaml: is no preset: it has neither"),
        (["-c1", "--", "results/smoke/report.html"], "results/smoke/report.html belongs to preset smoke"),
    ],
)
def test_a_mistake_ends_a_dry_run_with_one_sentence(tmp_path, arguments, message):
    (tmp_path / "site.yaml").write_text("set-resources: {trian: {gpu_model: a100}}\n")
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


def test_the_workflow_is_a_module_of_another(tmp_path):
    """Which chooses the preset; the rules read their own configuration folder, wherever the other Snakefile is."""
    (tmp_path / "Snakefile").write_text(
        f'configfile: "{ROOT}/config/config.yaml"\n'
        f'configfile: "{ROOT}/config/presets/smoke.yaml"\n'
        f'module dara:\n    snakefile: "{ROOT}/Snakefile"\n    config: config\n'
        "use rule * from dara\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "-q", "all"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: counts(done.stdout)[name] for name in ("train", "evaluate", "frames")} == {
        "train": 4,
        "evaluate": 6,
        "frames": 1,
    }
