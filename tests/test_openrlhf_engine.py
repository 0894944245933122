"""The OpenRLHF engine without OpenRLHF: its processes' settings, prompts, checkpoints, disk, resume and failures."""

import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import dara
from dara.config import Resources
from dara.methods import load_method
from dara.runs import run_id
from dara.training import run_files
from dara.training.deadline import OutOfTime
from dara.training.lifecycle import Job, read_rows
from dara.training.openrlhf import checkpoints, engine, ray_node, versions
from dara.training.openrlhf.checkpoints import last_resumable, output_of, prepare_output
from dara.training.openrlhf.labels import Label, prompt_file
from dara.training.openrlhf.prompts import PromptLoader
from dara.training.openrlhf.settings import Settings
from dara.training.openrlhf.worker import EngineArguments, environment_of, vllm_arguments
from dara.training.steps import Rollouts, record_step
from dara.training.trl import training_rows
from training_tiny import PROBLEMS, tiny_spec, write_inputs

PACKAGE = Path(dara.__file__).parents[1]
ENGINE_LINE = {"clip_fraction": 0.0, "kl": 0.0, "entropy": 1.0, "grad_norm": 1.0, "lr": 1e-2}


def openrlhf_spec(**changes):
    return tiny_spec(**{"engine": "openrlhf", **changes})


def settings_of(directory: Path, **changes) -> Settings:
    output = output_of(directory)
    fields = {
        "spec": openrlhf_spec(),
        "resources": Resources(vllm_max_sequences=32),
        "directory": directory,
        "output": output,
        "model_dir": directory / "model",
        "prompts": output / "prompts.jsonl",
        "reward_file": output / "reward.py",
        "methods_dir": None,
        "done": 2,
        "started": 1.5,
        "trackers": ("tensorboard",),
    }
    return Settings(**{**fields, **changes})


# --- the processes' settings ------------------------------------------------------------------------------------------


def test_settings_come_back_as_they_were_written(tmp_path):
    for changes in ({}, {"methods_dir": tmp_path, "ray_address": "head:6379", "keep_advantages": True}):
        settings = settings_of(tmp_path, **changes)
        assert Settings.read(settings.write()) == settings


def test_processes_get_no_hub_and_no_other_ray(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    environment = ray_node.child_environment(tmp_path) | environment_of(on_gpu=False)
    assert "RAY_ADDRESS" not in environment
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    assert environment["DS_ACCELERATOR"] == "cpu"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(PACKAGE)
    assert "DS_ACCELERATOR" not in environment_of(on_gpu=True)


def test_vllm_gets_the_arguments_that_have_no_flag(tmp_path):
    on_cpu = vllm_arguments(settings_of(tmp_path), on_gpu=False)
    assert on_cpu == {
        "dtype": "float32",
        "max_num_seqs": 32,
        "worker_extension_cls": "dara.training.openrlhf.cpu_worker.CpuWorker",
        "enable_chunked_prefill": False,
    }
    half = settings_of(tmp_path, spec=openrlhf_spec(precision="bfloat16"))
    assert vllm_arguments(half, on_gpu=True) == {"dtype": "bfloat16", "max_num_seqs": 32}


def test_engine_arguments_replace_openrlhfs():
    class Actor:
        def options(self, **options):
            self.with_options = options
            return self

        def remote(self, **arguments):
            return self.with_options, arguments

    made = EngineArguments(Actor(), {"dtype": "float32"}).options(num_cpus=1).remote(dtype="bfloat16", seed=3)
    assert made == ({"num_cpus": 1}, {"dtype": "float32", "seed": 3})


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_the_loader_has_the_order_of_the_other_engine_and_can_start_anywhere(tmp_path):
    path, spec = tmp_path / "prompts.jsonl", openrlhf_spec(steps=8)
    prompt_file(PROBLEMS, path)
    expected = training_rows(PROBLEMS, spec)
    for start in (0, 5, 12, 25):
        loader = PromptLoader(path, spec.seed, sampler_seed=7, start=start)
        for position, (sources, [prompt], [label], images) in enumerate(islice(loader, 32 - start), start):
            row = expected[position]
            assert (sources, images) == (["default"], [None])
            assert prompt == row["prompt"]
            assert Label.loads(label) == Label(row["id"], row["reference"], position, 7)


def test_a_prompt_may_hold_any_character(tmp_path):
    row = {"id": "a", "prompt": "one\u2028two\x85three\n", "reference": "\u2029"}
    prompt_file([row], tmp_path / "prompts.jsonl")
    _, [prompt], [label], _ = next(iter(PromptLoader(tmp_path / "prompts.jsonl", 0, 0)))
    assert (prompt, Label.loads(label).reference) == (row["prompt"], row["reference"])
    (tmp_path / "train.jsonl").write_text(4 * (json.dumps(row, ensure_ascii=False) + "\n"), encoding="utf-8")
    assert read_rows(tmp_path / "train.jsonl", openrlhf_spec()) == 4 * [row]


def test_a_filters_candidates_are_different_prompts(tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    rule = {"criterion": "sum_varies", "candidate_prompts": 13, "max_rounds": 2}
    with pytest.raises(ValueError, match="has 12 rows; a step needs 13 different ones"):
        read_rows(tmp_path / "train.jsonl", openrlhf_spec(filter=rule))


# --- checkpoints ------------------------------------------------------------------------------------------------------


def a_checkpoint(directory: Path, step: int, *, marker: bool = True, state: bool = True) -> None:
    (directory / f"step_{step}").mkdir(parents=True)
    if marker:
        (directory / f"step_{step}" / checkpoints.MARKER).write_text("{}")
    if state:
        (output_of(directory) / "_actor" / f"global_step{step}").mkdir(parents=True)


def test_the_marker_is_dropped_when_a_checkpoint_is_not_the_newest_any_more():
    assert checkpoints.MARKER in run_files.RESUME_ONLY


def test_a_resume_needs_checkpoint_and_state(tmp_path):
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


def test_a_start_from_the_beginning_leaves_nothing(tmp_path):
    a_checkpoint(tmp_path, 20)
    prepare_output(output_of(tmp_path), 0)
    assert list(output_of(tmp_path).iterdir()) == []


# --- around the child process -----------------------------------------------------------------------------------------


def test_progress_is_shown_line_by_line(tmp_path, caplog):
    path = tmp_path / "progress.log"
    caplog.set_level("INFO")
    assert engine.relay(path, 0) == 0
    path.write_text("one\ntwo\nthr")
    offset = engine.relay(path, 0)
    with path.open("a") as file:
        file.write("ee\n")
    assert engine.relay(path, offset) == len("one\ntwo\nthree\n")
    assert caplog.messages == ["one", "two", "three"]


def test_a_failure_says_what_the_process_said(tmp_path):
    settings = settings_of(tmp_path)
    settings.output.mkdir()
    (tmp_path / "openrlhf.log").write_text("".join(f"line {i}\n" for i in range(40)))
    error = engine.failure(settings, 1)
    assert isinstance(error, ChildProcessError)
    assert "exit code 1" in str(error)
    assert str(error).endswith("line 38\nline 39")
    (settings.output / "error.json").write_text('{"message": "reward format is nan, not a number"}')
    error = engine.failure(settings, 1)
    assert isinstance(error, ValueError)
    assert str(error) == "reward format is nan, not a number"


@pytest.fixture
def without_openrlhf(monkeypatch):
    """The engine with its child process played by this one."""
    monkeypatch.setattr(versions, "check_version", lambda: None)
    monkeypatch.setattr(versions, "vllm_package", lambda: "torch")
    monkeypatch.setattr(engine, "LIBRARIES", ("numpy",))


def play(settings: Settings, stop_after: int | None, outcome: dict | None) -> None:
    """What the trainer writes: the steps up to `stop_after`, checkpoints, the outcome."""
    spec = settings.spec
    record = run_files.load(settings.directory, settings.done)
    record.startups.append(1.0)
    method, rng = load_method(spec.method.name), np.random.default_rng(settings.done)
    while record.steps < (spec.steps if stop_after is None else stop_after):
        rewards = torch.tensor(rng.integers(0, 2, (4, 4, 2)).astype(float))
        lengths = torch.ones(4, 4, dtype=torch.long)
        rollouts = Rollouts([PROBLEMS[0]] * 16, ["x"] * 16, rewards, lengths, method(rewards, lengths))
        record_step(spec, settings.directory, record, rollouts, ENGINE_LINE, 0.1)
        if record.steps in spec.checkpoint_steps:
            (settings.output / "_actor" / f"global_step{record.steps}").mkdir(parents=True)
            written = settings.directory / f"checkpoint-{record.steps}"
            written.mkdir()
            (written / checkpoints.MARKER).write_text("{}")
            (written / "model.safetensors").write_text(f"weights of {record.steps}")
            run_files.save(settings.directory, record, spec)
            run_files.complete_checkpoint(settings.directory, written, record.steps)
            checkpoints.remove_other_states(settings.output, record.steps)
    if outcome is None:
        raise RuntimeError("killed")
    run_files.save(settings.directory, record, spec)
    (settings.output / "outcome.json").write_text(json.dumps(outcome))


def run_played(monkeypatch, tmp_path, spec, stop_after=None, outcome=None) -> Path:
    starts = []
    monkeypatch.setattr(engine, "run_openrlhf", lambda s: (starts.append(s.done), play(s, stop_after, outcome)))
    if not (tmp_path / "data").exists():
        write_inputs(tmp_path)
    inputs = {"data_dir": tmp_path / "data", "model_dir": tmp_path / "model"}
    engine.train(spec, Job(**inputs, scratch=tmp_path / "scratch", out=tmp_path / "out"), resources=Resources())
    (tmp_path / "starts").write_text(json.dumps(starts))
    return tmp_path / "out"


def test_an_interrupted_run_resumes_and_repeats_no_step(without_openrlhf, monkeypatch, tmp_path):
    spec = openrlhf_spec(steps=6)
    with pytest.raises(RuntimeError, match="killed"):
        run_played(monkeypatch, tmp_path, spec, stop_after=5)
    directory = tmp_path / "scratch" / run_id(spec)
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 5
    out = run_played(monkeypatch, tmp_path, spec, outcome={"divergence": None, "out_of_time": None})
    assert json.loads((tmp_path / "starts").read_text()) == [4]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["outcome"] == "completed"
    assert list(manifest["checkpoints"]) == ["2", "4", "6"]
    assert [start["from_step"] for start in manifest["starts"]] == [0, 4]
    assert json.loads((out / "timings.json").read_text())["seconds_to_start"] == [1.0, 1.0]
    assert np.load(out / "rewards.npz")["rewards"].shape == (6, 4, 4, 2)


def test_a_run_that_ran_out_of_time_is_continued_by_the_next_job(without_openrlhf, monkeypatch, tmp_path):
    spec, stopped = (
        openrlhf_spec(steps=6),
        {"divergence": None, "out_of_time": "stopped at step 4 before the time limit"},
    )
    with pytest.raises(OutOfTime, match="stopped at step 4 before the time limit"):
        run_played(monkeypatch, tmp_path, spec, stop_after=4, outcome=stopped)
    assert not (tmp_path / "out").exists(), "nothing is published before the end"
    out = run_played(monkeypatch, tmp_path, spec, outcome={"divergence": None, "out_of_time": None})
    assert json.loads((tmp_path / "starts").read_text()) == [4]
    assert json.loads((out / "manifest.json").read_text())["outcome"] == "completed"


def test_divergence_is_an_outcome(without_openrlhf, monkeypatch, tmp_path):
    out = run_played(
        monkeypatch,
        tmp_path,
        openrlhf_spec(steps=6),
        stop_after=3,
        outcome={"divergence": {"step": 4, "reason": "a weight is not finite"}, "out_of_time": None},
    )
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["outcome"], manifest["diverged_at"], manifest["steps"]) == ("diverged", 4, 3)
    assert list(manifest["checkpoints"]) == ["2"]
    assert np.load(out / "rewards.npz")["rewards"].shape == (3, 4, 4, 2)


def test_divergence_in_the_first_step(without_openrlhf, monkeypatch, tmp_path):
    out = run_played(
        monkeypatch,
        tmp_path,
        openrlhf_spec(steps=6),
        stop_after=0,
        outcome={"divergence": {"step": 1, "reason": "a weight is not finite"}, "out_of_time": None},
    )
    assert json.loads((out / "manifest.json").read_text())["steps"] == 0


def test_the_child_is_told_everything_by_a_file(without_openrlhf, monkeypatch, tmp_path):
    seen = {}

    def look(settings: Settings) -> None:
        seen["settings"] = Settings.read(settings.output / "settings.json")
        seen["prompts"] = settings.prompts.read_text().splitlines()
        play(settings, None, {"divergence": None, "out_of_time": None})

    monkeypatch.setattr(engine, "run_openrlhf", look)
    inputs = write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    job = Job(**inputs, scratch=Path("scratch"), out=tmp_path / "out")
    engine.train(openrlhf_spec(), job, resources=Resources())
    settings = seen["settings"]
    assert settings.directory == tmp_path / "scratch" / run_id(openrlhf_spec()), "absolute, for processes elsewhere"
    assert settings.done == 0
    assert len(seen["prompts"]) == len(PROBLEMS)
    assert "AgentExecutor" in settings.reward_file.read_text()
