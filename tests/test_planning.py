"""What `dara plan` says of a preset."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dara.config import Resources
from dara.dag import Workflow
from dara.loading import ConfigurationError, load_preset
from dara.planning import HEADERS, Cost, cost, plan, text_table

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    """A preset's workflow in an empty directory, with other settings of the preset on request."""

    def of(preset, **changes):
        configuration = load_preset(ROOT, ROOT / "config" / "presets" / f"{preset}.yaml")
        changed = configuration.preset.model_copy(update=changes)
        return Workflow(replace(configuration, preset=changed), ROOT)

    monkeypatch.chdir(tmp_path)
    return of


def test_the_paper_preset_has_the_runs_of_every_experiment(workflow):
    flow = workflow("paper")
    counts = {name: cost(flow, runs).runs for name, runs in flow.plan.experiments.items()}
    assert counts == {
        "tool_main": 6 * 5 * 2,
        "group_size": 4 * 4 * 3,
        "three_rewards": 4 * 3,
        "math_main": 6 * 3,
        "fixed_weight": 4,
        "extended": 4,
    }
    total = cost(flow, list(flow.plan.runs))
    assert total.runs == total.train == 60 + 36 + 12 + 18 + 2 + 2  # shared: 12 of group_size, 2 of the last two
    assert (total.cached, total.done) == (0, 0)
    assert total.evaluate == total.runs + 6  # base models


def test_hours_and_disk_come_from_the_resources_of_the_models(workflow):
    flow = workflow("paper", resources=Resources(gpus=4, hours=2.5, disk_gb=80, evaluation_gpus=2, evaluation_hours=3))
    found = cost(flow, flow.plan.experiments["three_rewards"])
    assert found.training_hours == 12 * 4 * 2.5
    assert found.disk == 12 * 80
    # Five jobs share the ten checkpoints of a run; the base model is one job.
    assert found.evaluation_hours == 12 * 2 * 3 * 5 + 2 * 3


def test_hours_of_each_model(workflow):
    flow = workflow("paper")
    small, large = (
        [run for run in flow.plan.experiments["tool_main"] if flow.plan.runs[run].model.name == name]
        for name in ("qwen2.5-1.5b-instruct", "qwen2.5-3b-instruct")
    )
    assert 10 <= cost(flow, small).training_hours / len(small) <= 12  # the authors: 2.5 h on 4 GPUs
    assert 18 <= cost(flow, large).training_hours / len(large) <= 24  # 4 to 5 h
    assert {flow.resources(run).gpus for run in flow.plan.experiments["math_main"]} == {8}


def test_what_is_trained_or_scored_is_not_counted_again(workflow):
    flow = workflow("laptop")
    runs = flow.plan.experiments["tool_main"]
    assert cost(flow, runs) == Cost(12, 0, 0, 12, 13, 12 + 2 * 13, 0.0, 0.0, 12.0)
    write(flow.run_file(runs[0], "manifest.json"))
    write(flow.score_files(runs[0])[0])
    write(flow.run_file(runs[1], "manifest.json"))
    assert cost(flow, runs) == Cost(12, 0, 2, 10, 12, 10 + 2 * 12, 0.0, 0.0, 10.0)


def test_validation_alone_costs_no_gpu_hours(workflow):
    flow = workflow("paper")
    run = flow.plan.experiments["three_rewards"][0]
    before = cost(flow, [run])
    write(flow.score_files(run)[0])
    after = cost(flow, [run])
    assert after.evaluate == before.evaluate == 2
    assert before.jobs - after.jobs == 5 + 1 + 1  # shares, the job that gathers them, scoring
    assert after.evaluation_hours == before.evaluation_hours - 1 * 3 * 5


def test_cached_runs_are_neither_trained_nor_evaluated(workflow, monkeypatch):
    monkeypatch.chdir(ROOT)
    flow = workflow("laptop", reuse="matching")
    found = cost(flow, list(flow.plan.runs))
    assert found.cached == found.runs == 24
    assert (found.train, found.evaluate, found.disk) == (0, 0, 0.0)


def test_the_table_of_all_experiments_ends_with_a_total(workflow):
    text = plan(workflow("paper"), "all")
    lines = text.split("\n\n")[1].splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "experiment", "tool_main", "group_size", "three_rewards", "math_main", "fixed_weight", "extended",
        "total, each run once",
    ]  # fmt: skip
    assert len({len(line) for line in lines}) == 1  # aligned
    assert lines[-1].split()[4] == "130"


def test_one_experiment_has_no_total(workflow):
    text = plan(workflow("laptop"), "math_main")
    assert text.startswith("Preset laptop, math_main:")
    assert len(text.split("\n\n")[1].splitlines()) == 2
    assert "total" not in text


def test_an_unknown_target_is_an_error_that_names_the_nearest(workflow):
    with pytest.raises(ConfigurationError, match=r"'math_mian' is not an experiment of preset laptop .*'math_main'"):
        plan(workflow("laptop"), "math_mian")


def test_numbers_of_the_table():
    lines = text_table([("one", Cost(1, 2, 3, 4, 5, 6, 1234.4, 0.0, 7.0))]).splitlines()
    assert lines[0].split("  ")[0] == HEADERS[0]
    assert lines[1].split() == ["one", "1", "2", "3", "4", "5", "6", "1,234", "0", "7"]


def write(path):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({}), encoding="utf-8")
