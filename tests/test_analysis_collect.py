"""From the files of runs to frames: real log lines, missing and diverged runs, and every damage that can be told."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import time

import numpy as np
import pandas as pd
import pytest
import torch

import evaluation_fakes
from dara.analysis.collect import analyse, collect
from dara.analysis.frames import read_frame
from dara.analysis.intervals import bootstrap_interval
from dara.analysis.records import RecordError, read_run
from dara.analysis.score_files import Scored, check_identities
from dara.analysis.scores import score_rows
from dara.evaluation.grading import read_scores
from dara.evaluation.records import SCORE_TABLE, SCORES, Metric
from dara.methods import load_method
from dara.runs import base_id, run_id
from dara.specs import RunSpec
from dara.store import spec_sha256
from dara.training.step import ENGINE_METRICS, step_metrics
from project import ROOT

CACHED = ROOT / "results" / "cached"
REWARDS = ("correctness", "length")
STEPS, GROUPS, SIZE = 32, 4, 4
THRESHOLDS = {"main": {"length": [0.9, 0.5]}, "second": {"length": [0.5], "correctness": [0.25]}}


def spec_of(method: str, seed: int) -> RunSpec:
    data = {"source": "laptop_math", "seed": 1, "train_rows": 10, "held_out_rows": 4}
    sampling = {"temperature": 1, "top_p": 1, "max_response_tokens": 8}
    optimizer = {
        "learning_rate": 1e-4,
        "betas": [0.9, 0.98],
        "weight_decay": 0,
        "max_grad_norm": 1,
        "updates_per_step": 2,
    }
    shape = {"vocabulary": 512, "hidden_size": 64, "layers": 2, "heads": 2, "intermediate_size": 176}
    start = {
        "steps": 1,
        "batch_size": 1,
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "betas": [0.9, 0.98],
        "weight_decay": 0,
    }
    return RunSpec.model_validate(
        {
            "contract": 1,
            "task": "math",
            "rewards": REWARDS,
            "reward_params": {},
            "data": data,
            "model": {
                "name": "tiny",
                "data": data,
                "architecture": shape | {"initializer_range": 0.04},
                "warm_start": start | {"max_grad_norm": 1, "seed": 100},
            },
            "method": {"name": method, "params": {"w_max": 3.0} if method.startswith("dara") else {}},
            "group_size": SIZE,
            "prompts_per_step": GROUPS,
            "steps": STEPS,
            "checkpoint_every": 16,
            "sampling": sampling,
            "optimizer": optimizer | {"clip_low": 0.2, "clip_high": 0.2},
            "engine": "trl",
            "seed": seed,
        }
    )


def write_run(root, spec: RunSpec, *, steps: int = STEPS, outcome: str = "completed", jump: int = 5):
    """A run as the trainer leaves it: the length reward is 0 (and one response 1) until step `jump`, then 1."""
    name = run_id(spec)
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(spec.model_dump_json())
    rng = np.random.default_rng(spec.seed)
    rewards = np.stack(
        [(rng.random((steps, GROUPS, SIZE)) < 0.5).astype(float), np.zeros((steps, GROUPS, SIZE))], axis=-1
    )
    rewards[:, 0, 0, 1] = 1
    rewards[jump:, :, :, 1] = 1
    method = load_method(spec.method.name, **spec.method.params)
    lines = [
        step_metrics(
            step,
            REWARDS,
            pool_rewards=torch.from_numpy(batch),
            pool_lengths=torch.ones(GROUPS, SIZE, dtype=torch.int64),
            output=method(torch.from_numpy(batch)),
            engine=dict.fromkeys(ENGINE_METRICS, 0.5),
        )
        for step, batch in enumerate(rewards, start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.savez(
        folder / "rewards.npz", rewards=rewards, lengths=np.ones((steps, GROUPS, SIZE), int), names=np.array(REWARDS)
    )
    sums = {step: {"model.safetensors": weights_of(name, step)} for step in spec.checkpoint_steps if step <= steps}
    checkpoints = {str(step): {"directory": "gone", "sha256": found} for step, found in sums.items()}
    manifest = {"run_id": name, "spec_sha256": spec_sha256(spec), "outcome": outcome, "steps": steps}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"checkpoints": checkpoints}))
    write_scores(root, name, [int(step) for step in checkpoints])
    write_scores(root, base_id(spec.model), [0])
    return folder


def weights_of(name: str, step: int) -> str:
    """The checksum of a checkpoint's weights, which are not there."""
    return hashlib.sha256(f"{name} {step}".encode()).hexdigest()


def write_scores(root, name: str, steps: list[int], right=(1, 0, 1, 1)) -> None:
    columns = "step,case,category,sample,strict,strict_or_numeric,math_verify,exceed,joint,truncated,n_tokens,outcome"
    rows = [
        f"{step},c{q},laptop_math,{k},{int(r and k)},{r},{r},0,{r},0,9,scored"
        for step in steps
        for q, r in enumerate(right)
        for k in (0, 1)
    ]
    checkpoints = {str(step): {"model.safetensors": weights_of(name, step), "vocab": "1"} for step in steps}
    identity = {"samples": 2, "seed": 7, "cases": {"c": "1"}, "checkpoints": checkpoints}
    evaluation_fakes.write_scores(root / "scores" / name, "\n".join([columns, *rows]) + "\n", identity)


class Study:
    """Three runs of `main` (completed, diverged, missing); the first is in `second` too."""

    def __init__(self, root):
        self.root, self.out = root, root / "data"
        specs = [spec_of("dara_sym", 100), spec_of("gdpo", 100), spec_of("gdpo", 101)]
        self.done, self.diverged, self.missing = names = [run_id(spec) for spec in specs]
        write_run(root, specs[0])
        write_run(root, specs[1], steps=20, outcome="diverged", jump=12)
        folder = root / "runs" / self.missing
        folder.mkdir()
        (folder / "spec.json").write_text(specs[2].model_dump_json())
        self.base = base_id(specs[0].model)
        self.run_dirs = {name: root / "runs" / name for name in names}
        self.score_dirs = {name: {"laptop_math": root / "scores" / name} for name in [*names, self.base]}
        self.experiments = {"main": names, "second": [self.done]}
        self.evaluations = {name: {"laptop_math": (16, 32)} for name in names} | {self.base: {"laptop_math": (0,)}}

    def collect(self):
        collect(self.run_dirs, self.experiments, self.out, cached={self.diverged})

    def analyse(self):
        analyse(self.run_dirs, self.score_dirs, self.experiments, THRESHOLDS, self.evaluations, {}, self.out)

    def frame(self, name: str) -> pd.DataFrame:
        return read_frame(self.out / f"{name}.csv", name)


@pytest.fixture
def study(tmp_path) -> Study:
    return Study(tmp_path)


def test_missing_and_diverged_runs_are_rows(study, caplog):
    caplog.set_level(logging.WARNING)
    study.collect()
    rows = study.frame("runs").set_index(["experiment", "run_id"])
    assert len(rows) == 4
    shown = {name: tuple(rows.loc[("main", name), ["outcome", "origin", "steps", "seed"]]) for name in study.run_dirs}
    assert shown == {
        study.done: ("completed", "trained", 32, 100),
        study.diverged: ("diverged", "cached", 20, 100),
        study.missing: ("missing", "missing", 0, 101),
    }
    assert f"run {study.missing}: missing after 0 of 32 steps" in caplog.text
    assert f"run {study.diverged}: diverged after 20 of 32 steps" in caplog.text


def test_training_curves_hold_every_metric_of_every_step(study):
    study.collect()
    curves = study.frame("training_curves")
    assert curves.groupby("run_id")["step"].nunique().to_dict() == {study.done: 32, study.diverged: 20}
    length = curves[(curves["run_id"] == study.done) & (curves["metric"] == "reward/length/mean")]["value"]
    assert length.tolist() == [1 / 16] * 5 + [1.0] * 27
    assert {"density/length", "kl", "energy_contributed/correctness/neg"} <= set(curves["metric"])


def test_crossings(study):
    study.analyse()
    rows = study.frame("crossings").set_index(["run_id", "reward", "threshold"])
    assert study.missing not in rows.index.get_level_values(0)
    assert (rows["budget"] == 32).all()
    columns = ["first_step", "stable_step", "status", "pending_step"]
    # The mean over ten steps is .53 at step 10 and at least .9 from step 14 on; 14 + 20 steps are more than 32.
    assert rows.loc[(study.done, "length", 0.5), columns].tolist() == [6, 10, "reached", pd.NA]
    assert rows.loc[(study.done, "length", 0.9), columns].tolist() == [6, pd.NA, "pending", 14]
    assert rows.loc[(study.diverged, "length", 0.5), columns].tolist() == [13, pd.NA, "pending", 17]
    assert rows.loc[(study.diverged, "length", 0.9), columns].tolist() == [13, pd.NA, "not_reached", pd.NA]
    assert (study.done, "correctness", 0.25) in rows.index
    assert (study.diverged, "correctness", 0.25) not in rows.index


def test_energies(study):
    study.analyse()
    rows = study.frame("energies").set_index(["run_id", "step", "reward"])
    first = rows.loc[(study.done, 1, "length")]
    # One of four groups is active, G - 1 = 3, a quarter of its responses is right; DARA-Sym's weight is 2 (cap 3).
    density = rows.loc[(study.done, 1, "correctness"), "density"]
    assert (first["density"], first["weight"]) == (0.25, pytest.approx(np.sqrt(density / 0.25)))
    assert (first["energy_pos"], first["energy_neg"]) == (pytest.approx(2.25, rel=1e-4), pytest.approx(0.75, rel=1e-4))
    assert first["contributed_pos"] == pytest.approx(first["weight"] ** 2 * 2.25, rel=1e-4)
    assert first["share_before"] == pytest.approx(0.25 / (0.25 + density), rel=1e-4)
    assert first["share_after"] == pytest.approx(0.5, rel=1e-4)
    last = rows.loc[(study.done, 32, "length")]
    assert (last["density"], last["energy_pos"], last["share_before"]) == (0, 0, 0)
    assert rows.groupby("run_id").size().to_dict() == {study.done: 64, study.diverged: 40}


def test_checkpoint_scores(study):
    study.analyse()
    rows = study.frame("checkpoint_scores").set_index(["run_id", "step", "metric"])
    assert sorted({key[:2] for key in rows.index}) == sorted(
        [(study.base, 0), (study.done, 16), (study.done, 32), (study.diverged, 16)]
    )
    base = rows.loc[(study.base, 0, "acc")]
    assert base[["method", "group_size", "seed"]].tolist() == ["base", pd.NA, pd.NA]
    acc, strict = rows.loc[(study.done, 32, "acc")], rows.loc[(study.done, 32, "strict")]
    assert (acc["value"], acc["n_questions"], strict["value"]) == (0.75, 4, 0.375)  # 4 questions of 2 samples
    assert (acc["low"], acc["high"]) == (0.25, 1.0)
    exceed = rows.loc[(study.done, 32, "exceed")]
    assert (exceed["value"], exceed["low"], exceed["high"]) == (0, 0, 0)


def test_two_identical_analyses_give_identical_bytes(study, tmp_path):
    study.collect()
    study.analyse()
    first = {path.name: path.read_bytes() for path in study.out.iterdir()}
    assert sorted(first) == [
        f"{n}.csv" for n in ("checkpoint_scores", "crossings", "energies", "runs", "score_intervals", "training_curves")
    ]
    study.out = tmp_path / "again"
    study.run_dirs = dict(reversed(study.run_dirs.items()))
    study.experiments = {name: list(reversed(runs)) for name, runs in reversed(study.experiments.items())}
    study.collect()
    study.analyse()
    assert {path.name: path.read_bytes() for path in study.out.iterdir()} == first


def edit(path, change):
    path.write_text(change(path.read_text()))


def _line(number, **values):
    def change(text):
        lines = text.splitlines()
        lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | values)
        return "\n".join(lines) + "\n"

    return change


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "metrics.jsonl",
            lambda text: text.replace('"step": 7,', '"step": 8,'),
            "line 7: run .*: step is 8, step 7 is due",
        ),
        ("metrics.jsonl", lambda text: "\n".join(text.splitlines()[:-1]), "31 steps; the manifest of .* says 32"),
        ("metrics.jsonl", lambda text: text[:-20], "line 32: not JSON"),
        ("metrics.jsonl", _line(3, schema=2), "line 3: the key 'schema' must be 1"),
        ("metrics.jsonl", _line(3, kl=float("nan")), "line 3: kl is nan in run .* which did not diverge"),
        ("metrics.jsonl", _line(3, kl=None), "line 3: kl is None; it must be a number"),
        ("metrics.jsonl", _line(3, new=1), "line 3: other metrics than in line 1: new"),
        ("manifest.json", lambda text: text.replace('"steps": 32', '"steps": 31'), "completed with 31 steps"),
        ("manifest.json", lambda text: text.replace("completed", "fine"), "outcome is 'fine'"),
        ("manifest.json", lambda text: text.replace('"outcome"', '"end"'), "'outcome' is missing"),
        (
            "manifest.json",
            lambda text: text.replace('"spec_sha256": "', '"spec_sha256": "0'),
            "not of the specification",
        ),
        ("manifest.json", lambda text: text.replace('"sha256": {', '"sums": {', 1), "checkpoint 16 has no 'sha256'"),
        ("manifest.json", lambda text: text[:-1], "manifest.json: not JSON"),
        (
            "spec.json",
            lambda text: text.replace('"seed":100,"repeat":0', '"seed":102,"repeat":0'),
            "specification of .*s102",
        ),
        ("spec.json", lambda text: "{}", "spec.json: not the specification of a run"),
    ],
)
def test_a_damaged_file_is_named(study, file, change, message):
    edit(study.run_dirs[study.done] / file, change)
    with pytest.raises(RecordError, match=message):
        study.collect()


def test_a_missing_specification_is_named(study):
    (study.run_dirs[study.missing] / "spec.json").unlink()
    with pytest.raises(RecordError, match=f"run {study.missing} has no specification"):
        study.collect()
    del study.run_dirs[study.missing]
    with pytest.raises(RecordError, match=f"run {study.missing} is planned by an experiment"):
        study.collect()


def test_a_value_that_is_not_finite_is_an_empty_cell_of_a_diverged_run(study):
    edit(study.run_dirs[study.diverged] / "metrics.jsonl", _line(20, grad_norm=float("nan")))
    study.collect()
    curves = study.frame("training_curves")
    empty = curves[curves["value"].isna()]
    assert empty[["run_id", "metric", "step"]].to_numpy().tolist() == [[study.diverged, "grad_norm", 20]]


def test_rewards_of_another_run_are_found_out(study):
    done, other = (study.run_dirs[name] / "rewards.npz" for name in (study.done, study.diverged))
    arrays = dict(np.load(done))
    other.write_bytes(done.read_bytes())
    with pytest.raises(RecordError, match=r"rewards has shape \(32, 4, 4, 2\); it must be .* = \(20, 4, 4, 2\)"):
        study.analyse()
    np.savez(done, **(arrays | {"rewards": 1 - arrays["rewards"]}))
    with pytest.raises(RecordError, match=r"step 1: energy/.* the two files are not of one run"):
        study.analyse()
    np.savez(done, **(arrays | {"names": np.array(["length", "correctness"])}))
    with pytest.raises(RecordError, match="names are length, correctness; the run has the rewards correctness, length"):
        study.analyse()
    done.unlink()
    with pytest.raises(RecordError, match=r"rewards.npz: the file does not exist"):
        study.analyse()


def test_scores_that_were_not_made_alike_are_refused(study):
    edit(
        study.score_dirs[study.diverged]["laptop_math"] / SCORES,
        lambda text: text.replace('"seed": 7', '"seed": 8'),
    )
    with pytest.raises(RecordError, match="evaluated with another seed than"):
        study.analyse()


def test_scores_of_another_checkpoint_than_the_runs_are_refused(study):
    path = study.score_dirs[study.done]["laptop_math"] / SCORES
    weights = weights_of(study.done, 32)
    text = path.read_text()
    path.write_text(text.replace(weights, "0" * 64))
    with pytest.raises(
        RecordError,
        match=f"scores.json: step 32 of {study.done}: evaluated with a model.safetensors of sha256 0000.*, "
        f"but the run's manifest.json has {weights}; it is another checkpoint",
    ):
        study.analyse()
    path.write_text(text.replace(f'"model.safetensors": "{weights}", ', ""))
    with pytest.raises(RecordError, match=f"step 32 of {study.done}: no checksum of its weights"):
        study.analyse()
    path.write_text(text.replace(f'"model.safetensors": "{weights}"', f'"other.safetensors": "{weights}"'))
    with pytest.raises(RecordError, match=r"with a other.safetensors of .* manifest.json has no such file"):
        study.analyse()
    path.write_text(text.replace('"32":', '"31":'))
    with pytest.raises(RecordError, match=f"{study.done} was evaluated at the steps 16, 31, but is to be at 16, 32"):
        study.analyse()


def test_the_base_model_is_evaluated_at_step_0_alone(study):
    edit(study.score_dirs[study.base]["laptop_math"] / SCORES, lambda text: text.replace('"0":', '"10":'))
    with pytest.raises(RecordError, match=f"{study.base} was evaluated at the steps 10, but is to be at 0;"):
        study.analyse()


def test_a_score_file_that_was_changed_is_named(study):
    path = study.score_dirs[study.done]["laptop_math"] / SCORE_TABLE
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b",0,9,scored", b",0,8,scored", 1)))
    with pytest.raises(ValueError, match=f"{study.done}/scores.csv.gz: not the file whose sha256 scores.json lists"):
        study.analyse()


@pytest.mark.parametrize(("task", "benchmark"), [("tool_calling", "laptop_tools"), ("math", "laptop_math")])
def test_the_scores_that_are_kept_in_git_are_those_of_their_runs(task, benchmark):
    directories = sorted(path for path in CACHED.glob(f"{task}-*") if path.is_dir())
    runs = [read_run(path.name, path) for path in directories]
    kept = [
        Scored(run.run_id, run.identity, *run.directory.glob(f"{benchmark}-*"), run.checkpoints, run.sums)
        for run in runs
    ]
    assert kept
    check_identities(kept)
    for one in kept[::10]:
        assert len(read_scores(one.directory, benchmark, one.steps[-1])) > 0


def test_only_what_is_asked_for_is_read(study):
    study.evaluations |= {study.done: {"laptop_math": (32,)}, study.diverged: {}}
    del study.score_dirs[study.diverged]
    study.analyse()
    scores = study.frame("checkpoint_scores")
    assert {(row.run_id, row.step) for row in scores.itertuples()} == {(study.base, 0), (study.done, 32)}
    study.evaluations |= {key: {} for key in study.evaluations}
    study.analyse()
    assert study.frame("checkpoint_scores").empty
    assert study.frame("score_intervals").empty


def test_a_manifest_without_a_step_of_the_run_is_named(study):
    path = study.score_dirs[study.done]["laptop_math"] / SCORES
    path.unlink()
    with pytest.raises(RecordError, match=r"scores.json: the file does not exist"):
        study.analyse()


def scored(root, name: str, model: str, benchmark: str, **changes: object) -> Scored:
    """Responses of a base model to a benchmark, as far as their identity goes."""
    identity = {"samples": 1, "cases": {"problems.jsonl": "1"}, "checkpoints": {"0": {}}} | changes
    evaluation_fakes.write_scores(root / name, "step\n0\n", identity)
    return Scored(name, {"model": model}, root / name, (0,), None)


@pytest.mark.parametrize("name", ["deepscaler_validation", "math_five"])
def test_scores_of_two_models_are_of_the_same_cases(tmp_path, name):
    one = scored(tmp_path, "a", "small", name)
    check_identities([one, scored(tmp_path, "b", "large", name)])
    for changes in ({"samples": 2}, {"cases": {"problems.jsonl": "2"}}):
        message = f"b was evaluated with another {next(iter(changes))} than a; scores are compared only"
        with pytest.raises(RecordError, match=message):
            check_identities([one, scored(tmp_path, "b", "large", name, **changes)])


def test_scores_that_are_not_there_are_named(study):
    (study.score_dirs[study.done]["laptop_math"] / SCORE_TABLE).unlink()
    with pytest.raises(ValueError, match=r"scores.csv.gz: the file does not exist"):
        study.analyse()
    del study.score_dirs[study.base]
    with pytest.raises(RecordError, match=f"{study.base}: the directory of its scores is not given"):
        study.analyse()


def test_a_threshold_of_a_reward_that_a_run_lacks(study):
    with pytest.raises(RecordError, match="a threshold of 'format', which is not one of its rewards"):
        analyse(
            study.run_dirs,
            study.score_dirs,
            study.experiments,
            THRESHOLDS | {"main": {"format": [0.5]}},
            study.evaluations,
            {},
            study.out,
        )
    with pytest.raises(RecordError, match="experiment second: its thresholds are not given"):
        analyse(study.run_dirs, study.score_dirs, study.experiments, {"main": {}}, study.evaluations, {}, study.out)


def tool_metrics(rng: np.random.Generator) -> dict[str, Metric]:
    """Eight metrics over 300 questions in three categories, as a tool benchmark has them."""
    strata = np.repeat(np.array(["one", "three", "two"], dtype=object), 100)
    both = {
        name: Metric((rng.random(300) < 0.7) * 1.0, strata, np.full(300, 1 / 300)) for name in ("accuracy", "format")
    }
    parts = {
        f"{name}/{category}": Metric(metric.values[strata == category], strata[strata == category], np.full(100, 0.01))
        for name, metric in both.items()
        for category in ("one", "two", "three")
    }
    return both | parts


def test_an_interval_does_not_depend_on_the_other_metrics():
    metrics = tool_metrics(np.random.default_rng(0))
    rows = {row["metric"]: row for row in score_rows(metrics, ("run", "10", "tools"))}
    (alone,) = score_rows({"format/two": metrics["format/two"]}, ("run", "10", "tools"))
    assert rows["format/two"] == alone
    single = bootstrap_interval(metrics["format/two"].values, key="other")
    assert (alone["low"], alone["high"]) == (pytest.approx(single.low, abs=0.03), pytest.approx(single.high, abs=0.03))
    assert rows["accuracy"]["n_questions"] == 300


def test_the_bootstrap_of_a_whole_study_is_fast():
    metrics = tool_metrics(np.random.default_rng(0))
    start = time.process_time()
    for step in range(12):
        score_rows(metrics, ("run", str(step), "tools"))
    assert (time.process_time() - start) * 24 < 30  # 24 runs of 12 checkpoints, on a slow core
