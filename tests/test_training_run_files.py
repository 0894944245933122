"""What a run writes: atomic, deterministic, cut back on resume; and its copy for TensorBoard and Weights & Biases.

Tests that read what trackers wrote need their packages, which are in OpenRLHF's environment; others replace them.
"""

import dataclasses
import gzip
import json
import shutil
import socket
import struct
import sys
import types

import numpy as np
import pytest

from dara.files import GitError
from dara.training import run as run_files
from dara.training.run import RunInputs, RunRecord, check_trackers
from dara.training.step import trackers
from training_tiny import tiny_spec

SPEC = tiny_spec()
LINES = [{"schema": 1, "step": step, "reward/format/mean": step / 10, "groups": 4} for step in (1, 2, 3)]


def record(steps: int) -> RunRecord:
    """A run of `steps` steps; every number says its step."""
    numbers = range(1, steps + 1)
    return RunRecord(
        metrics=[{"schema": 1, "step": n, "kl": 0.1 * n} for n in numbers],
        rewards=[np.full((4, 4, 2), float(n)) for n in numbers],
        lengths=[np.full((4, 4), n) for n in numbers],
        samples=[{"step": n, "response": "ä"} for n in numbers if n % 2 == 0],
        seconds=[0.5] * steps,
        startups=[6.0],
    )


def write(directory, full: RunRecord) -> None:
    directory.mkdir(exist_ok=True)
    for line in full.metrics:
        run_files.append_metrics(directory, line)
    run_files.save(directory, full, SPEC)


def test_resuming_cuts_everything_back_to_the_checkpoint(tmp_path):
    write(tmp_path, record(5))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"schema": 1, "ste')
    cut = run_files.load(tmp_path, 2)
    assert np.array_equal(cut.rewards, record(2).rewards)
    assert np.array_equal(cut.lengths, record(2).lengths)
    cut.rewards = cut.lengths = []
    assert cut == dataclasses.replace(record(2), rewards=[], lengths=[])
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_a_run_without_a_checkpoint_starts_again_and_one_that_lacks_a_step_is_an_error(tmp_path):
    write(tmp_path, record(2))
    with pytest.raises(ValueError, match="has a checkpoint of step 4 but not every step up to it; delete it"):
        run_files.load(tmp_path, 4)
    assert run_files.load(tmp_path, 0).steps == 0
    assert not (tmp_path / "metrics.jsonl").exists()


def test_same_record_same_bytes(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name, record(3))
    for name in ("metrics.jsonl", "rewards.npz", "samples.jsonl.gz", "timings.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "ä" in gzip.decompress((tmp_path / "one" / "samples.jsonl.gz").read_bytes()).decode()
    with np.load(tmp_path / "one" / "rewards.npz", allow_pickle=False) as file:
        assert file["rewards"].shape == (3, 4, 4, 2)
        assert file["lengths"].dtype == np.int32


def test_a_checkpoint_is_complete_with_its_name(tmp_path):
    for step in (2, 4):
        written = tmp_path / f"checkpoint-{2 * step}"
        written.mkdir()
        for name in ("model.safetensors", *run_files.RESUME_ONLY):
            (written / name).write_text(str(step))
        run_files.complete_checkpoint(tmp_path, written, step)
    for name in ("checkpoint-12", "step_x"):
        (tmp_path / name).mkdir()
    (tmp_path / ".rewards.npz.4711").touch()  # what a killed write_atomically leaves
    assert list(run_files.checkpoints(tmp_path)) == [2, 4]
    assert run_files.last_resumable(tmp_path) == 4
    assert sorted(path.name for path in (tmp_path / "step_2").iterdir()) == ["model.safetensors", run_files.SUMS]
    assert len(list((tmp_path / "step_4").iterdir())) == 2 + len(run_files.RESUME_ONLY)
    run_files.remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_2", "step_4", "step_x"]
    shutil.rmtree(tmp_path / "step_4")
    assert run_files.last_resumable(tmp_path) == 0, "step_2 has no optimiser any more"


def test_the_manifest_comes_last(tmp_path, monkeypatch):
    out, work = tmp_path / "out", tmp_path / "work"
    write(work, record(4))
    arguments = {"inputs": {"train.jsonl": "0" * 64}}
    run_files.record_start(work, 0, ("numpy",))
    run_files.publish(out, work, SPEC, record(4), **arguments)
    assert json.loads((out / "manifest.json").read_text())["versions"]["numpy"] == np.__version__

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(run_files, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        run_files.publish(out, work, SPEC, record(4), **arguments)
    assert not (out / "manifest.json").exists(), "no manifest vouches for a half-written publication"


def test_a_run_is_of_the_code_that_started_it(tmp_path, monkeypatch):
    """Publishing what an older commit trained does not make it a run of today's."""
    out, work = tmp_path / "out", tmp_path / "work"
    write(work, record(4))
    monkeypatch.setattr(run_files, "commit", lambda _: "a" * 40)
    run_files.record_start(work, 0, ("numpy",))
    monkeypatch.setattr(run_files, "commit", lambda _: "b" * 40)
    run_files.record_start(work, 2, ("numpy",))
    monkeypatch.setattr(run_files, "commit", lambda _: "c" * 40)
    run_files.publish(out, work, SPEC, record(4), inputs={})
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["git_commit"] == "a" * 40
    assert [(start["from_step"], start["git_commit"][0]) for start in manifest["starts"]] == [(0, "a"), (2, "b")]


def test_a_checkpoint_that_somebody_keeps_elsewhere_is_left_as_it_is(tmp_path):
    """Older ones lose what only resuming needs, and unfinished ones go; through a link neither happens."""
    work, archive = tmp_path / "work", tmp_path / "archive"
    for name in ("step_2", "step_4", "checkpoint-3"):
        (archive / name).mkdir(parents=True)
        (archive / name / "optimizer.pt").write_text("state")
        work.mkdir(exist_ok=True)
        (work / name).symlink_to(archive / name)
    run_files.remove_unfinished(work)
    (work / "checkpoint-4").mkdir()
    run_files.complete_checkpoint(work, work / "checkpoint-4", 4)
    assert sorted(path.name for path in work.iterdir()) == ["step_2", "step_4"]
    assert not (work / "step_4").is_symlink()
    assert len(list(archive.glob("*/optimizer.pt"))) == 3


def test_a_git_that_refuses_is_no_missing_commit(tmp_path, monkeypatch, caplog, git):
    assert run_files.commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "x")
    assert len(run_files.commit(tmp_path)) == 40

    def refuses(directory):
        raise GitError("git says nothing about it: dubious ownership")

    monkeypatch.setattr(run_files, "commit", refuses)
    run_files.record_start(tmp_path, 0, ("numpy",))
    [start] = json.loads((tmp_path / run_files.STARTS).read_text())
    assert start["git_commit"] is None
    assert start["git_error"] == "git says nothing about it: dubious ownership"
    assert "dubious ownership" in caplog.text


def test_inputs_may_change_before_the_first_checkpoint_only(tmp_path):
    model, data = tmp_path / "model.safetensors", tmp_path / "train.jsonl"
    inputs, work = RunInputs(data_dir=tmp_path, model_dir=tmp_path, scratch=tmp_path, out=tmp_path), tmp_path / "work"
    with pytest.raises(ValueError, match=r"holds no \*\.safetensors: it is no complete checkpoint of a base model"):
        run_files.checked_inputs(inputs, work)
    for content in "ab":
        model.write_text(content)
        data.write_text(content)
        sums = run_files.checked_inputs(inputs, work)
    (work / "step_2").mkdir()
    assert run_files.checked_inputs(inputs, work) == sums
    model.write_text("c")
    data.write_text("c")
    with pytest.raises(ValueError, match=r"begun with another model.safetensors, train.jsonl"):
        run_files.checked_inputs(inputs, work)


# --- trackers ---------------------------------------------------------------------------------------------------------


class Fake:
    """A package of the same name: remembers how it was made, what it was given and whether it was closed."""

    def __init__(self):
        self.made, self.logged, self.closed = [], [], 0

    def make(self, **arguments):
        self.made.append(arguments)
        return types.SimpleNamespace(
            log=lambda values, step: self.logged.append((step, values)),
            add_scalar=lambda name, value, step: self.logged.append((step, {name: value})),
            flush=lambda: None,
            finish=self.close,
            close=self.close,
        )

    def close(self):
        self.closed += 1


@pytest.fixture
def fake(monkeypatch):
    """Both packages as fakes; the same object is behind each."""
    one = Fake()
    packages = {
        "wandb": {"init": one.make, "Settings": lambda **settings: settings, "teardown": lambda: None},
        "torch.utils.tensorboard": {"SummaryWriter": one.make},
    }
    for name, content in packages.items():
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**content))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    return one


def test_no_tracker_writes_nothing_and_one_that_cannot_be_is_an_error(monkeypatch, tmp_path):
    with trackers((), tmp_path, "run", LINES[:1]) as track:
        track(LINES[1])
    with pytest.raises(ValueError, match="unknown tracker 'mlflow': the trackers are tensorboard, wandb"):
        check_trackers(("mlflow",))
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    for name in ("tensorboard", "wandb"):
        message = f"the tracker {name} needs the package {name}, which is not installed"
        with pytest.raises(ValueError, match=message), trackers((name,), tmp_path, "run", ()):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_steps_so_far_come_first_and_replace_an_earlier_start(fake, tmp_path, name):
    old = tmp_path / "trackers" / name / "old"
    old.mkdir(parents=True)
    with trackers((name,), tmp_path, "run", LINES[:2]) as track:
        track(LINES[2])
        assert fake.closed == 0
    assert fake.closed == 1
    assert not old.exists()
    by_step: dict[int, dict] = {}
    for step, values in fake.logged:
        by_step.setdefault(step, {}).update(values)
    assert by_step == {s: {"reward/format/mean": s / 10, "groups": 4.0} for s in (1, 2, 3)}


def test_wandb_is_offline_by_the_call(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "online")
    with trackers(("wandb",), tmp_path, "math-tiny-dara_sym-g8-s100-6c83030e", ()):
        [arguments] = fake.made
    assert arguments["mode"] == "offline"
    assert arguments["id"] == arguments["name"] == "math-tiny-dara_sym-g8-s100-6c83030e"
    assert arguments["dir"] == str(tmp_path / "trackers" / "wandb")


@pytest.fixture
def no_network(monkeypatch):
    """A connection to anything but this machine is an error."""
    connect = socket.socket.connect

    def only_local(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a connection to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_local)


@pytest.mark.openrlhf
def test_tensorboard_reads_each_step_once(no_network, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(KeyboardInterrupt), trackers(("tensorboard",), tmp_path, "run", LINES):
        raise KeyboardInterrupt
    with trackers(("tensorboard",), tmp_path, "run", LINES[:2]) as track:
        track({**LINES[2], "groups": 5})
    events = EventAccumulator(str(tmp_path / "trackers" / "tensorboard" / "run"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["groups", "reward/format/mean"]
    assert [(event.step, event.value) for event in events.Scalars("groups")] == [(1, 4), (2, 4), (3, 5)]
    means = [event.value for event in events.Scalars("reward/format/mean")]
    assert means == pytest.approx([0.1, 0.2, 0.3])


def wandb_records(content: bytes) -> list[bytes]:
    """Records of a short .wandb file: a header of 7 bytes, then LevelDB's log format in one block of 32 KiB, in which
    each record has a header of checksum, length and kind (1: whole)."""
    records, position = [], 7
    while position + 7 <= len(content):
        _, length, kind = struct.unpack_from("<IHB", content, position)
        assert (kind, position + length < 32768) == (1, True)
        records.append(content[position + 7 : position + 7 + length])
        position += 7 + length
    return records


@pytest.mark.openrlhf
def test_wandb_writes_an_offline_run(no_network, monkeypatch, tmp_path):
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "online")  # what a user's shell says does not count
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with trackers(("wandb",), tmp_path, "run-1", LINES[:2]) as track:
        track(LINES[2])
    [path] = (tmp_path / "trackers" / "wandb").rglob("run-run-1.wandb")
    assert path.parent.name.startswith("offline-run-")
    steps = {}
    for data in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            steps[record.history.step.num] = items
    assert {step: items["reward/format/mean"] for step, items in steps.items()} == {1: 0.1, 2: 0.2, 3: 0.3}
