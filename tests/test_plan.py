"""What the rules are told about jobs and outputs, and what would go wrong after hours: one sentence before the first job."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.cli import parse_args

from dara.analysis.figures import FIGURES
from dara.loading import ConfigurationError
from dara.outputs import CURVES, Outputs
from dara.plan import WorkflowPlan
from dara.preflight import (
    check_available,
    check_environments,
    check_gpus,
    check_hardware,
    check_slurm,
    check_trackers,
    refuse_other_preset,
    refuse_unknown_output,
)
from dara.runs import evaluation_id
from dara.table_options import ScoreTable, table_name
from project import ROOT, counts, planned, snakemake


@pytest.fixture(scope="module")
def paper() -> WorkflowPlan:
    return planned("paper")


@pytest.fixture(scope="module")
def laptop() -> WorkflowPlan:
    return planned("laptop")


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_jobs_share_the_checkpoints_of_a_run(paper, laptop):
    run = next(iter(paper.matrix.experiments["tool_main"]))
    settings = paper.benchmarks_of(run)
    bfcl, validation = map(evaluation_id, settings)
    parts = paper.parts(run, bfcl)
    assert [Path(part).name for part in parts] == [f"part{number}of5.done" for number in range(1, 6)]
    assert {Path(part).parent for part in parts} == {paper.paths.evaluation(run, settings[0])}
    (base, *_) = paper.bases
    assert paper.parts(base, bfcl) == []  # one checkpoint, one job
    assert paper.parts(run, validation) == []  # minutes
    gathering, whole = paper.hardware("evaluate", run, bfcl), paper.hardware("evaluate", run, validation)
    assert (gathering.gpus, gathering.cpus, gathering.memory_mb) == (0, 1, 8000)
    own = paper.resources(run)
    assert (whole.gpus, whole.minutes) == (own.evaluation_gpus, own.evaluation.minutes)
    assert whole.memory_mb * own.gpus == own.memory_mb * own.evaluation_gpus  # its share of a node
    run = next(iter(laptop.matrix.runs))
    assert laptop.parts(run, evaluation_id(laptop.benchmarks_of(run)[0])) == []


def test_published_benchmarks_have_data_of_their_own(paper):
    run = next(iter(paper.matrix.experiments["math_main"]))
    inputs = paper.paths.root / "inputs"
    math, validation = map(evaluation_id, paper.benchmarks_of(run))
    assert paper.cases(run, math) == str(inputs / "math_five" / "manifest.json")
    assert paper.cases(run, validation) == paper.training_inputs(SimpleNamespace(run=run))["data"]
    assert [benchmark.name for benchmark in paper.benchmarks_of(run)] == ["math_five", "deepscaler_validation"]
    assert len(paper.score_files(run)) == 2
    assert paper.model_data(SimpleNamespace(model=next(iter(paper.matrix.models)))) == []


def test_hardware_is_that_of_the_model_or_of_the_preset(paper, laptop):
    small, large = (next(run for run in paper.matrix.runs if size in run) for size in ("qwen2.5-1.5b", "qwen3-4b"))
    assert (paper.resources(small).gpus, paper.resources(large).gpus) == (4, 8)
    assert paper.hardware("train", small).gpus == 4
    assert planned("paper", ray_address="head:6379").hardware("train", small).gpus == 0  # those of the Ray cluster
    own = planned("laptop-openrlhf")
    assert own.resources(next(iter(own.matrix.runs))).memory_mb == 6000
    options = shlex.split(own.training_options)
    assert options[:2] == ["--environment", ".venv-openrlhf"]
    assert json.loads(options[options.index("--resources") + 1])["memory_gb"] == 6.0
    assert planned("laptop", trackers=["tensorboard", "wandb"]).training_options == "--trackers tensorboard,wandb"
    assert laptop.training_options == ""


# --- before the first job ---------------------------------------------------------------------------------------------


def test_an_environment_that_is_not_there_is_named(laptop):
    check_environments(laptop)
    assert laptop.evaluation_python == "python"
    missing = planned("laptop-openrlhf", reuse="none", training_environment=".venv-nowhere")
    with pytest.raises(
        ConfigurationError, match=r"training_environment .*\.venv-nowhere is not there; make it with `make"
    ):
        check_environments(missing)


def test_hardware_that_cannot_train_or_evaluate_is_an_error(paper, laptop):
    check_hardware(paper)
    check_hardware(laptop)
    three = {"gpus": 3, "evaluation_gpus": 1, "cpus": 8, "memory_gb": 100, "hours": 1}
    with pytest.raises(ConfigurationError, match=r"preset paper: .* cannot be divided among 3 GPUs"):
        check_hardware(planned("paper", resources=three))
    shared = {"tasks": {"math": {"benchmark": {"tensor_parallel": 4}}}}
    with pytest.raises(ConfigurationError, match=r"benchmark math_five has tensor_parallel 4, and an evaluation of"):
        check_hardware(planned("paper", **shared))


def test_a_tracker_that_is_not_installed_is_an_error(monkeypatch):
    wanted = {"reuse": "none", "trackers": ["wandb"]}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"trackers of preset laptop: .*wandb.* is not installed"):
        check_trackers(planned("laptop", **wanted))
    check_trackers(planned("laptop", reuse="none"))
    check_trackers(planned("laptop-openrlhf", **wanted))  # its environment has it


def test_what_cannot_be_fetched_is_listed(paper, laptop, monkeypatch):
    monkeypatch.setattr("dara.data.network.unreachable", lambda address: "silent")
    with pytest.raises(ConfigurationError) as error:
        check_available(paper)
    text = str(error.value)
    assert text.startswith("preset paper: 15 needed and neither here nor within reach")
    model = "Qwen/Qwen2.5-1.5B-Instruct at revision 989aa7980e4c"
    assert [name for name in ("toolrl_train", "deepscaler_validation", "math500", model) if name not in text] == []
    check_available(laptop)  # generated data and models need nothing
    monkeypatch.setattr("dara.data.network.unreachable", lambda address: None)
    check_available(paper)
    with pytest.raises(ConfigurationError, match=r"preset paper: .*has no data set 'toolrl'; it has .*toolrl_train"):
        check_available(planned("paper", data_local={"toolrl": "rows.parquet"}))


ANSWERS = "#!/bin/sh\n"
REFUSES = "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n"


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


def asked(*arguments: str) -> dict:
    """`set-resources` as Snakemake reads them."""
    return parse_args(["--set-resources", *arguments])[1].set_resources


OURS = "^command line or profile: set-resources.train asks for 8 GPUs, and a training of .* uses 4: `gpus` of its"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("train:gpu=8", OURS),
        ("train:gpu=2", "asks for 2 GPUs, .* uses 8"),
        ("train:gpu='8'", "asks for 8 GPUs"),
        ("train:gres='gpu:a100:4'", "asks for 12 GPUs"),  # gpu of the rule stays
        ("evaluate_part:gpu=0", "evaluate_part asks for 0 GPUs, and benchmark .* needs 2"),
    ],
)
def test_a_profile_gives_jobs_the_gpus_that_they_use(paper, given, message):
    with pytest.raises(ConfigurationError, match=message):
        check_gpus(paper, asked(given))


def test_what_a_profile_may_say_of_gpus(laptop):
    hardware = {"gpus": 4, "evaluation_gpus": 2, "cpus": 8, "memory_gb": 100, "hours": 1}
    same = planned("paper", resources=hardware)
    for given in ("train:gpu=4", "train:gpu=attempt*4", "train:runtime=60", "evaluate_part:gpu=4", "score:gpu=1"):
        check_gpus(same, asked(given))
    check_gpus(same, asked("train:gpu=0", "train:gres='gpu:4'"))  # where --gpus is not known
    check_gpus(laptop, asked("train:gpu=1", "evaluate:gpu=1"))


def test_the_file_of_profiles_that_gives_them_is_named(paper, tmp_path):
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    (tmp_path / "profiles/slurm/site.yaml").write_text("set-resources: {train: {gpu: 8}}")
    with pytest.raises(ConfigurationError, match=r"^profiles/slurm/site\.yaml: set-resources.train asks for 8"):
        check_gpus(replace(paper, root=tmp_path), asked("train:gpu=8"))


# --- the preset that is meant -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlays", [[], [ROOT / "config/presets/laptop.yaml"]])
def test_a_preset_is_chosen_by_its_file(laptop, overlays):
    """`--config preset=smoke` on top of the laptop's file would train the laptop's matrix into results/smoke."""
    values = laptop.configuration.preset.model_dump(mode="json") | {"preset": "smoke"}
    with pytest.raises(ConfigurationError, match=r"choose a preset by its file: --configfile config/presets/smoke"):
        WorkflowPlan.load(ROOT, values, overlays)


def test_a_file_of_another_preset_names_that_preset(laptop):
    assert {"smoke", "paper"} < set(laptop.other_presets) - {"laptop"}
    assert "laptop" not in laptop.other_presets
    with pytest.raises(ConfigurationError, match=r"belongs to preset smoke.* of preset laptop; .*smoke\.yaml -- r"):
        refuse_other_preset(laptop, "smoke", "figures/learning.png")
    with pytest.raises(ConfigurationError, match=r"'figures/learnig\.png' is not .* mean 'figures/learning\.png'\?"):
        refuse_unknown_output(laptop, "figures/learnig.png")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--profile slurm --profile site.yaml", "command line or profile: set-resources: 'trian' is not a rule"),
        ("--profile slurm --configfile keys.yaml", "keys.yaml: is no preset: it has neither"),
        ("-c1 -- results/smoke/report.html", "results/smoke/report.html belongs to preset smoke"),
    ],
)
def test_a_mistake_ends_a_dry_run_with_one_sentence(tmp_path, arguments, message):
    (tmp_path / "site.yaml").write_text("set-resources: {trian: {gpu_model: a100}}\n")
    (tmp_path / "keys.yaml").write_text("hub_mirror: http://mirror.test\n")
    words = [str(tmp_path / word) if word in ("site.yaml", "keys.yaml") else word for word in arguments.split()]
    done = snakemake(ROOT, "-n", "--directory", str(tmp_path), *words)
    assert done.returncode == 1
    assert message in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_a_preset_that_extends_another_is_the_same_for_snakemake_and_dara(tmp_path):
    """With one key of its own: everything else is the other preset's, not the laptop's.

    What it trains is told to `dara clean`, which would take its runs for those of nobody.
    """
    own = tmp_path / "own.yaml"
    own.write_text("extends: smoke\ntrackers: []\n")
    options = ["--directory", str(tmp_path), "--configfile", str(own), "--config", "reuse=none"]
    done = snakemake(ROOT, "-n", *options, "--", "trained")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^configuration +1$", done.stdout, re.M)
    assert re.search(r"^train +4$", done.stdout, re.M)


@pytest.mark.slow
def test_the_workflow_is_a_module_of_another(tmp_path):
    """Which chooses the preset; the rules read their own configuration folder, wherever the other Snakefile is."""
    (tmp_path / "Snakefile").write_text(
        f'configfile: "{ROOT}/config/config.yaml"\n'
        f'configfile: "{ROOT}/config/presets/smoke.yaml"\n'
        f'module dara:\n    snakefile: "{ROOT}/Snakefile"\n    config: config\n'
        "use rule * from dara\n"
    )
    done = snakemake(tmp_path, "-n", "-q", "all")
    assert done.returncode == 0, done.stdout
    chain = {"data": 2, "base_model": 2, "train": 4, "evaluate": 6, "score": 6, "frames": 1}
    assert {name: counts(done.stdout)[name] for name in chain} == chain


# --- tables and figures -----------------------------------------------------------------------------------------------


def test_what_a_preset_does_not_evaluate_is_no_output_of_it(paper, laptop):
    """Validation curves need validation rows, and the table of sets the five sets of the paper."""
    ours, small = paper.outputs, laptop.outputs
    assert {"validation", "math_validation"} <= set(ours.ids("figures"))
    assert "math_step50_sets" in ours.ids("tables")
    assert not {"validation", "math_validation"} & set(small.ids("figures"))
    assert "math_step50_sets" not in small.ids("tables")
    assert {"tool_rates", "math_rates"} <= set(ours.ids("tables")) & set(small.ids("tables"))
    assert "results/paper/figures/math_validation.svg" in ours.files
    assert not [file for file in small.files if "validation" in file]
    with pytest.raises(ConfigurationError, match=r"preset laptop has no figures\.validation; it has overview"):
        small.owner("figures", "validation")
    assert "validation" in paper.published.ids("figures")
    assert set(CURVES) <= {*FIGURES}


def test_the_paper_preset_draws_every_published_table_and_a_shared_id_is_one_module(paper):
    ours, published = paper.outputs.experiments, Outputs.of_published(ROOT, Path("results/published")).experiments
    assert set(ours) == set(published)
    assert ours["math_main"].thresholds == {"length": (0.8, 0.9, 0.95, 0.97, 0.98, 0.99)}
    for name, theirs in published.items():
        assert {*map(table_name, theirs.tables.values())} <= {*map(table_name, ours[name].tables.values())}, name
        assert [id for id, made in theirs.figures.items() if ours[name].figures.get(id, made) != made] == []
        for output, made in theirs.tables.items():
            drawn = ours[name].tables.get(output, made)
            assert table_name(drawn) == table_name(made)
            if isinstance(made, ScoreTable):
                assert drawn.title == made.title
                assert made.metrics == {metric: drawn.metrics[metric] for metric in made.metrics}
        for reward, levels in theirs.thresholds.items():  # a published crossing has a threshold of ours
            assert set(levels) <= set(ours[name].thresholds[reward]), (name, reward)
