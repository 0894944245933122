"""TensorBoard and offline Weights & Biases: what is written, a resumed run, and a package that is missing.

Those that read what was written need the packages, which are in OpenRLHF's environment; the others replace them.
"""

import json
import socket
import struct
import sys
import types
from pathlib import Path

import pytest

from dara.training.trackers import check_installed, tracker

LINES = [{"schema": 1, "step": step, "reward/format/mean": step / 10, "groups": 4} for step in (1, 2, 3)]


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
    wandb = types.ModuleType("wandb")
    wandb.init, wandb.Settings, wandb.teardown = one.make, lambda **settings: settings, lambda: None
    tensorboard = types.ModuleType("torch.utils.tensorboard")
    tensorboard.SummaryWriter = one.make
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    return one


def test_off_by_default(tmp_path):
    none = tracker((), tmp_path, "run")
    none.log(1, LINES[0])
    none.close()
    assert list(tmp_path.iterdir()) == []


def test_unknown_tracker_is_an_error():
    with pytest.raises(ValueError, match="unknown tracker 'mlflow': the trackers are tensorboard, wandb"):
        check_installed(("mlflow",))


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_missing_package_is_named(monkeypatch, tmp_path, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(ValueError, match=f"the tracker {name} needs the package {name}, which is not installed"):
        tracker((name,), tmp_path, "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_steps_so_far_come_first_and_no_schema(fake, tmp_path, name):
    followed = tracker((name,), tmp_path, "run", LINES[:2])
    followed.log(3, LINES[2])
    by_step: dict[int, dict] = {}
    for step, values in fake.logged:
        by_step.setdefault(step, {}).update(values)
    assert by_step == {s: {"reward/format/mean": s / 10, "groups": 4.0} for s in (1, 2, 3)}
    followed.close()
    followed.close()
    assert fake.closed == 1


def test_wandb_is_offline_by_the_call(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "online")
    tracker(("wandb",), tmp_path, "math-tiny-dara_sym-g8-s100-6c83030e")
    [arguments] = fake.made
    assert arguments["mode"] == "offline"
    assert arguments["id"] == arguments["name"] == "math-tiny-dara_sym-g8-s100-6c83030e"
    assert arguments["dir"] == str(tmp_path / "trackers" / "wandb")


def test_an_earlier_start_is_replaced(fake, tmp_path):
    old = tmp_path / "trackers" / "wandb" / "offline-run-old"
    old.mkdir(parents=True)
    tracker(("wandb",), tmp_path, "run")
    assert not old.exists()


# --- with the packages ------------------------------------------------------------------------------------------------


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

    first = tracker(("tensorboard",), tmp_path, "run")
    for line in LINES:
        first.log(line["step"], line)  # and is interrupted: it is not closed
    resumed = tracker(("tensorboard",), tmp_path, "run", LINES[:2])
    resumed.log(3, {**LINES[2], "groups": 5})
    resumed.close()
    events = EventAccumulator(str(tmp_path / "trackers" / "tensorboard" / "run"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["groups", "reward/format/mean"]
    assert [(event.step, event.value) for event in events.Scalars("groups")] == [(1, 4), (2, 4), (3, 5)]
    means = [event.value for event in events.Scalars("reward/format/mean")]
    assert means == pytest.approx([0.1, 0.2, 0.3])


def wandb_records(content: bytes) -> list[bytes]:
    """Records of a .wandb file: a header of 7 bytes, then LevelDB's log format (blocks of 32 KiB; a record's parts have
    a header of checksum, length and kind: 1 whole, 2 first, 3 middle, 4 last)."""
    records, position = [], 7
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # the rest of a block is padding
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        part = content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 2):
            records.append(part)
        else:
            records[-1] += part
    return records


@pytest.mark.openrlhf
def test_wandb_writes_an_offline_run(no_network, monkeypatch, tmp_path):
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "online")  # what a user's shell says does not count
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    followed = tracker(("wandb",), tmp_path, "run-1", LINES[:2])
    followed.log(3, LINES[2])
    followed.close()
    [path] = Path(tmp_path / "trackers" / "wandb").rglob("run-run-1.wandb")
    assert path.parent.name.startswith("offline-run-")
    steps = {}
    for data in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            steps[record.history.step.num] = items
    assert {step: items["reward/format/mean"] for step, items in steps.items()} == {1: 0.1, 2: 0.2, 3: 0.3}
