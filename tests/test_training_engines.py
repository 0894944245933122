"""The engines by object: what each can train, and that a new one is an entry which every part of the workflow asks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dara.config import Resources
from dara.methods import load_method
from dara.registries import ENGINES, Engine
from dara.specs import RunSpec
from dara.training.run import ResumePoint, RunInputs, train_run
from dara.training.run_files import RunRecord
from dara.training.step import ENGINE_METRICS, Progress, Rollouts
from training_tiny import tiny_spec, write_inputs


def train(spec: RunSpec, inputs: RunInputs, *, resources: Resources, ray_address: str | None = None) -> None:
    """What an engine's trainer module has."""
    train_run(spec, made_up_steps, inputs, libraries=("numpy",))


def made_up_steps(point: ResumePoint) -> tuple[RunRecord, None]:
    """Steps without a model, recorded as every engine records its own."""
    spec = point.spec
    progress = Progress(spec, point.directory, point.record, load_method(spec.method.name), None)
    shape = (spec.prompts_per_step, spec.group_size)
    while point.record.steps < spec.steps:
        rewards, lengths = torch.ones(*shape, len(spec.rewards)).double(), torch.ones(shape, dtype=torch.long)
        samples = shape[0] * shape[1]
        rollouts = Rollouts(
            point.rows[:1] * samples, ["x"] * samples, rewards, lengths, progress.method(rewards, lengths)
        )
        progress.complete_step(rollouts, dict.fromkeys(ENGINE_METRICS, 1.0), 0.1)
    return point.record, None


def test_a_new_engine_is_an_entry(tmp_path, monkeypatch):
    monkeypatch.setitem(ENGINES, "fake", Engine("fake", "Fake", trainer=__name__))
    spec = tiny_spec().model_copy(update={"engine": "fake"})
    engine = ENGINES[spec.engine]
    engine.check(spec)
    engine.check_resources(spec, Resources())
    inputs = RunInputs(**write_inputs(tmp_path), scratch=tmp_path / "scratch", out=tmp_path / "out")
    engine.train(spec, inputs, resources=Resources(), ray_address=None)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["outcome"], manifest["steps"]) == ("completed", 4)
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 4
    with pytest.raises(ValueError, match="engine fake has no command line of its own: it runs in this process"):
        engine.command_text(spec, Resources(), model=Path("m"), output=Path("o"))


def test_the_small_engine_takes_no_setting_that_it_does_not_read():
    for key, value in {"sampler_seed": 7, "precision": "bfloat16", "entropy_coefficient": 0.1}.items():
        with pytest.raises(ValueError, match=f"engine trl has no {key}; set engine: openrlhf"):
            tiny_spec(**{key: value})
    optimizer = {**tiny_spec().optimizer.model_dump(), "dual_clip": 3.0}
    with pytest.raises(ValueError, match=r"engine trl has no precision, optimizer.dual_clip; set engine: openrlhf"):
        tiny_spec(optimizer=optimizer, precision="bfloat16")
    hub = {"name": "large", "hub": "owner/large", "revision": "0" * 40}
    with pytest.raises(
        ValueError, match="engine trl trains the laptop's models, not owner/large; set engine: openrlhf"
    ):
        tiny_spec(model=hub)
    assert tiny_spec(engine="openrlhf", model=hub, optimizer=optimizer).optimizer.dual_clip == 3
    assert tiny_spec().rollout_seed == tiny_spec().seed
    assert tiny_spec(engine="openrlhf", sampler_seed=7).rollout_seed == 7
    with pytest.raises(ValueError, match="Input should be 'trl' or 'openrlhf'"):
        tiny_spec(engine="verl")


def test_the_registry_and_the_checks_of_hardware_import_nothing_heavy():
    code = (
        "import sys, dara.specs, dara.training.openrlhf.command, dara.training.openrlhf.launch; "
        "print({'torch', 'ray', 'trl', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
