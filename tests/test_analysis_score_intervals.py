"""Scores at the end with their intervals: which runs, at which step, and that the numbers are those of the functions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dara.analysis.intervals import hierarchical_interval, metric_differences, t_interval
from dara.analysis.records import Run
from dara.analysis.scores import score_intervals_frame
from dara.evaluation.grading import read_scores, summarise
from evaluation_fakes import write_scores

COLUMNS = "case,category,sample,strict,strict_or_numeric,math_verify,exceed,joint,truncated,n_tokens,outcome"


class Study:
    """Runs with score files; `right` are the questions (of 12) that a checkpoint answers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: dict[str, Run] = {}

    def add(self, method: str, seed: int, right: dict[int, int], outcome="completed", engine="trl", name=None) -> None:
        name = name or f"{method}-{seed}"
        named = {"model": SimpleNamespace(name="tiny"), "method": SimpleNamespace(name=method), "engine": engine}
        spec = SimpleNamespace(task="math", group_size=8, seed=seed, repeat=0, steps=20, **named)
        self.runs[name] = Run(name, self.root / name, spec, outcome, 20, dict.fromkeys(right))
        rows = [
            f"{step},c{q:02},laptop_math,0,{int(q < count)},{int(q < count)},{int(q < count)},0,1,0,9,scored"
            for step, count in right.items()
            for q in range(12)
        ]
        write_scores(self.root / name, "\n".join([f"step,{COLUMNS}", *rows]) + "\n", {})

    def frame(self, experiments: dict | None = None, asked: dict | None = None, at: tuple[int, ...] = ()):
        directories = {name: {"laptop_math": self.root / name} for name in self.runs}
        evaluations = {name: {"laptop_math": tuple(run.sums)} for name, run in self.runs.items()} | (asked or {})
        experiments = experiments or {"main": list(self.runs)}
        frame = score_intervals_frame(self.runs, directories, experiments, evaluations, {"main": at})
        return frame.set_index(["experiment", "metric", "method", "baseline"])

    def metrics(self, method: str, step: int, metric: str = "acc") -> dict:
        found = {}
        for name, run in self.runs.items():
            if run.spec.method.name == method and run.spec.engine == "trl":
                scores = read_scores(self.root / name, "laptop_math", step)
                found[run.spec.seed, 0] = summarise(scores, "laptop_math")[metric]
        return found


@pytest.fixture
def study(tmp_path) -> Study:
    made = Study(tmp_path)
    for seed, ours, theirs in ((100, 6, 5), (101, 9, 4), (102, 3, 6)):
        made.add("dara_sym", seed, {10: 1, 20: ours})
        made.add("gdpo", seed, {10: 2, 20: theirs})
    return made


def test_a_score_has_the_mean_over_seeds_and_both_intervals(study):
    row = study.frame().loc[("main", "acc", "dara_sym", "")]
    assert (row["value"], row["step"], row["n_seeds"], row["n_questions"]) == (0.5, 20, 3, 12)
    over_seeds = t_interval([0.25, 0.5, 0.75])
    assert (row["t_low"], row["t_high"]) == (pytest.approx(over_seeds.low), pytest.approx(over_seeds.high))
    key = ("score_intervals", "math", "laptop_math", "tiny", "G=8", "step 20", "acc", "dara_sym")
    both = hierarchical_interval(study.metrics("dara_sym", 20), key)
    assert (row["low"], row["high"]) == (pytest.approx(both.low), pytest.approx(both.high))
    assert row["low"] < 0.25 < 0.75 < row["high"]  # wider than the seeds alone


def test_a_difference_is_paired_in_seeds_and_questions(study):
    frame = study.frame()
    row = frame.loc[("main", "acc", "dara_sym", "gdpo")]
    assert row["value"] == pytest.approx((1 + 5 - 3) / 36)
    over_seeds = t_interval([1 / 12, 5 / 12, -3 / 12])
    assert (row["t_low"], row["t_high"]) == (pytest.approx(over_seeds.low), pytest.approx(over_seeds.high))
    key = ("score_intervals", "math", "laptop_math", "tiny", "G=8", "step 20", "acc", "dara_sym-gdpo")
    paired = metric_differences(study.metrics("dara_sym", 20), study.metrics("gdpo", 20))
    both = hierarchical_interval(paired, key)
    assert (row["low"], row["high"]) == (pytest.approx(both.low), pytest.approx(both.high))
    assert ("main", "acc", "gdpo", "dara_sym") not in frame.index
    equal = frame.loc[("main", "exceed", "dara_sym", "gdpo")]
    assert (equal["value"], equal["low"], equal["high"]) == (0, 0, 0)


def test_runs_that_diverged_or_are_missing_are_left_out_and_the_step_is_common_to_the_others(study):
    study.add("grpo", 100, {10: 12}, outcome="diverged")
    study.add("grpo", 101, {}, outcome=None)
    study.add("dara_asym", 100, {10: 12})
    frame = study.frame()
    assert "grpo" not in frame.index.get_level_values("method")
    assert set(frame["step"]) == {10}
    row = frame.loc[("main", "acc", "dara_asym", "")]
    assert (row["value"], row["n_seeds"]) == (1, 1)
    assert row[["t_low", "t_high"]].isna().all()
    assert (row["low"], row["high"]) == (1, 1)  # over its questions, which are all right


def test_of_one_seed_the_interval_is_over_the_questions_of_the_pair(study):
    study.runs = {name: run for name, run in study.runs.items() if run.spec.seed == 101}
    row = study.frame().loc[("main", "acc", "dara_sym", "gdpo")]
    assert (row["value"], row["n_seeds"]) == (pytest.approx(5 / 12), 1)
    # Five of the twelve questions differ: a binomial share, in twelfths.
    assert 0 < row["low"] < 0.25
    assert 0.6 < row["high"] < 0.8


def test_the_papers_steps_are_compared_beside_the_last(study):
    frame = study.frame(at=(60,))  # of 100: the step nearest to 12 of 20
    assert set(frame["step"]) == {10, 20}
    first = frame[frame["step"] == 10].loc[("main", "acc", "dara_sym", "gdpo")]
    assert first["value"] == pytest.approx(-1 / 12)
    assert frame[frame["step"] == 20].equals(study.frame())
    assert set(study.frame(at=(100,))["step"]) == {20}


def test_runs_without_a_common_step_have_no_row(study):
    study.add("grpo", 100, {15: 3})
    assert study.frame().empty


def test_the_step_is_the_last_at_which_all_runs_were_evaluated(study):
    asked = {"dara_sym-101": {"laptop_math": (10,)}, "gdpo-102": {}}
    frame = study.frame(asked=asked)
    assert set(frame["step"]) == {10}
    assert frame.loc[("main", "acc", "dara_sym", ""), "n_seeds"] == 3
    assert frame.loc[("main", "acc", "gdpo", ""), "n_seeds"] == 2  # one was not evaluated at all
    assert study.frame(asked={key: {} for key in study.runs}).empty


def test_experiments_that_share_runs_have_the_same_interval_and_order_does_not_matter(study):
    names = list(study.runs)
    first = study.frame({"main": names, "second": names[::-1]})
    columns = ["value", "t_low", "t_high", "low", "high"]
    assert first.loc["main", columns].equals(first.loc["second", columns])
    study.runs = dict(reversed(study.runs.items()))
    assert study.frame({"second": names, "main": names}).equals(first)


def test_runs_of_two_engines_are_never_pooled(study):
    ours = study.frame()
    for seed, count in ((100, 12), (101, 11), (102, 10)):
        for method in ("dara_sym", "gdpo"):
            study.add(method, seed, {10: 2, 20: count}, engine="openrlhf", name=f"openrlhf-{method}-{seed}")
    frame = study.frame()
    trl, openrlhf = (frame[frame["engine"] == engine] for engine in ("trl", "openrlhf"))
    assert trl.equals(ours)
    assert openrlhf.loc[("main", "acc", "dara_sym", ""), ["value", "n_seeds"]].tolist() == [pytest.approx(11 / 12), 3]
    assert openrlhf.loc[("main", "acc", "dara_sym", "gdpo"), "value"] == 0
    study.runs = dict(reversed(study.runs.items()))
    assert study.frame({"main": list(study.runs)}).equals(frame)


def test_two_runs_that_count_as_the_same_seed_are_an_error(study):
    study.add("gdpo", 101, {10: 2, 20: 12}, name="other-batch")
    with pytest.raises(ValueError, match="experiment main: gdpo-101 and other-batch are two runs of one method, model"):
        study.frame()
