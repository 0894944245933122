"""Ray for one run: started, stopped, and gone, whatever ends it; a cluster that stands apart is left alone."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import dara
from dara.training.openrlhf import node

PACKAGE = str(Path(dara.__file__).parents[1])

DRIVER = """
import os, sys, time
from pathlib import Path
import psutil
from dara.training.openrlhf import node

directory, how, address = Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
own = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 80 * 1024**2}
with node.session(directory, {"GREETING": "hello"}, address=address, **own):
    import ray

    @ray.remote(num_gpus=0 if address else 1)
    class Worker:
        def look(self):
            return os.environ["GREETING"], os.environ.get("RAY_USAGE_STATS_ENABLED")

        def fail(self):
            raise ValueError("the sentence of the worker")

    @ray.remote
    class Trainer:
        def fit(self, worker):
            return ray.get(worker.fail.remote())

    worker = Worker.remote()
    print(*ray.get(worker.look.remote()), flush=True)
    print("address", ray.get_runtime_context().gcs_address, flush=True)
    if how == "fail":
        try:
            ray.get(Trainer.remote().fit.remote(worker))
        except ValueError as error:
            sys.exit(f"{type(node.root_cause(error)).__name__}: {node.root_cause(error)}")
    while how == "wait":
        time.sleep(0.1)
"""


def start(directory: Path, how: str, *address: str) -> subprocess.Popen:
    """A process that has Ray running and a worker that has answered."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "driver.py").write_text(DRIVER)
    environment = {**node.child_environment(directory), "PYTHONPATH": PACKAGE}
    command = [sys.executable, str(directory / "driver.py"), str(directory), how, *address]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("hello 0"):
            return process
    raise AssertionError(process.stderr.read())


def wait_until_gone(directory: Path, seconds: float) -> list[psutil.Process]:
    end = time.monotonic() + seconds
    while node.leftovers(directory) and time.monotonic() < end:
        time.sleep(0.2)
    return node.leftovers(directory)


def names(processes: list[psutil.Process]) -> str:
    return " ".join(process.name() for process in processes)


@pytest.fixture
def run(tmp_path):
    """The directory of a run; whatever a failing test leaves running in it is ended."""
    directory = tmp_path / "run"
    yield directory
    node.stop(directory)


# --- without Ray ------------------------------------------------------------------------------------------------------


def test_temporary_directory_is_short_and_its_own(monkeypatch, tmp_path):
    one, other = (node.temporary_directory(tmp_path / name) for name in "ab")
    assert one != other
    assert one == node.temporary_directory(tmp_path / "a")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "x" * 100)
    assert len(str(node.temporary_directory(tmp_path))) <= 40
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ValueError, match="set TMPDIR to a shorter one"):
        node.temporary_directory(tmp_path)


def sleeper(directory: Path) -> subprocess.Popen:
    """A marked process that ignores SIGTERM and has a child without the mark."""
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={})\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = node.child_environment(directory)
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    return process


def test_stop_ends_what_a_start_left(monkeypatch, run):
    monkeypatch.setattr(node, "TERM_SECONDS", 0.3)
    process = sleeper(run)
    assert len(node.leftovers(run)) == 2
    assert node.leftovers(run.with_name("other")) == []
    temporary = node.temporary_directory(run)
    temporary.mkdir()
    node.stop(run)
    assert process.wait(5) == -signal.SIGKILL
    assert node.leftovers(run) == []
    assert not temporary.exists()


def test_this_process_is_no_leftover_of_its_own(monkeypatch, run):
    own = [psutil.Process(), *psutil.Process().parents()]
    for process in own:
        process.info = {"environ": {node.MARK: str(run)}}
    monkeypatch.setattr("psutil.process_iter", lambda attributes: own)
    assert node.leftovers(run) == []


def in_guard(directory: Path, number: int | None) -> None:
    """A guarded run with a process of its own, ended by a signal or an error; one is left from the start before."""
    sleeper(directory)
    with node.guarded(directory):
        assert node.leftovers(directory) == []
        sleeper(directory)
        if number is None:
            raise KeyError
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGHUP])
def test_guarded_cleans_up_before_and_after_an_error_or_a_signal(monkeypatch, run, number):
    monkeypatch.setattr(node, "TERM_SECONDS", 0.3)
    handled = number or signal.SIGTERM
    before = signal.signal(handled, signal.SIG_DFL)  # whoever runs the tests with nohup ignores SIGHUP
    try:
        with pytest.raises(SystemExit if number else KeyError) as caught:
            in_guard(run, number)
        assert signal.getsignal(handled) == signal.SIG_DFL
    finally:
        signal.signal(handled, before)
    assert number is None or caught.value.code == 128 + number
    assert node.leftovers(run) == []


def test_root_cause_looks_through_wrappings():
    inner = ValueError("why")
    middle, outer = RuntimeError("middle"), RuntimeError("outer")
    middle.cause, outer.cause = inner, middle
    assert node.root_cause(outer) is inner
    assert node.root_cause(inner) is inner


@pytest.mark.parametrize("address", ["auto", "ray://head:10001", "6379", "head"])
def test_address_of_a_cluster_has_one_form(address):
    with pytest.raises(ValueError, match="it must be host:port of the cluster's head"):
        node.check_address(address)


def test_cluster_must_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        node.check_address(address)
    with pytest.raises(ValueError, match=f"ray_address {address}: nothing answers there from this node"):
        node.check_address(address)


# --- with Ray ---------------------------------------------------------------------------------------------------------


@pytest.mark.openrlhf
def test_ray_starts_apart_and_leaves_nothing(monkeypatch, run, tmp_path):
    """Two runs on one node at once, in spite of an address in the environment; one ends, one is killed."""
    monkeypatch.setenv("RAY_ADDRESS", "10.255.255.1:6379")
    other = tmp_path / "other"
    one, two = start(run, "wait"), start(other, "wait")
    try:
        addresses = [process.stdout.readline() for process in (one, two)]
        assert addresses[0].startswith("address ")
        assert addresses[0] != addresses[1]
        assert "raylet" in names(node.leftovers(run))
        assert any("ray::Worker" in " ".join(process.cmdline()) for process in node.leftovers(run))
        one.terminate()
        one.wait(60)
        assert wait_until_gone(run, 30) == []
        assert two.poll() is None
        assert "raylet" in names(node.leftovers(other))
        two.kill()
        two.wait(10)
        node.stop(other)
        assert node.leftovers(other) == []
        assert not node.temporary_directory(other).exists()
    finally:
        node.stop(other)


@pytest.mark.openrlhf
def test_error_of_a_worker_ends_the_process_with_its_sentence(run):
    process = start(run, "fail")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "ValueError: the sentence of the worker"
    assert wait_until_gone(run, 30) == []


@pytest.mark.openrlhf
def test_existing_cluster_stays_alive(run, tmp_path):
    head = tmp_path / "head"
    cluster = start(head, "wait")
    try:
        address = cluster.stdout.readline().split()[1]
        started = {process.pid for process in node.leftovers(head)}
        guest = start(run, "wait", address)
        assert guest.stdout.readline().split()[1] == address
        assert "raylet" not in names(node.leftovers(run))
        node.stop(run)
        assert guest.wait(30) is not None
        assert node.leftovers(run) == []
        assert cluster.poll() is None
        raylets = [process for process in node.leftovers(head) if "raylet" in process.name()]
        assert raylets
        assert {process.pid for process in raylets} <= started
    finally:
        node.stop(head)
