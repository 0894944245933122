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
from dara.analysis.collect import write_frames
from dara.analysis.frames import FRAMES, read_frame
from dara.analysis.records import RecordError, read_run
from dara.analysis.scores import Scored, check_identities, score_rows
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
    """A specification like that of a laptop's run."""
    values = json.loads(next(CACHED.glob("math-tiny-math-gdpo-*/spec.json")).read_text())
    values["method"] = {"name": method, "params": {"w_max": 3.0} if method.startswith("dara") else {}}
    shape = {"group_size": SIZE, "prompts_per_step": GROUPS, "steps": STEPS, "checkpoint_every": 16}
    return RunSpec.model_validate(values | shape | {"seed": seed})


def write_run(root, spec: RunSpec, *, steps: int = STEPS, outcome: str = "completed", jump: int = 5):
    """A run as the trainer leaves it: the length reward is 0 (and one response 1) until step `jump`, then 1."""
    name = run_id(spec)
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(spec.model_dump_json())
    rng = np.random.default_rng(spec.seed)
    correct = (rng.random((steps, GROUPS, SIZE)) < 0.5).astype(float)
    rewards = np.stack([correct, np.zeros_like(correct)], axis=-1)
    rewards[:, 0, 0, 1] = 1
    rewards[jump:, :, :, 1] = 1
    method = load_method(spec.method.name, **spec.method.params)
    lines = []
    for step, batch in enumerate(map(torch.from_numpy, rewards), start=1):
        pool = {"pool_rewards": batch, "pool_lengths": torch.ones(GROUPS, SIZE, dtype=torch.int64)}
        engine = dict.fromkeys(ENGINE_METRICS, 0.5)
        lines.append(json.dumps(step_metrics(step, REWARDS, **pool, output=method(batch), engine=engine)) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    lengths = np.ones((steps, GROUPS, SIZE), int)
    np.savez(folder / "rewards.npz", rewards=rewards, lengths=lengths, names=np.array(REWARDS))
    sums = {step: {"model.safetensors": weights_of(name, step)} for step in spec.checkpoint_steps if step <= steps}
    checkpoints = {str(step): {"directory": "gone", "sha256": found} for step, found in sums.items()}
    manifest = {"run_id": name, "spec_sha256": spec_sha256(spec), "outcome": outcome, "steps": steps}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"checkpoints": checkpoints}))
    write_scores(root, name, list(sums))
    write_scores(root, base_id(spec.model), [0])


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
        self.thresholds = THRESHOLDS
        self.experiments = {"main": names, "second": [self.done]}
        self.evaluations = {name: {"laptop_math": (16, 32)} for name in names} | {self.base: {"laptop_math": (0,)}}

    def write(self):
        scores = self.score_dirs, self.experiments, self.thresholds, self.evaluations
        write_frames(self.run_dirs, *scores, {}, self.out, cached={self.diverged})

    def frame(self, name: str) -> pd.DataFrame:
        return read_frame(self.out / f"{name}.csv", name)

    def scores_of(self, name: str):
        return self.score_dirs[name]["laptop_math"] / SCORES


@pytest.fixture
def study(tmp_path) -> Study:
    return Study(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Study:
    made = Study(tmp_path_factory.mktemp("study"))
    made.write()
    return made


def test_missing_and_diverged_runs_are_rows(study, caplog):
    caplog.set_level(logging.WARNING)
    study.write()
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


def test_training_curves_hold_every_metric_of_every_step(written):
    curves = written.frame("training_curves")
    assert curves.groupby("run_id")["step"].nunique().to_dict() == {written.done: 32, written.diverged: 20}
    length = curves[(curves["run_id"] == written.done) & (curves["metric"] == "reward/length/mean")]["value"]
    assert length.tolist() == [1 / 16] * 5 + [1.0] * 27
    assert {"density/length", "kl", "energy_contributed/correctness/neg"} <= set(curves["metric"])


def test_crossings(written):
    rows = written.frame("crossings").set_index(["run_id", "reward", "threshold"])
    assert written.missing not in rows.index.get_level_values(0)
    assert (rows["budget"] == 32).all()
    columns = ["first_step", "stable_step", "status", "pending_step"]
    # The mean over ten steps is .53 at step 10 and at least .9 from step 14 on; 14 + 20 steps are more than 32.
    assert rows.loc[(written.done, "length", 0.5), columns].tolist() == [6, 10, "reached", pd.NA]
    assert rows.loc[(written.done, "length", 0.9), columns].tolist() == [6, pd.NA, "pending", 14]
    assert rows.loc[(written.diverged, "length", 0.5), columns].tolist() == [13, pd.NA, "pending", 17]
    assert rows.loc[(written.diverged, "length", 0.9), columns].tolist() == [13, pd.NA, "not_reached", pd.NA]
    assert (written.done, "correctness", 0.25) in rows.index
    assert (written.diverged, "correctness", 0.25) not in rows.index


def test_energies(written):
    rows = written.frame("energies").set_index(["run_id", "step", "reward"])
    first = rows.loc[(written.done, 1, "length")]
    # One of four groups is active, G - 1 = 3, a quarter of its responses is right; DARA-Sym's weight is 2 (cap 3).
    density = rows.loc[(written.done, 1, "correctness"), "density"]
    assert (first["density"], first["weight"]) == (0.25, pytest.approx(np.sqrt(density / 0.25)))
    assert (first["energy_pos"], first["energy_neg"]) == (pytest.approx(2.25, rel=1e-4), pytest.approx(0.75, rel=1e-4))
    assert first["contributed_pos"] == pytest.approx(first["weight"] ** 2 * 2.25, rel=1e-4)
    assert first["share_before"] == pytest.approx(0.25 / (0.25 + density), rel=1e-4)
    assert first["share_after"] == pytest.approx(0.5, rel=1e-4)
    last = rows.loc[(written.done, 32, "length")]
    assert (last["density"], last["energy_pos"], last["share_before"]) == (0, 0, 0)
    assert rows.groupby("run_id").size().to_dict() == {written.done: 64, written.diverged: 40}


def test_checkpoint_scores(written):
    rows = written.frame("checkpoint_scores").set_index(["run_id", "step", "metric"])
    scored = {(written.base, 0), (written.done, 16), (written.done, 32), (written.diverged, 16)}
    assert {key[:2] for key in rows.index} == scored
    base = rows.loc[(written.base, 0, "acc")]
    assert base[["method", "group_size", "seed"]].tolist() == ["base", pd.NA, pd.NA]
    acc, strict = rows.loc[(written.done, 32, "acc")], rows.loc[(written.done, 32, "strict")]
    assert (acc["value"], acc["n_questions"], strict["value"]) == (0.75, 4, 0.375)  # 4 questions of 2 samples
    assert (acc["low"], acc["high"]) == (0.25, 1.0)
    assert rows.loc[(written.done, 32, "exceed"), ["value", "low", "high"]].tolist() == [0, 0, 0]


def test_two_identical_analyses_give_identical_bytes(study, tmp_path):
    study.write()
    first = {path.name: path.read_bytes() for path in study.out.iterdir()}
    assert set(first) == {f"{name}.csv" for name in FRAMES}
    study.out = tmp_path / "again"
    study.run_dirs = dict(reversed(study.run_dirs.items()))
    study.experiments = {name: list(reversed(runs)) for name, runs in reversed(study.experiments.items())}
    study.write()
    assert {path.name: path.read_bytes() for path in study.out.iterdir()} == first


def replaced(old: str, new: str, count: int = -1):
    return lambda text: text.replace(old, new, count)


def line(number, **values):
    def change(text):
        lines = text.splitlines()
        lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | values)
        return "\n".join(lines) + "\n"

    return change


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("metrics.jsonl", replaced('"step": 7,', '"step": 8,'), "line 7: run .*: step is 8, step 7 is due"),
        ("metrics.jsonl", lambda text: "\n".join(text.splitlines()[:-1]), "31 steps; the manifest of .* says 32"),
        ("metrics.jsonl", lambda text: text[:-20], "line 32: not JSON"),
        ("metrics.jsonl", line(3, schema=2), "line 3: the key 'schema' must be 1"),
        ("metrics.jsonl", line(3, kl=float("nan")), "line 3: kl is nan in run .* which did not diverge"),
        ("metrics.jsonl", line(3, kl=None), "line 3: kl is None; it must be a number"),
        ("metrics.jsonl", line(3, new=1), "line 3: other metrics than in line 1: new"),
        ("manifest.json", replaced('"steps": 32', '"steps": 31'), "completed with 31 steps"),
        ("manifest.json", replaced("completed", "fine"), "outcome is 'fine'"),
        ("manifest.json", replaced('"outcome"', '"end"'), "'outcome' is missing"),
        ("manifest.json", replaced('"spec_sha256": "', '"spec_sha256": "0'), "not of the specification"),
        ("manifest.json", replaced('"sha256": {', '"sums": {', 1), "checkpoint 16 has no 'sha256'"),
        ("manifest.json", lambda text: text[:-1], "manifest.json: not JSON"),
        ("spec.json", replaced('"seed":100,"repeat":0', '"seed":102,"repeat":0'), "specification of .*s102"),
        ("spec.json", lambda text: "{}", "spec.json: not the specification of a run"),
    ],
)
def test_a_damaged_file_is_named(study, file, change, message):
    path = study.run_dirs[study.done] / file
    path.write_text(change(path.read_text()))
    with pytest.raises(RecordError, match=message):
        study.write()


def test_a_missing_specification_is_named(study):
    (study.run_dirs[study.missing] / "spec.json").unlink()
    with pytest.raises(RecordError, match=f"run {study.missing} has no specification"):
        study.write()
    del study.run_dirs[study.missing]
    with pytest.raises(RecordError, match=f"run {study.missing} is planned by an experiment"):
        study.write()


def test_a_value_that_is_not_finite_is_an_empty_cell_of_a_diverged_run(study):
    path = study.run_dirs[study.diverged] / "metrics.jsonl"
    path.write_text(line(20, grad_norm=float("nan"))(path.read_text()))
    study.write()
    curves = study.frame("training_curves")
    empty = curves[curves["value"].isna()]
    assert empty[["run_id", "metric", "step"]].to_numpy().tolist() == [[study.diverged, "grad_norm", 20]]


def test_rewards_of_another_run_are_found_out(study):
    done, other = (study.run_dirs[name] / "rewards.npz" for name in (study.done, study.diverged))
    arrays = dict(np.load(done))
    other.write_bytes(done.read_bytes())
    with pytest.raises(RecordError, match=r"rewards has shape \(32, 4, 4, 2\); it must be .* = \(20, 4, 4, 2\)"):
        study.write()
    for changed, message in (
        ({"rewards": 1 - arrays["rewards"]}, r"step 1: energy/.* the two files are not of one run"),
        ({"names": np.array(REWARDS[::-1])}, "names are length, correctness; the run has the rewards correctness, len"),
    ):
        np.savez(done, **(arrays | changed))
        with pytest.raises(RecordError, match=message):
            study.write()
    done.unlink()
    with pytest.raises(RecordError, match=r"rewards.npz: the file does not exist"):
        study.write()


def test_scores_of_unlike_settings_or_of_other_checkpoints_are_refused(study):
    weights = f'"model.safetensors": "{weights_of(study.done, 32)}"'
    for name, old, new, message in (
        (study.diverged, '"seed": 7', '"seed": 8', "evaluated with another seed than"),
        (
            study.done,
            weights,
            weights.replace(weights_of(study.done, 32), "0" * 64),
            f"scores.json: step 32 of {study.done}: evaluated with a model.safetensors of sha256 0000.*, but the run's "
            f"manifest.json has {weights_of(study.done, 32)}; it is another checkpoint",
        ),
        (study.done, f"{weights}, ", "", f"step 32 of {study.done}: no checksum of its weights"),
        (
            study.done,
            weights,
            weights.replace("model.", "other."),
            r"with a other.safetensors of .* manifest.json has no such file",
        ),
        (study.done, '"32":', '"31":', f"{study.done} was evaluated at the steps 16, 31, but is to be at 16, 32"),
        # A base model is evaluated at step 0 alone.
        (study.base, '"0":', '"10":', f"{study.base} was evaluated at the steps 10, but is to be at 0;"),
    ):
        path = study.scores_of(name)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(RecordError, match=message):
            study.write()
        path.write_text(text)


def test_a_score_file_that_was_changed_or_is_gone_is_named(study):
    path = study.scores_of(study.done).with_name(SCORE_TABLE)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b",0,9,scored", b",0,8,scored", 1)))
    with pytest.raises(ValueError, match=f"{study.done}/scores.csv.gz: not the file whose sha256 scores.json lists"):
        study.write()
    path.unlink()
    with pytest.raises(ValueError, match=r"scores.csv.gz: the file does not exist"):
        study.write()
    study.scores_of(study.done).unlink()
    with pytest.raises(RecordError, match=r"scores.json: the file does not exist"):
        study.write()
    del study.score_dirs[study.base]
    with pytest.raises(RecordError, match=f"{study.base}: the directory of its scores is not given"):
        study.write()


@pytest.mark.parametrize(("task", "benchmark"), [("tool_calling", "laptop_tools"), ("math", "laptop_math")])
def test_the_scores_that_are_kept_in_git_are_those_of_their_runs(task, benchmark):
    directories = sorted(path for path in CACHED.glob(f"{task}-*") if path.is_dir())
    runs = [read_run(path.name, path) for path in directories]
    kept = [Scored(run.run_id, {}, *run.directory.glob(f"{benchmark}-*"), tuple(run.sums), run.sums) for run in runs]
    assert kept
    check_identities(kept)
    for one in kept[::10]:
        assert len(read_scores(one.directory, benchmark, one.steps[-1])) > 0


def test_only_what_is_asked_for_is_read(study):
    study.evaluations |= {study.done: {"laptop_math": (32,)}, study.diverged: {}}
    del study.score_dirs[study.diverged]
    study.write()
    scores = study.frame("checkpoint_scores")
    assert {(row.run_id, row.step) for row in scores.itertuples()} == {(study.base, 0), (study.done, 32)}
    study.evaluations |= {key: {} for key in study.evaluations}
    study.write()
    assert study.frame("checkpoint_scores").empty
    assert study.frame("score_intervals").empty


def scored(root, name: str, benchmark: str, **changes: object) -> Scored:
    """Responses of a base model to a benchmark, as far as their identity goes."""
    identity = {"samples": 1, "cases": {"problems.jsonl": "1"}, "checkpoints": {"0": {}}} | changes
    evaluation_fakes.write_scores(root / name, "step\n0\n", identity)
    return Scored(name, {}, root / name, (0,), None)


@pytest.mark.parametrize("name", ["deepscaler_validation", "math_five"])
def test_scores_of_two_models_are_of_the_same_cases(tmp_path, name):
    one = scored(tmp_path, "a", name)
    check_identities([one, scored(tmp_path, "b", name)])
    for changes in ({"samples": 2}, {"cases": {"problems.jsonl": "2"}}):
        message = f"b was evaluated with another {next(iter(changes))} than a; scores are compared only"
        with pytest.raises(RecordError, match=message):
            check_identities([one, scored(tmp_path, "b", name, **changes)])


def test_a_threshold_of_a_reward_that_a_run_lacks(study):
    study.thresholds = THRESHOLDS | {"main": {"format": [0.5]}}
    with pytest.raises(RecordError, match="a threshold of 'format', which is not one of its rewards"):
        study.write()
    study.thresholds = {"main": {}}
    with pytest.raises(RecordError, match="experiment second: its thresholds are not given"):
        study.write()


def tool_metrics(rng: np.random.Generator) -> dict[str, Metric]:
    """Eight metrics over 300 questions in three categories, as a tool benchmark has them."""
    strata, found = np.repeat(np.array(["one", "three", "two"], dtype=object), 100), {}
    for name in ("accuracy", "format"):
        values = (rng.random(300) < 0.7) * 1.0
        found[name] = Metric(values, strata, np.full(300, 1 / 300))
        for category in ("one", "two", "three"):
            mine = strata == category
            found[f"{name}/{category}"] = Metric(values[mine], strata[mine], np.full(100, 0.01))
    return found


def test_an_interval_does_not_depend_on_the_other_metrics():
    metrics = tool_metrics(np.random.default_rng(0))
    rows = {row["metric"]: row for row in score_rows(metrics, ("run", "10", "tools"))}
    (alone,) = score_rows({"format/two": metrics["format/two"]}, ("run", "10", "tools"))
    assert rows["format/two"] == alone
    error = metrics["format/two"].values.std() / 10
    assert alone["high"] - alone["low"] == pytest.approx(2 * 1.96 * error, abs=0.03)
    assert rows["accuracy"]["n_questions"] == 300


def test_the_bootstrap_of_a_whole_study_is_fast():
    metrics = tool_metrics(np.random.default_rng(0))
    start = time.process_time()
    for step in range(12):
        score_rows(metrics, ("run", str(step), "tools"))
    assert (time.process_time() - start) * 24 < 30  # 24 runs of 12 checkpoints, on a slow core
