"""What a training or an evaluation is started from by hand: manifests of the right things, or one sentence."""

import json
from pathlib import Path

import pytest

from dara.cli import main
from dara.store import base_model, canonical_json, checkpoints
from evaluation_fakes import benchmark
from training_tiny import tiny_spec


@pytest.fixture
def started(tmp_path: Path) -> dict[str, Path]:
    """A specification with manifests of its data and its base model."""
    spec = tiny_spec()
    (tmp_path / "weights").mkdir()
    model = {"model": spec.model.model_dump(mode="json"), "directory": str(tmp_path / "weights"), "sha256": {"a": "0"}}
    contents = {"spec": json.loads(spec.model_dump_json()), "data": {"data": spec.data.model_dump(mode="json")}}
    paths = {}
    for name, content in {**contents, "model": model}.items():
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(json.dumps(content))
    return paths


def train(started: dict[str, Path], capsys, **other: Path) -> str:
    paths = started | other
    with pytest.raises(SystemExit):
        main(
            [
                *("train", str(paths["spec"]), "--resources", "{}", "--scratch", str(paths["spec"].parent / "scratch")),
                *("--data", str(paths["data"]), "--model", str(paths["model"])),
            ]
        )
    return capsys.readouterr().err


def test_inputs_of_another_run_are_not_trained_on(started, capsys):
    data = json.loads(started["data"].read_text())
    data["data"]["seed"] += 1
    started["data"].write_text(json.dumps(data))
    assert "data.json is not of the data that the run's specification names" in train(started, capsys)


def test_a_manifest_of_something_else_or_a_damaged_one_is_named(started, tmp_path, capsys):
    assert "data.json is not of the model that the run's" in train(started, capsys, model=started["data"])
    with pytest.raises(ValueError, match=r"data\.json is not the manifest of a base model"):
        base_model(started["data"])
    (tmp_path / "torn.json").write_text('{"mod')
    assert "torn.json is damaged: it is no JSON" in train(started, capsys, model=tmp_path / "torn.json")
    (entry,) = checkpoints(started["model"]).values()
    assert (entry["directory"], entry["sha256"]) == (str(tmp_path / "weights"), {"a": "0"})


def test_options_of_the_other_form_of_evaluate_are_refused(capsys):
    for words, message in (
        (["m.json", "--limit", "3"], "--limit is an option of `evaluate` with --model only"),
        (["--model", "d", "--part", "1/2"], "--part is an option of `evaluate` without --model only"),
        (["--model", "d", "--steps", "50"], "--steps is an option of `evaluate` without --model only"),
        (["--model", "d", "--gather"], "--gather is an option of `evaluate` without --model only"),
    ):
        with pytest.raises(SystemExit):
            main(["evaluate", *words, "--benchmark", "bfcl_v4"])
        assert message in capsys.readouterr().err


def test_only_the_steps_that_are_asked_for_are_evaluated(tmp_path, monkeypatch, capsys):
    made = []
    monkeypatch.setattr("dara.evaluation.generate.generate_checkpoints", lambda steps, *_, **__: made.append([*steps]))
    manifest, saved = tmp_path / "manifest.json", {str(step): {"directory": "d", "sha256": {}} for step in (10, 20)}

    def evaluate(outcome, *words):
        manifest.write_text(json.dumps({"outcome": outcome, "checkpoints": saved}))
        options = ["--data", str(manifest), "--benchmark", canonical_json(benchmark("laptop_math"))]
        main(["evaluate", str(manifest), *options, "--out", str(tmp_path / "out"), *words])

    evaluate("completed")
    evaluate("completed", "--steps", "20")
    evaluate("diverged", "--steps", "20,30")
    assert made == [[10, 20], [20], [20]]
    for steps, message in (
        ("20,30", f"--steps 20,30: {manifest} has no checkpoint of step 30; it has 10, 20"),
        ("20 30", "--steps is '20 30'; it must be steps with commas, such as 50,100"),
    ):
        with pytest.raises(SystemExit):
            evaluate("completed", "--steps", steps)
        assert message in capsys.readouterr().err
