"""What the rules are told about jobs: environments, hardware, shares of an evaluation, and what must be there before."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from dara.loading import ConfigurationError, merge, read_yaml
from dara.plan import WorkflowPlan
from dara.preflight import check_available, check_environments, check_hardware, check_trackers
from dara.runs import evaluation_id
from project import ROOT


def flow(preset: str, **changes) -> WorkflowPlan:
    files = [ROOT / "config" / "config.yaml", ROOT / "config" / "presets" / f"{preset}.yaml"]
    values = merge(merge(read_yaml(files[0]), read_yaml(files[1])), changes)
    return WorkflowPlan.load(ROOT, values, files[1:])


@pytest.fixture(scope="module")
def paper() -> WorkflowPlan:
    return flow("paper")


def test_jobs_share_the_checkpoints_of_a_run(paper):
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
    laptop = flow("laptop")
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


def test_hardware_is_that_of_the_model_or_of_the_preset(paper):
    small, large = (next(run for run in paper.matrix.runs if size in run) for size in ("qwen2.5-1.5b", "qwen3-4b"))
    assert (paper.resources(small).gpus, paper.resources(large).gpus) == (4, 8)
    own = flow("laptop-openrlhf")
    assert own.resources(next(iter(own.matrix.runs))).memory_mb == 6000
    options = shlex.split(own.training_options)
    assert options[:2] == ["--environment", ".venv-openrlhf"]
    assert json.loads(options[options.index("--resources") + 1])["memory_gb"] == 6.0
    assert flow("laptop", trackers=["tensorboard", "wandb"]).training_options == "--trackers tensorboard,wandb"
    assert flow("laptop").training_options == ""


def test_an_environment_that_is_not_there_is_named():
    ready = flow("laptop")
    check_environments(ready)
    assert ready.evaluation_python == "python"
    missing = flow("laptop-openrlhf", reuse="none", training_environment=".venv-nowhere")
    with pytest.raises(
        ConfigurationError, match=r"training_environment .*\.venv-nowhere is not there; make it with `make"
    ):
        check_environments(missing)


def test_hardware_that_cannot_train_or_evaluate_is_an_error_before_any_job(paper):
    check_hardware(paper)
    check_hardware(flow("laptop"))
    three = {"gpus": 3, "evaluation_gpus": 1, "cpus": 8, "memory_gb": 100, "hours": 1}
    with pytest.raises(ConfigurationError, match=r"preset paper: .* cannot be divided among 3 GPUs"):
        check_hardware(flow("paper", resources=three))
    shared = {"tasks": {"math": {"benchmark": {"tensor_parallel": 4}}}}
    with pytest.raises(ConfigurationError, match=r"benchmark math_five has tensor_parallel 4, and an evaluation of"):
        check_hardware(flow("paper", **shared))


def test_a_training_on_an_existing_ray_cluster_asks_for_no_gpu_of_its_own(paper):
    run = next(run for run in paper.matrix.runs if "qwen2.5-1.5b" in run)
    assert paper.hardware("train", run).gpus == 4
    assert flow("paper", ray_address="head:6379").hardware("train", run).gpus == 0


def test_a_preset_is_chosen_by_its_file():
    """`--config preset=smoke` on top of the laptop's file would train the laptop's matrix into results/smoke."""
    files = [ROOT / "config" / "config.yaml", ROOT / "config" / "presets" / "laptop.yaml"]
    values = merge(read_yaml(files[0]), read_yaml(files[1])) | {"preset": "smoke"}
    for overlays in (files[1:], []):
        with pytest.raises(ConfigurationError, match=r"choose a preset by its file: --configfile config/presets/smoke"):
            WorkflowPlan.load(ROOT, values, overlays)


def test_a_tracker_that_is_not_installed_is_an_error_before_any_job(monkeypatch):
    wanted = {"reuse": "none", "trackers": ["wandb"]}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"trackers of preset laptop: .*wandb.* is not installed"):
        check_trackers(flow("laptop", **wanted))
    check_trackers(flow("laptop", reuse="none"))
    check_trackers(flow("laptop-openrlhf", **wanted))  # its environment has it


def test_what_cannot_be_fetched_is_listed_before_any_job(paper, monkeypatch):
    monkeypatch.setattr("dara.data.network.unreachable", lambda address: "silent")
    with pytest.raises(ConfigurationError) as error:
        check_available(paper)
    text = str(error.value)
    assert text.startswith("preset paper: 15 needed and neither here nor within reach")
    for name in (
        "toolrl_train",
        "deepscaler_validation",
        "math500",
        "Qwen/Qwen2.5-1.5B-Instruct at revision 989aa7980e4c",
    ):
        assert name in text
    check_available(flow("laptop"))  # generated data and models need nothing


def test_a_local_file_of_an_unknown_data_set_is_an_error():
    with pytest.raises(ConfigurationError, match=r"preset paper: .*has no data set 'toolrl'; it has .*toolrl_train"):
        check_available(flow("paper", data_local={"toolrl": "rows.parquet"}))


def test_what_can_be_fetched_is_no_error(paper, monkeypatch):
    monkeypatch.setattr("dara.data.network.unreachable", lambda address: None)
    check_available(paper)
