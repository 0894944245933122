"""What `dara plan` says of a preset."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dara.cli import main
from dara.config import Resources
from dara.loading import ConfigurationError, load_preset
from dara.plan import WorkflowPlan
from dara.profiles import set_resources
from dara.status import HEADERS, Cost, _text_table, cost, plan_text
from project import ROOT


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    """A preset's workflow in an empty directory, with other settings of the preset on request."""

    def of(preset, **changes):
        configuration = load_preset(ROOT, ROOT / "config" / "presets" / f"{preset}.yaml")
        changed = configuration.preset.model_copy(update=changes)
        return WorkflowPlan(replace(configuration, preset=changed), ROOT)

    monkeypatch.chdir(tmp_path)
    return of


def test_the_paper_preset_has_the_runs_of_every_experiment(workflow):
    flow = workflow("paper")
    counts = {name: cost(flow, runs).runs for name, runs in flow.matrix.experiments.items()}
    assert counts == {
        "tool_main": 6 * 5 * 2,
        "group_size": 4 * 4 * 3,
        "three_rewards": 4 * 3,
        "math_main": 6 * 3,
        "fixed_weight": 4,
        "extended": 4,
    }
    total = cost(flow, list(flow.matrix.runs))
    assert total.runs == total.train == 60 + 36 + 12 + 18 + 2 + 2  # shared: 12 of group_size, 2 of the last two
    assert (total.cached, total.done) == (0, 0)
    assert total.evaluate == total.runs - 36 + 6  # without those of group_size alone; with base models


def test_hours_and_disk_come_from_the_resources_of_the_models(workflow):
    flow = workflow("paper", resources=Resources(gpus=4, hours=2.5, disk_gb=80, evaluation_gpus=2, evaluation_hours=3))
    found = cost(flow, flow.matrix.experiments["three_rewards"])
    assert found.training_hours == 12 * 4 * 2.5
    assert found.disk == 12 * 80
    assert found.evaluation_hours == 12 * 2 * 3 + 2 * 3  # a job evaluates the one checkpoint, another the base model
    small = [run for run in flow.matrix.experiments["tool_main"] if "1.5b" in run]
    assert cost(flow, small).evaluation_hours == 30 * 2 * 3 * 5 + 2 * 3  # five jobs share the ten checkpoints of a run


def test_what_no_experiment_asks_for_is_not_evaluated_and_costs_nothing(workflow):
    flow = workflow("paper")
    sizes = flow.matrix.experiments["group_size"]
    alone = [run for run in sizes if run not in flow.matrix.experiments["tool_main"]]
    assert len(alone) == 36
    found = cost(flow, alone)
    assert (found.train, found.evaluate, found.evaluation_hours) == (36, 1, 3)  # the base model, which tool_main needs
    assert found.jobs == 36 + 2 * 2
    before = 723  # GPU hours when every checkpoint of every run was evaluated
    assert cost(flow, sizes).evaluation_hours == before - 36 * 5 * 3
    matrices = flow.configuration.preset.experiments
    every = {
        name: matrix.model_copy(update={"evaluate_at": None, "benchmarks": None}) for name, matrix in matrices.items()
    }
    both = [flow, workflow("paper", experiments=every)]
    asked, whole = (cost(one, [*one.matrix.runs]).evaluation_hours for one in both)
    saved = (
        36 * 5 * 3 + 12 * 4 * 3 + 2 * 4 * 2 * 6 + 2 * 4 * 2 * 8
    )  # group sizes, three rewards, fixed weights, thinking
    assert whole - asked == saved


def test_hours_of_each_model(workflow):
    flow = workflow("paper")
    small, large = (
        [run for run in flow.matrix.experiments["tool_main"] if flow.matrix.runs[run].model.name == name]
        for name in ("qwen2.5-1.5b-instruct", "qwen2.5-3b-instruct")
    )
    assert 10 <= cost(flow, small).training_hours / len(small) <= 12  # the authors: 2.5 h on 4 GPUs
    assert 18 <= cost(flow, large).training_hours / len(large) <= 24  # 4 to 5 h
    assert {flow.resources(run).gpus for run in flow.matrix.experiments["math_main"]} == {8}


def test_what_is_trained_or_scored_is_not_counted_again(workflow):
    flow = workflow("laptop")
    runs = flow.matrix.experiments["tool_main"]
    assert cost(flow, runs) == Cost(12, 0, 0, 12, 13, 12 + 2 * 13, 0.0, 0.0, 12.0)
    write(flow.manifest(runs[0]))
    write(flow.score_files(runs[0])[0], [*range(10, 81, 10)])
    write(flow.manifest(runs[1]))
    assert cost(flow, runs) == Cost(12, 0, 2, 10, 12, 10 + 2 * 12, 0.0, 0.0, 10.0)


def test_without_the_cache_everything_is_trained(workflow, monkeypatch):
    monkeypatch.chdir(ROOT)
    flow = workflow("laptop-openrlhf", reuse="none")
    assert cost(flow, list(flow.matrix.runs)).cached == 0
    assert "cached: none is taken (reuse: none)" in plan_text(flow, "all")
    assert "cached: taken from results/cached (reuse: matching)" in plan_text(workflow("laptop"), "all")


def profile(tmp_path, text, name="site.yaml"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_profile_changes_the_hours_of_its_rules(workflow, tmp_path):
    """12 runs of 4 GPUs x 2.5 h; five shares each of 2 GPUs x 3 h, and a job that gathers them; one base model."""
    hardware = Resources(gpus=4, hours=2.5, disk_gb=80, evaluation_gpus=2, evaluation_hours=3)
    flow = workflow("paper", resources=hardware)
    runs = flow.matrix.experiments["tool_main"][:12]

    def hours(text):
        found = cost(flow, runs, set_resources([profile(tmp_path, text)], ROOT))
        return found.training_hours, found.evaluation_hours

    before = (12 * 4 * 2.5, 12 * 5 * 2 * 3 + 2 * 3)
    assert hours("jobs: 64") == before
    assert hours("set-resources: {train: {slurm_partition: gpu}, score: {runtime: 9}}") == before
    assert hours("set-resources: {train: {runtime: 600}}") == (12 * 4 * 10, before[1])
    assert hours("set-resources: {train: {gpu: 8, runtime: 10h}}") == (12 * 8 * 10, before[1])
    assert hours("set-resources: {evaluate_part: {runtime: 30}}") == (before[0], 12 * 5 * 2 * 0.5 + 2 * 3)
    # gpu of `evaluate` is asked for by the jobs that gather too: an hour each.
    assert hours("set-resources: {evaluate: {gpu: 1}}") == (before[0], 12 * (5 * 2 * 3 + 1) + 1 * 3)


def test_a_later_profile_takes_the_place_of_the_whole_key(tmp_path):
    first = profile(tmp_path, "set-resources: {train: {runtime: 600}, evaluate: {gpu: '1'}}", "cluster/config.yaml")
    second = profile(tmp_path, "set-resources: {train: {gpu: 8}}")
    third = profile(tmp_path, "jobs: 3", "third.yaml")
    assert set_resources([first.parent], ROOT) == {"train": {"runtime": 600}, "evaluate": {"gpu": 1}}
    assert set_resources([first.parent, second, third], ROOT) == {"train": {"gpu": 8}}
    assert set_resources([], ROOT) == {}


def test_the_profile_of_the_repository_and_its_site_file_can_be_counted(workflow):
    site = ROOT / "profiles/slurm/site.example.yaml"
    text = plan_text(workflow("paper"), "three_rewards", [ROOT / "slurm", site])
    assert text.split("\n\n")[1] == plan_text(workflow("paper"), "three_rewards").split("\n\n")[1]
    assert f"set-resources of {site}" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "set-resources: {train: {runtime: attempt * 60}}",
            r"train\.runtime: must be a number of minutes.*'attempt \* 60'",
        ),
        ("set-resources: [train:runtime=60]", r"site\.yaml: set-resources: must map rules to resources"),
        ("set-resorces: {train: {gpu: 4}}", r"site\.yaml: 'set-resorces' .*did you mean 'set-resources'"),
        ("set-resources: {train: {gpu: [4]}}", r"train\.gpu: must be a number,.*\[4\]"),
    ],
)
def test_what_cannot_be_counted_is_an_error(tmp_path, text, message):
    with pytest.raises(ConfigurationError, match=message):
        set_resources([profile(tmp_path, text)], ROOT)


def test_a_rule_that_is_not_there_is_an_error(workflow, tmp_path):
    with pytest.raises(ConfigurationError, match=r"set-resources: 'trian' is not a rule .*did you mean 'train'"):
        plan_text(workflow("paper"), "all", [profile(tmp_path, "set-resources: {trian: {runtime: 60}}")])


def test_the_command_takes_profiles_and_reuse_from_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    site = profile(tmp_path, "set-resources: {train: {runtime: 600}}")

    def planned(*words):
        main(["--root", str(ROOT), "plan", *words])
        return capsys.readouterr().out.splitlines()

    shown = planned("three_rewards", "--preset", "paper", "--profile", "slurm", "--workflow-profile", site.name)
    assert shown[3].split()[7] == str(12 * 4 * 10)
    assert f"those of config/, set-resources of slurm, set-resources of {site}." in "\n".join(shown)
    assert planned("--preset", "laptop")[-7].split()[-8:-5] == ["24", "0", "0"]
    assert planned("--preset", "laptop", "--reuse", "none")[-7].split()[-8:-4] == ["0", "0", "24", "26"]


def test_a_profile_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere: the file does not exist"):
        set_resources([tmp_path / "nowhere"], ROOT)


def test_validation_alone_costs_no_gpu_hours(workflow):
    flow = workflow("paper")
    run = flow.matrix.experiments["tool_main"][0]
    before = cost(flow, [run])
    write(flow.score_files(run)[0], [*range(10, 101, 10)])
    after = cost(flow, [run])
    assert after.evaluate == before.evaluate == 2
    assert before.jobs - after.jobs == 5 + 1 + 1  # shares, the job that gathers them, scoring
    assert after.evaluation_hours == before.evaluation_hours - 1 * 3 * 5


def test_cached_runs_are_neither_trained_nor_evaluated(workflow, monkeypatch):
    monkeypatch.chdir(ROOT)
    flow = workflow("laptop", reuse="matching")
    found = cost(flow, list(flow.matrix.runs))
    assert found.cached == found.runs == 24
    assert (found.train, found.evaluate, found.disk) == (0, 0, 0.0)


def test_the_table_of_all_experiments_ends_with_a_total(workflow):
    text = plan_text(workflow("paper"), "all")
    lines = text.split("\n\n")[1].splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "experiment", "tool_main", "group_size", "three_rewards", "math_main", "fixed_weight", "extended",
        "total, each run once",
    ]  # fmt: skip
    assert len({len(line) for line in lines}) == 1  # aligned
    assert lines[-1].split()[4] == "130"


def test_one_experiment_has_no_total(workflow):
    text = plan_text(workflow("laptop"), "math_main")
    assert text.startswith("Preset laptop, math_main:")
    assert len(text.split("\n\n")[1].splitlines()) == 2
    assert "total" not in text


def test_an_unknown_target_is_an_error_that_names_the_nearest(workflow):
    with pytest.raises(ConfigurationError, match=r"'math_mian' is not an experiment of preset laptop .*'math_main'"):
        plan_text(workflow("laptop"), "math_mian")


def test_numbers_of_the_table():
    lines = _text_table([("one", Cost(1, 2, 3, 4, 5, 6, 1234.4, 0.0, 7.0))]).splitlines()
    assert lines[0].split("  ")[0] == HEADERS[0]
    assert lines[1].split() == ["one", "1", "2", "3", "4", "5", "6", "1,234", "0", "7"]


def write(path, steps=()):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"steps": list(steps)}), encoding="utf-8")
