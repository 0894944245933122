"""The TRL engine from inputs to published results, on a tiny model: metrics, resuming, divergence, errors."""

import gzip
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import dara
from dara.files import sha256
from dara.methods import available_methods, load_method
from dara.runs import run_id
from dara.training import run as run_files
from dara.training import step as step_module
from dara.training import trl
from dara.training.run import read_rows
from dara.training.step import metric_names, prompt_positions, training_rows
from dara.training.stopping import Deadline, OutOfTime
from training_tiny import PROBLEMS, run, tiny_spec, write_inputs

PACKAGE = Path(dara.__file__).parents[1]
STATIC = {"weights": [1.0, 5.0]}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def straight(inputs, tmp_path_factory) -> Path:
    """A run of 4 steps without interruption: its directory."""
    directory = tmp_path_factory.mktemp("straight")
    run(tiny_spec(), inputs, directory)
    return directory


def metrics(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "out" / "metrics.jsonl").read_text().splitlines()]


def arrays(directory: Path) -> dict[str, np.ndarray]:
    with np.load(directory / "out" / "rewards.npz", allow_pickle=False) as file:
        return dict(file)


def assert_same_run(one: Path, other: Path) -> None:
    work = Path("scratch", run_id(tiny_spec()))
    files = [Path("out", name) for name in ("metrics.jsonl", "rewards.npz", "samples.jsonl.gz")]
    for path in [*files, work / "step_4" / "model.safetensors"]:
        assert (one / path).read_bytes() == (other / path).read_bytes(), path


def test_every_step_has_the_whole_schema_which_follows_from_the_published_rewards(straight):
    lines, published = metrics(straight), arrays(straight)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert published["rewards"].shape == (4, 4, 4, 2)
    assert published["rewards"].dtype == np.float64
    assert published["names"].tolist() == ["correctness", "length"]
    for line, rewards, lengths in zip(lines, published["rewards"], published["lengths"], strict=True):
        assert list(line) == ["schema", "step", *metric_names(["correctness", "length"])]
        assert all(np.isfinite(value) for value in line.values())
        assert (line["groups"], line["group_size"], line["lr"]) == (4, 4, 1e-2)
        assert line["grad_norm"] > 0
        assert line["entropy"] > 0
        assert ((lengths <= 4) == (rewards[..., 1] == 1.0)).all(), "the length reward is the limit of 4 tokens"
        assert line["reward/length/mean"] == pytest.approx(rewards[..., 1].mean(), abs=1e-12)
        assert line["reward/length/std"] == pytest.approx(rewards[..., 1].std(ddof=1), abs=1e-12)
        varying = (rewards[..., 1].max(1) != rewards[..., 1].min(1)).mean()
        assert (line["density/length"], line["active_groups/length"]) == (varying, varying * 4)
        assert (line["response_length/mean"], line["response_length/max"]) == (lengths.mean(), lengths.max())
    assert any(line["density/length"] > 0 for line in lines)
    assert any(line["kl"] > 1e-6 for line in lines), "the second update of a step is off policy"


def test_the_loss_gets_the_methods_advantages_of_the_logged_rewards(inputs, tmp_path, monkeypatch):
    seen = []
    original = trl.MultiRewardTrainer._compute_loss

    def compute_loss(self, model, batch):
        seen.append((batch["advantages"].clone(), batch["completion_mask"].sum(1), batch["prompt_ids"].clone()))
        return original(self, model, batch)

    monkeypatch.setattr(trl.MultiRewardTrainer, "_compute_loss", compute_loss)
    spec = tiny_spec(method="gd2po_hard", steps=2, params={"final_normalization": "token"})
    run(spec, inputs, tmp_path)
    method, published = load_method("gd2po_hard", final_normalization="token"), arrays(tmp_path)
    assert len(seen) == 4  # two updates a step
    for step in range(2):
        out = method(torch.tensor(published["rewards"][step]), lengths=torch.tensor(published["lengths"][step]))
        expected = (out.advantages * out.loss_weight).flatten().float()
        advantages, lengths, prompts = (torch.cat(parts) for parts in zip(*seen[2 * step : 2 * step + 2], strict=True))
        assert torch.equal(advantages, expected)
        assert lengths.tolist() == published["lengths"][step].flatten().tolist()
        groups = prompts.view(4, 4, -1)
        assert (groups == groups[:, :1]).all(), "an update gets whole groups"
    assert any(advantages.abs().sum() > 0 for advantages, _, _ in seen)


def test_the_same_specification_gives_the_same_run_and_another_seed_another(inputs, straight, tmp_path):
    run(tiny_spec(), inputs, tmp_path / "same")
    assert_same_run(straight, tmp_path / "same")
    run(tiny_spec(seed=101, steps=1), inputs, tmp_path / "other")
    assert (arrays(tmp_path / "other")["lengths"][0] != arrays(straight)["lengths"][0]).any()


KILLED = """
import json, os, signal, sys
from pathlib import Path
from training_tiny import run, tiny_spec
from dara.training import run as run_files
append = run_files.append_metrics
def append_and_die(directory, line):
    append(directory, line)
    if line["step"] == 3:
        (directory / "metrics.jsonl").open("a").write('{"schema": 1, "st')
        (directory / "checkpoint-8").mkdir()
        os.kill(os.getpid(), signal.SIGKILL)
run_files.append_metrics = append_and_die
inputs, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
run(tiny_spec(), {name: Path(path) for name, path in inputs.items()}, directory)
"""


def test_two_steps_a_kill_and_two_steps_equal_four_steps(inputs, straight, tmp_path):
    arguments = [json.dumps({name: str(path) for name, path in inputs.items()}), str(tmp_path)]
    search = os.pathsep.join([str(PACKAGE), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    work = tmp_path / "scratch" / run_id(tiny_spec())
    assert list(run_files.checkpoints(work)) == [2]
    assert not (tmp_path / "out").exists()

    run(tiny_spec(), inputs, tmp_path)
    assert_same_run(straight, tmp_path)
    assert not list(work.glob("checkpoint-*"))
    timings = json.loads((tmp_path / "out" / "timings.json").read_text())
    assert len(timings["seconds_per_step"]) == 4
    assert len(timings["seconds_to_start"]) == 2


def test_a_stop_before_the_time_limit_loses_and_repeats_no_step(inputs, straight, tmp_path):
    with pytest.raises(OutOfTime, match="stopped at step 2 before the time limit"):
        run(tiny_spec(), inputs, tmp_path, deadline=Reached(minutes=60.0, started=time.monotonic()))
    assert not (tmp_path / "out").exists()
    work = tmp_path / "scratch" / run_id(tiny_spec())
    assert "stopped at step 2" in (work / "train.log").read_text()

    run(tiny_spec(), inputs, tmp_path, deadline=Deadline(minutes=1e6, started=time.monotonic()))
    assert_same_run(straight, tmp_path)


class Reached(Deadline):
    """Time is up at the first checkpoint."""

    def check(self, step, checkpoint_steps, seconds, now):
        assert len(seconds) == step
        super().check(step, checkpoint_steps, seconds, now + 3600 * (step in checkpoint_steps))


@pytest.fixture
def copied(straight, tmp_path) -> Path:
    """The working directory of a copy of the run, in `tmp_path`."""
    shutil.copytree(straight / "scratch", tmp_path / "scratch")
    return tmp_path / "scratch" / run_id(tiny_spec())


def test_a_half_written_checkpoint_is_ignored(inputs, straight, copied, tmp_path):
    (copied / "step_4").rename(copied / "checkpoint-8")
    (copied / "checkpoint-8" / "model.safetensors").write_bytes(b"half")
    (copied / "checkpoint-9").mkdir()
    # step_2 is complete, but was not the newest and cannot be resumed from: the run starts again.
    run(tiny_spec(), inputs, tmp_path)
    assert_same_run(straight, tmp_path)
    assert sorted(path.name for path in copied.iterdir() if path.is_dir()) == ["step_2", "step_4"]


def test_a_complete_run_is_only_published(inputs, straight, copied, tmp_path, monkeypatch):
    monkeypatch.setattr(trl, "train_steps", None)  # nothing is left to train
    run(tiny_spec(), inputs, tmp_path)
    assert_same_run(straight, tmp_path)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["outcome"] == "completed"


def test_manifest_names_checkpoints_that_load(straight):
    spec = tiny_spec()
    manifest = json.loads((straight / "out" / "manifest.json").read_text())
    assert (manifest["run_id"], manifest["steps"], manifest["outcome"]) == (run_id(spec), 4, "completed")
    assert list(manifest["checkpoints"]) == ["2", "4"]
    assert manifest["seeds"] == {"data": 0, "trainer": 100, "sampler": 100}
    for entry in manifest["checkpoints"].values():
        directory = Path(entry["directory"])
        assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(entry["sha256"])
        assert not set(run_files.RESUME_ONLY) & set(entry["sha256"])
        for name, digest in entry["sha256"].items():
            assert sha256(directory / name) == digest
        assert json.loads((directory / run_files.SUMS).read_bytes()) == entry["sha256"], "hashed when it was complete"
        assert AutoTokenizer.from_pretrained(directory).eos_token == "<eos>"
        assert AutoModelForCausalLM.from_pretrained(directory).dtype == torch.float32
    work = straight / "scratch" / run_id(spec)
    assert not [name for name in run_files.RESUME_ONLY if (work / "step_2" / name).exists()]
    assert (work / "step_4" / "optimizer.pt").exists(), "the newest can be resumed from"
    assert not [*work.rglob("training_args.bin"), *work.rglob("README.md")]


def test_samples_are_for_reading(straight):
    text = gzip.decompress((straight / "out" / "samples.jsonl.gz").read_bytes())
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["step"] for row in rows] == [2] * 4 + [4] * 4
    problems = {row["id"]: row for row in PROBLEMS}
    for row in rows:
        assert {name: row[name] for name in ("id", "prompt", "reference")} == problems[row["id"]]
        assert set(row["rewards"]) == {"correctness", "length"}
        assert isinstance(row["response"], str)


def test_another_base_model_than_its_manifest_names_is_not_trained_on(inputs, tmp_path):
    model = shutil.copytree(inputs["model_dir"], tmp_path / "model")
    sums = {path.name: sha256(path) for path in model.iterdir()}
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    damaged = {"data_dir": inputs["data_dir"], "model_dir": model, "model_sums": sums}
    with pytest.raises(ValueError, match=r"is not the base model that its manifest names: another or no config\.json"):
        run(tiny_spec(), damaged, tmp_path)
    with pytest.raises(ValueError, match=r"another or no absent\.json"):
        run(tiny_spec(), inputs | {"model_sums": {"absent.json": "0"}}, tmp_path)


def test_progress_is_logged(straight):
    lines = (straight / "scratch" / run_id(tiny_spec()) / "train.log").read_text().splitlines()
    assert len(lines) == 2
    assert "math dara_sym G=4 seed 100 | step 1/4 | correctness " in lines[0]
    assert " s/step, " in lines[0]
    assert "step 4/4" in lines[1]
    assert lines[1].endswith("0:00 left")
    assert logging.getLogger("dara.training").handlers == []


@pytest.mark.parametrize("name", available_methods())
def test_every_method_trains(name, inputs, tmp_path):
    params = STATIC if name.startswith("static") else {}
    run(tiny_spec(method=name, params=params, steps=1, checkpoint_every=1), inputs, tmp_path)
    (line,) = metrics(tmp_path)
    assert set(metric_names(["correctness", "length"])) <= set(line)


STATEFUL = '''
"""A method with state: it counts the batches it has seen."""


class Counting:
    def __init__(self):
        self.calls = 0

    def contributions(self, batch):
        from dara.methods import Aggregate

        self.calls += 1
        return Aggregate(batch.z, diagnostics={"calls": float(self.calls)})

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]
'''


def test_a_methods_state_is_resumed(inputs, tmp_path, monkeypatch):
    (tmp_path / "counting.py").write_text(STATEFUL)
    source = {"function": "counting.py:Counting", "source_sha256": sha256(tmp_path / "counting.py")}
    spec = tiny_spec(method={"name": "counting", **source})
    append = run_files.append_metrics

    def stop(directory, line):
        if line["step"] == 3:
            raise KeyboardInterrupt
        append(directory, line)

    monkeypatch.setattr(run_files, "append_metrics", stop)
    with pytest.raises(KeyboardInterrupt):
        run(spec, inputs, tmp_path, methods_dir=tmp_path)
    monkeypatch.setattr(run_files, "append_metrics", append)
    run(spec, inputs, tmp_path, methods_dir=tmp_path)
    assert [line["calls"] for line in metrics(tmp_path)] == [1, 2, 3, 4]


def test_a_reward_that_is_no_number_is_an_error_and_the_log_says_so(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(step_module, "score", lambda task, names, **_: [0.0, None])
    message = r"reward length is None, not a number, for prompt p\d+ \('<user>.*and response '"
    with pytest.raises(ValueError, match=message):
        run(tiny_spec(), inputs, tmp_path)
    assert not (tmp_path / "out").exists()
    last = (tmp_path / "scratch" / run_id(tiny_spec()) / "train.log").read_text().splitlines()[-1]
    assert "math dara_sym G=4 seed 100 | stopped by " in last
    assert "reward length is None, not a number, for prompt " in last


@pytest.mark.parametrize(("updates", "step"), [(2, 1), (1, 2)])  # seen in the loss of an update; seen in sampling
def test_divergence_is_an_outcome(updates, step, inputs, tmp_path):
    optimizer = tiny_spec(learning_rate=1e30).optimizer.model_dump() | {"updates_per_step": updates}
    spec = tiny_spec(optimizer=optimizer)
    run(spec, inputs, tmp_path)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["outcome"], manifest["diverged_at"], manifest["steps"]) == ("diverged", step, step - 1)
    assert manifest["checkpoints"] == {}
    assert len(metrics(tmp_path)) == step - 1
    assert arrays(tmp_path)["rewards"].shape == (step - 1, 4, 4, 2)


def order(rows: int, needed: int, seed: int) -> list[int]:
    return list(islice(prompt_positions(rows, seed), needed))


def test_prompts_are_a_permutation_after_another(inputs):
    assert sorted(order(12, 30, 100)[:12]) == sorted(order(12, 30, 100)[12:24]) == list(range(12))
    assert order(12, 30, 101) != order(12, 30, 100)
    rng = np.random.default_rng(100)  # the order of the published runs
    assert order(5, 12, 100) == np.concatenate([rng.permutation(5) for _ in range(3)])[:12].tolist()
    rows = read_rows(inputs["data_dir"] / "train.jsonl", tiny_spec())
    assert rows == PROBLEMS
    assert training_rows(rows, tiny_spec()) == [PROBLEMS[i] for i in order(12, 16, 100)]


def test_unusable_training_rows_are_errors(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\n')
    with pytest.raises(ValueError, match=r"line 1 has the keys .* must have id, prompt, reference"):
        read_rows(path, tiny_spec())
    path.write_text('{"id": "a", "prompt": "x", "reference": "1"}\n')
    with pytest.raises(ValueError, match="has 1 rows; a step needs 4"):
        read_rows(path, tiny_spec())
    rule = {"criterion": "sum_varies", "candidate_prompts": 13, "max_rounds": 2}
    with pytest.raises(ValueError, match="has 1 rows; a step needs 13 different ones"):
        read_rows(path, tiny_spec(engine="openrlhf", filter=rule))


def test_changed_inputs_are_not_resumed(inputs, copied, tmp_path):
    shutil.copytree(inputs["data_dir"], tmp_path / "data")
    with (tmp_path / "data" / "train.jsonl").open("a") as file:
        file.write(json.dumps(PROBLEMS[0]) + "\n")
    with pytest.raises(ValueError, match=r"was begun with another train\.jsonl; delete that directory"):
        run(tiny_spec(), {**inputs, "data_dir": tmp_path / "data"}, tmp_path)
