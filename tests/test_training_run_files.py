"""What a run writes: atomic, deterministic, cut back on resume."""

import gzip
import json
import shutil

import numpy as np
import pytest

from dara.git import GitError
from dara.training import run_files
from dara.training.run_files import RunRecord
from training_tiny import tiny_spec

SPEC = tiny_spec()


def record(steps: int) -> RunRecord:
    """A run of `steps` steps; every number says its step."""
    return RunRecord(
        metrics=[{"schema": 1, "step": n, "kl": 0.1 * n} for n in range(1, steps + 1)],
        rewards=[np.full((4, 4, 2), float(n)) for n in range(1, steps + 1)],
        lengths=[np.full((4, 4), n) for n in range(1, steps + 1)],
        samples=[{"step": n, "response": "ä"} for n in range(2, steps + 1, 2)],
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
    assert cut.metrics == record(2).metrics
    assert cut.steps == 2
    assert np.array_equal(cut.rewards, record(2).rewards)
    assert np.array_equal(cut.lengths, record(2).lengths)
    assert cut.samples == record(2).samples
    assert cut.seconds == [0.5] * 2
    assert cut.startups == [6.0]
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_without_a_checkpoint_a_run_starts_again(tmp_path):
    write(tmp_path, record(1))
    assert run_files.load(tmp_path, 0).steps == 0
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_missing_step_is_an_error(tmp_path):
    write(tmp_path, record(2))
    with pytest.raises(ValueError, match="has a checkpoint of step 4 but not every step up to it; delete it"):
        run_files.load(tmp_path, 4)


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
    monkeypatch.setattr(run_files, "git_commit", lambda _: "a" * 40)
    run_files.record_start(work, 0, ("numpy",))
    monkeypatch.setattr(run_files, "git_commit", lambda _: "b" * 40)
    run_files.record_start(work, 2, ("numpy",))
    monkeypatch.setattr(run_files, "git_commit", lambda _: "c" * 40)
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


def test_a_git_that_refuses_is_no_missing_commit(tmp_path, monkeypatch, caplog):
    def refuses(directory):
        raise GitError("git says nothing about it: dubious ownership")

    write(tmp_path / "work", record(4))
    monkeypatch.setattr(run_files, "git_commit", refuses)
    run_files.record_start(tmp_path / "work", 0, ("numpy",))
    run_files.publish(tmp_path / "out", tmp_path / "work", SPEC, record(4), inputs={})
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["git_commit"] is None
    assert manifest["git_error"] == "git says nothing about it: dubious ownership"
    assert "dubious ownership" in caplog.text


def test_inputs_may_change_before_the_first_checkpoint_only(tmp_path):
    run_files.check_inputs(tmp_path, {"train.jsonl": "a"})
    run_files.check_inputs(tmp_path, {"train.jsonl": "b"})
    (tmp_path / "step_2").mkdir()
    run_files.check_inputs(tmp_path, {"train.jsonl": "b"})
    with pytest.raises(ValueError, match=r"begun with another model.safetensors, train.jsonl"):
        run_files.check_inputs(tmp_path, {"train.jsonl": "c", "model.safetensors": "d"})


def test_git_commit(tmp_path, git):
    assert run_files.git_commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "x")
    assert len(run_files.git_commit(tmp_path)) == 40


def test_the_small_engine_takes_no_setting_that_it_does_not_read():
    for key, value in {"sampler_seed": 7, "precision": "bfloat16", "entropy_coefficient": 0.1}.items():
        with pytest.raises(ValueError, match=f"engine trl has no {key}; set engine: openrlhf"):
            tiny_spec(**{key: value})
    optimizer = {**tiny_spec().optimizer.model_dump(), "dual_clip": 3.0}
    with pytest.raises(ValueError, match=r"engine trl has no optimizer.dual_clip; set engine: openrlhf"):
        tiny_spec(optimizer=optimizer)
    assert tiny_spec(engine="openrlhf", optimizer=optimizer).optimizer.dual_clip == 3
    assert tiny_spec().rollout_seed == tiny_spec().seed
    assert tiny_spec(engine="openrlhf", sampler_seed=7).rollout_seed == 7
