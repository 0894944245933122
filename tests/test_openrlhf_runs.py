"""Real runs of the OpenRLHF engine on a CPU: Ray, DeepSpeed and vLLM train, are killed, and resume."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import dara
from dara.data.prepare import prepare
from dara.methods import load_method
from dara.runs import run_id
from dara.specs import DataSpec
from dara.training.openrlhf import node
from dara.training.openrlhf.command import last_resumable, output_of
from dara.training.run import read_rows
from training_tiny import tiny_model, tiny_spec

pytestmark = pytest.mark.openrlhf

PACKAGE = Path(dara.__file__).parents[1]
DATA = {"source": "laptop_math", "seed": 0, "train_rows": 40, "held_out_rows": 2}


def real_inputs(directory: Path) -> dict[str, Path]:
    """Laptop data, and a small untrained Llama that ends about one response in ten after each token."""
    data = directory / "data"
    prepare(DataSpec.model_validate(DATA), data)
    tokens = AutoTokenizer.from_pretrained(data / "tokenizer")
    # A head size of 32: vLLM's CPU attention refuses 16.
    shape = {"hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": 256, "initializer_range": 0.02}
    tiny_model(tokens, first=1.0, end=0.5, **shape).save_pretrained(directory / "model")
    tokens.save_pretrained(directory / "model")
    return {"data_dir": data, "model_dir": directory / "model"}


def real_spec(**changes):
    spec = {"data": DATA, "steps": 6, "learning_rate": 1e-3, "method": "dara_asym", "final_normalization": "token"}
    return tiny_spec(**{"engine": "openrlhf", **spec, **changes})


START = """
import sys
from pathlib import Path
from dara.config import Resources
from dara.specs import RunSpec
from dara.training.run import RunInputs
from dara.training.openrlhf.launch import train
spec, data, model, work = RunSpec.model_validate_json(sys.argv[1]), *map(Path, sys.argv[2:5])
train(spec, RunInputs(data, model, work / "scratch", work / "out"), resources=Resources(), keep_advantages=True,
      ray_address=sys.argv[5] if len(sys.argv) > 5 else None)
"""


def start(spec, inputs: dict[str, Path], work: Path, *ray_address: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}
    arguments = [spec.model_dump_json(), str(inputs["data_dir"]), str(inputs["model_dir"]), str(work), *ray_address]
    return subprocess.Popen(
        [sys.executable, "-c", START, *arguments], env=environment, start_new_session=True, stderr=subprocess.PIPE
    )


def wait_until(condition, process: subprocess.Popen | None = None, seconds: float = 900) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        assert process is None or process.poll() is None, process.stderr.read().decode()
        time.sleep(0.02)


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Path]:
    return real_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def killed_and_resumed(inputs, tmp_path_factory) -> Path:
    """A run that was killed after its third step, and started again: its directory."""
    work = tmp_path_factory.mktemp("killed")
    directory = work / "scratch" / run_id(real_spec())
    process = start(real_spec(), inputs, work)
    wait_until(lambda: n_lines(directory / "metrics.jsonl") >= 3, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not node.leftovers(directory), seconds=60)
    assert not (work / "out").exists()
    again = start(real_spec(), inputs, work)
    _, errors = again.communicate(timeout=1200)
    assert again.returncode == 0, errors.decode()
    return work


def test_a_killed_run_resumes_and_repeats_no_step(killed_and_resumed):
    out = killed_and_resumed / "out"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["outcome"] == "completed"
    assert list(manifest["checkpoints"]) == ["2", "4", "6"]
    assert [entry["from_step"] for entry in manifest["starts"]] in ([0, 2], [0, 4])
    assert manifest["starts"][0]["versions"]["openrlhf"] == "0.11.2"
    with np.load(out / "rewards.npz") as arrays:
        assert arrays["rewards"].shape == (6, 4, 4, 2)
    for line in lines:
        assert all(np.isfinite(value) for value in line.values())
        assert line["lr"] == 1e-3
        assert min(line["grad_norm"], line["kl"]) >= 0 < line["entropy"]
        assert "kl_reference" not in line, "there is no reference model"
    assert any(line["density/length"] > 0 for line in lines)
    assert any(line["kl"] > 1e-9 for line in lines), "the second update of a step is off policy"


def test_nothing_is_left_running_and_only_the_last_state_is_kept(killed_and_resumed):
    directory = killed_and_resumed / "scratch" / run_id(real_spec())
    assert node.leftovers(directory) == []
    assert not node.temporary_directory(directory).exists()
    states = output_of(directory) / "_actor"
    assert sorted(path.name for path in states.iterdir() if path.is_dir()) == ["global_step6"]
    assert sorted(path.name for path in directory.glob("step_*")) == ["step_2", "step_4", "step_6"]
    assert last_resumable(directory) == 6


def test_the_checkpoint_is_one_of_plain_transformers(killed_and_resumed, inputs):
    last = killed_and_resumed / "scratch" / run_id(real_spec()) / "step_6"
    trained, base = (AutoModelForCausalLM.from_pretrained(path) for path in (last, inputs["model_dir"]))
    assert trained.dtype == torch.float32
    assert trained.state_dict().keys() == base.state_dict().keys()
    changed = [(a - b).abs().max() for a, b in zip(trained.parameters(), base.parameters(), strict=True)]
    assert 0 < max(changed) < 0.1
    tokens = AutoTokenizer.from_pretrained(last)
    assert trained(**tokens("1+1", return_tensors="pt", return_token_type_ids=False)).logits.isfinite().all()


def test_the_loss_got_the_methods_advantages_of_the_logged_rewards(killed_and_resumed):
    output = output_of(killed_and_resumed / "scratch" / run_id(real_spec()))
    method, seen = load_method("dara_asym", final_normalization="token"), 0.0
    with np.load(killed_and_resumed / "out" / "rewards.npz") as arrays:
        rewards, lengths = torch.tensor(arrays["rewards"]), torch.tensor(arrays["lengths"])
    for step in range(6):
        out = method(rewards[step], lengths=lengths[step].long())
        expected = (out.advantages * out.loss_weight).flatten().numpy()
        with np.load(output / f"advantages_{step + 1}_0.npz") as kept:
            index, tokens, found = kept["index"], kept["lengths"], kept["advantages"]
        assert index.tolist() == list(range(16)), "whole groups go to an update"
        assert tokens.tolist() == lengths[step].flatten().tolist()
        np.testing.assert_allclose(found, np.repeat(expected, tokens), rtol=0, atol=1e-5)
        seen += np.abs(found).sum()
    assert seen > 1


def test_a_reward_that_fails_stops_the_run_with_its_own_message(inputs, tmp_path):
    broken = tmp_path / "data"
    shutil.copytree(inputs["data_dir"], broken)
    rows = read_rows(broken / "train.jsonl", real_spec())
    lines = [json.dumps(row | {"reference": ""}) + "\n" for row in rows]
    (broken / "train.jsonl").write_text("".join(lines))
    process = start(real_spec(), {**inputs, "data_dir": broken}, tmp_path)
    _, errors = process.communicate(timeout=900)
    assert process.returncode != 0
    last = errors.decode().strip().splitlines()[-1]
    assert last.startswith("ValueError: the rewards correctness, length failed")
    assert "for prompt " in last
    assert node.leftovers(tmp_path / "scratch" / run_id(real_spec())) == []
    assert not (tmp_path / "out").exists()


def test_a_signal_ends_everything_and_a_diverging_run_is_an_outcome(inputs, tmp_path):
    spec = real_spec(learning_rate=1e30)
    directory = tmp_path / "scratch" / run_id(spec)
    process = start(spec, inputs, tmp_path)
    wait_until(lambda: len(node.leftovers(directory)) > 3, process)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert node.leftovers(directory) == []
    again = start(spec, inputs, tmp_path)
    _, errors = again.communicate(timeout=900)
    assert again.returncode == 0, errors.decode()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["outcome"] == "diverged"
    assert manifest["steps"] == manifest["diverged_at"] - 1 < 2


@pytest.fixture
def cluster(tmp_path) -> Iterator[tuple[str, psutil.Process]]:
    """A Ray head that others started: its address and its process."""
    with socket.socket() as one, socket.socket() as other, tempfile.TemporaryDirectory(dir="/tmp") as short:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, client_port = one.getsockname()[1], other.getsockname()[1]
        one.close()
        other.close()
        options = [f"--port={port}", f"--ray-client-server-port={client_port}", "--node-ip-address=127.0.0.1"]
        options += ["--num-cpus=3", "--num-gpus=1", "--object-store-memory=100000000", f"--temp-dir={short}"]
        options += ["--include-dashboard=false", "--disable-usage-stats"]
        ray = str(Path(sys.executable).with_name("ray"))
        head = subprocess.Popen([ray, "start", "--head", "--block", *options], stdout=subprocess.PIPE, text=True)
        processes = psutil.Process(head.pid)
        try:
            for line in head.stdout:
                if "Ray runtime started" in line:
                    break
            yield f"127.0.0.1:{port}", processes
        finally:
            for process in [*processes.children(recursive=True), processes]:
                process.kill()
            head.wait()


def test_an_existing_cluster_is_used_and_left_as_it_was(inputs, cluster, tmp_path):
    address, head = cluster
    spec = real_spec(steps=2)
    process = start(spec, inputs, tmp_path, address)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors.decode()
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["outcome"] == "completed"
    assert node.leftovers(tmp_path / "scratch" / run_id(spec)) == []
    names = {process.name() for process in head.children(recursive=True)}
    assert {"raylet", "gcs_server"} <= names, "the cluster is not ours to end"
