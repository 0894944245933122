"""What is evaluated at which steps: what experiments ask for, together where they share a run."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from dara.analysis.figures import draw_figure
from dara.analysis.tables import build_table
from dara.config import Configuration
from dara.evaluation.records import SCORES, responses_path
from dara.loading import ConfigurationError, load_preset
from dara.outputs import Outputs
from dara.plan import WorkflowPlan
from dara.runs import RunMatrix, base_id, evaluation_id, plan_runs
from project import ROOT
from synthetic import simulate, view

EVERY = tuple(range(10, 101, 10))


def preset(name: str) -> Configuration:
    return load_preset(ROOT, ROOT / "config" / "presets" / f"{name}.yaml")


def asking(configuration: Configuration, **asked: dict) -> Configuration:
    """The preset with these experiments alone, which ask for something else."""
    matrices = configuration.preset.experiments
    chosen = {name: matrices[name].model_copy(update=changes) for name, changes in asked.items()}
    return replace(configuration, preset=configuration.preset.model_copy(update={"experiments": chosen}))


def steps_of(plan: RunMatrix, run: str) -> dict[str, tuple[int, ...]]:
    return {benchmark.name: steps for benchmark, steps in plan.evaluations[run].items()}


def alone(plan: RunMatrix, name: str, others: Iterable[str]) -> list[str]:
    """The runs that only this experiment has."""
    shared = {run for other in others for run in plan.experiments[other]}
    return [run for run in plan.experiments[name] if run not in shared]


def test_the_paper_preset_evaluates_what_the_paper_shows():
    plan = plan_runs(preset("paper"))
    tool, math = (("bfcl_v4", "toolrl_validation"), ("math_five", "deepscaler_validation"))
    expected = {
        **dict.fromkeys(plan.experiments["tool_main"], dict.fromkeys(tool, EVERY)),
        **{key: {} for key in alone(plan, "group_size", ["tool_main"])},
        **dict.fromkeys(plan.experiments["three_rewards"], dict.fromkeys(tool, (100,))),
        **dict.fromkeys(alone(plan, "fixed_weight", ["math_main"]), dict.fromkeys(math, (100,))),
        **dict.fromkeys(alone(plan, "extended", ["math_main"]), dict.fromkeys(math, (100,))),
        **dict.fromkeys(plan.experiments["math_main"], dict.fromkeys(math, EVERY)),
    }
    assert {run: steps_of(plan, run) for run in plan.runs} == expected
    bases = {base_id(spec.model): spec.task for spec in plan.runs.values()}
    for base, task in bases.items():
        assert steps_of(plan, base) == dict.fromkeys(tool if task == "tool_calling" else math, (0,))


def test_other_presets_evaluate_every_checkpoint():
    for name in ("laptop", "laptop-study", "laptop-openrlhf", "smoke"):
        plan = plan_runs(preset(name))
        for run, spec in plan.runs.items():
            assert [*plan.evaluations[run].values()] == [tuple(spec.checkpoint_steps)]


def test_a_run_of_two_experiments_is_evaluated_where_either_asks_for_it():
    changes = {
        "math_main": {"evaluate_at": (50, 110), "benchmarks": ("laptop_math",)},
        "fixed_weight": {"evaluate_at": (100,)},
    }
    configuration = asking(preset("laptop-study"), **changes)
    plan = plan_runs(configuration)
    both = {*plan.experiments["math_main"]} & {*plan.experiments["fixed_weight"]}
    assert len(both) == 20
    asked = {run: steps_of(plan, run)["laptop_math"] for run in plan.runs}
    assert {run for run, steps in asked.items() if steps == (50, 100, 110)} == both
    assert set(asked.values()) == {(50, 100, 110), (50, 110)}
    plan = plan_runs(asking(configuration, math_main={"benchmarks": ()}, fixed_weight={}))
    assert {run for run in plan.runs if plan.evaluations[run]} == both
    assert {steps_of(plan, run)["laptop_math"] for run in both} == {(100,)}


def test_a_base_model_from_which_nothing_evaluated_starts_is_not_evaluated():
    configuration = asking(preset("laptop"), tool_main={}, math_main={"benchmarks": ()})
    flow = WorkflowPlan(configuration, ROOT)
    assert {name.split("-")[0] for name in flow.evaluated} == {"base", "tool_calling"}
    assert len([name for name in flow.evaluated if name in flow.bases]) == 1
    assert len(flow.bases) == 2
    assert not any("math" in file for file in flow.scored)


def test_a_benchmark_is_chosen_apart_from_the_validation_rows():
    plan = plan_runs(asking(preset("paper"), tool_main={"benchmarks": ("toolrl_validation",), "evaluate_at": (50,)}))
    assert {json.dumps(steps_of(plan, run)) for run in plan.runs} == {'{"toolrl_validation": [50]}'}


def test_only_what_an_experiment_evaluates_is_drawn():
    paper = Outputs.of_preset(preset("paper"), ROOT, Path("results/paper")).experiments
    study = Outputs.of_preset(preset("laptop-study"), ROOT, Path("results/study")).experiments
    assert "group_size_scores" in study["group_size"].tables
    assert [*paper["group_size"].tables.values()] == ["crossings", "comparisons", "runs"]
    assert [*paper["group_size"].figures] == [*study["group_size"].figures]  # of training alone
    assert {"fixed_weight_scores", "fixed_weight_score_intervals"} <= set(paper["fixed_weight"].tables)
    assert "fixed_weight_checkpoints" in study["fixed_weight"].figures
    assert "fixed_weight_checkpoints" not in paper["fixed_weight"].figures  # of one step
    assert {"math_checkpoints", "math_validation"} <= set(paper["math_main"].figures)


def test_only_validation_has_no_tables_of_scores_and_no_curves_of_the_benchmark():
    asked = asking(preset("paper"), tool_main={"benchmarks": ("toolrl_validation",)})
    drawn = Outputs.of_preset(asked, ROOT, Path("results")).experiments["tool_main"]
    assert set(drawn.tables.values()) == {"crossings", "comparisons", "hyperparameters", "runs"}
    assert set(drawn.side_by_side.values()) == {"side_by_side", "hyperparameters"}
    assert "validation" in drawn.figures
    assert "checkpoints" not in drawn.figures


@pytest.mark.parametrize(("name", "task"), [("tool_main", "tool_calling"), ("math_main", "math")])
def test_what_is_left_can_be_drawn_without_any_score(name, task):
    asked = asking(preset("laptop"), **{name: {"benchmarks": ()}})
    left = Outputs.of_preset(asked, ROOT, Path("results")).experiments[name]
    frames = simulate(task)
    shown = view(frames | {each: frames[each].iloc[:0] for each in ("checkpoint_scores", "score_intervals")}, left)
    for entry in {*left.tables.values()} - {"hyperparameters"}:
        assert len(build_table(entry, shown).frame)
    for module in {*left.figures.values()} - {"density_energy"}:  # of a metric that made-up frames lack
        assert draw_figure(module, shown).axes


@pytest.fixture
def flow(tmp_path, monkeypatch) -> WorkflowPlan:
    """A workflow in an empty directory whose runs are evaluated at steps 50 and 100 by three jobs at most."""
    monkeypatch.chdir(tmp_path)
    configuration = asking(preset("paper"), tool_main={"evaluate_at": (50, 100)})
    jobs = configuration.preset.model_copy(update={"evaluation_jobs": 3})
    return WorkflowPlan(replace(configuration, preset=jobs), ROOT)


def test_jobs_share_the_steps_that_are_asked_for_and_those_that_are_there_already(flow):
    run = next(iter(flow.matrix.runs))
    settings, validation = flow.benchmarks_of(run)
    bfcl = evaluation_id(settings)
    assert flow.steps(run, bfcl) == [50, 100]
    assert len(flow.parts(run, bfcl)) == 2
    for step in (20, 100):
        made = responses_path(flow.paths.evaluation(run, settings), step)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.touch()
    assert flow.steps(run, bfcl) == [20, 50, 100]
    assert len(flow.parts(run, bfcl)) == 3
    assert flow.steps(run, evaluation_id(validation)) == [50, 100]
    assert flow.parts(run, evaluation_id(validation)) == []
    with pytest.raises(
        ConfigurationError, match=f"'math_five' is not a benchmark on which this preset evaluates {run}"
    ):
        flow.steps(run, "math_five")


def test_scores_are_there_when_all_steps_are_that_a_run_can_have(flow):
    run, benchmark = next(iter(flow.matrix.runs)), flow.benchmarks_of(next(iter(flow.matrix.runs)))[0]
    scores, manifest = flow.paths.evaluation(run, benchmark), Path(flow.manifest(run))
    for path in (scores, manifest.parent):
        path.mkdir(parents=True)
    assert not flow.is_scored(run, benchmark)
    (scores / SCORES).write_text('{"steps": [50]}')
    assert not flow.is_scored(run, benchmark)
    manifest.write_text('{"outcome": "diverged", "checkpoints": {"10": {}, "50": {}}}')
    assert flow.is_scored(run, benchmark)
