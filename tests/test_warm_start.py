"""The warm start at a tiny size: determinism, what is published, and its errors."""

import hashlib
import json
import math
import random
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dara.config import Architecture, DataSpec, WarmStart
from dara.data.generated import held_out
from dara.data.prepare import prepare
from dara.runs import model_id
from dara.specs import ModelSpec
from dara.training import warm_start as module
from dara.training.warm_start import build_model, demonstration_batches, learning_rate, response_loss, warm_start

DATA = DataSpec(source="laptop_math", version=1, seed=5, train_rows=20, held_out_rows=100)
RECIPE = WarmStart(
    steps=3,
    batch_size=8,
    learning_rate=4e-3,
    warmup_steps=2,
    betas=(0.9, 0.98),
    weight_decay=0.01,
    max_grad_norm=1.0,
    seed=7,
    demonstrations={},
)
SHAPE = Architecture(vocabulary=512, hidden_size=16, layers=1, heads=2, intermediate_size=32, initializer_range=0.04)
SPEC = ModelSpec(name="tiny", data=DATA, architecture=SHAPE, warm_start=RECIPE)


def changed(**recipe):
    return SPEC.model_copy(update={"warm_start": RECIPE.model_copy(update=recipe)})


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    prepare(DATA, folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(data_dir):
    return AutoTokenizer.from_pretrained(data_dir / "tokenizer")


def run(spec, data_dir, folder):
    warm_start(spec, data_dir, folder / "scratch", folder / "models" / "manifest.json")
    return json.loads((folder / "models" / "manifest.json").read_text())


def test_same_specification_same_weights_and_global_state_is_left_alone(data_dir, tmp_path):
    torch.manual_seed(1)
    first = run(SPEC, data_dir, tmp_path / "a")
    torch.manual_seed(2)
    random.seed(3)
    torch_state, python_state, threads = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    second = run(SPEC, data_dir, tmp_path / "b")
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert torch.get_num_threads() == threads
    assert first["sha256"] == second["sha256"]
    assert first["loss"] == second["loss"]
    other = run(changed(seed=8), data_dir, tmp_path / "c")
    assert other["sha256"]["model.safetensors"] != first["sha256"]["model.safetensors"]


def test_what_is_published(data_dir, tmp_path):
    manifest = run(SPEC, data_dir, tmp_path)
    manifest = run(SPEC, data_dir, tmp_path)  # replaces the old checkpoint
    directory = tmp_path / "scratch" / "models" / model_id(SPEC)
    assert manifest["model"] == SPEC.model_dump(mode="json")
    assert manifest["directory"] == str(directory)
    assert set(manifest["versions"]) == {"python", "torch", "transformers", "tokenizers"}
    assert 5 < manifest["loss"] < 6.5  # about log(512) = 6.2 after three steps
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in directory.iterdir()}
    assert manifest["sha256"] == files
    assert "model.safetensors" in files
    assert [p.name for p in directory.parent.iterdir()] == [directory.name]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    assert model.dtype == torch.float32
    assert model.config.tie_word_embeddings
    assert (model.config.pad_token_id, model.config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert tokenizer.decode(tokenizer("solve 11+2\\boxed{13}")["input_ids"]) == "solve 11+2\\boxed{13}"


def test_it_learns_and_logs_its_progress(data_dir, tokenizer, caplog):
    model = build_model(SHAPE, tokenizer, 7)
    recipe = RECIPE.model_copy(update={"steps": 60})
    batch = next(demonstration_batches(SPEC, tokenizer))
    before = response_loss(model, batch, tokenizer.pad_token_id).item()
    with caplog.at_level("INFO", logger="dara"):
        module.fit(model, demonstration_batches(SPEC, tokenizer), recipe, pad=tokenizer.pad_token_id, name="tiny")
    after = response_loss(model, batch, tokenizer.pad_token_id).item()
    assert before == pytest.approx(math.log(512), abs=0.3)
    assert after < 0.6 * before
    assert [line.split(" | ")[:2] for line in caplog.messages] == [
        ["warm start of tiny", f"step {step}/60"] for step in (40, 60)
    ]
    assert caplog.messages[0].endswith(" s left")


def test_loss_counts_response_tokens_only(tokenizer):
    """The loss of a padded batch equals the token mean over its rows one by one, computed from the full logits."""
    model = build_model(SHAPE, tokenizer, 7)
    batch = [([5, 6, 7], [8, 9, 1]), ([10], [11, 1])]
    terms = []
    for prompt, answer in batch:
        logits = model(torch.tensor([prompt + answer])).logits[0]
        scores = logits.log_softmax(-1)
        terms += [-scores[len(prompt) - 1 + i, token].item() for i, token in enumerate(answer)]
    assert response_loss(model, batch, pad=0).item() == pytest.approx(sum(terms) / 5, rel=1e-5)


def test_demonstrations_leave_held_out_problems_out(tokenizer):
    excluded = held_out(DATA)
    batches = demonstration_batches(changed(batch_size=64), tokenizer)
    seen = set()
    for _ in range(20):
        for prompt, answer in next(batches):
            assert answer[-1] == tokenizer.eos_token_id
            assert tokenizer.eos_token_id not in answer[:-1]
            first, *small = map(int, re.findall(r"\d+", tokenizer.decode(prompt)))
            seen.add((first, *sorted(small)))
    assert len(seen) > 500
    assert not seen & excluded.keys()


def test_learning_rate_rises_then_falls():
    recipe = RECIPE.model_copy(update={"steps": 320, "warmup_steps": 30})
    rates = [learning_rate(step, recipe) for step in range(320)]
    assert rates[0] == pytest.approx(4e-3 / 30 + 1e-5)
    assert rates[159] == pytest.approx(2e-3, rel=0.02)
    assert rates[-1] == pytest.approx(1e-5, rel=0.05)
    assert max(rates) == pytest.approx(4e-3, rel=0.03)
    assert 25 <= rates.index(max(rates)) <= 32


def test_errors_name_what_is_wrong(data_dir, tmp_path):
    with pytest.raises(ValueError, match="laptop_math has no parameter 'wrong'; it has direct, wrong_terse"):
        run(changed(demonstrations={"wrong": 0.1}), data_dir, tmp_path)
    small = SPEC.model_copy(update={"architecture": SHAPE.model_copy(update={"vocabulary": 300})})
    with pytest.raises(ValueError, match=r"architecture\.vocabulary: 300 is too small; the tokenizer has 512 entries"):
        run(small, data_dir, tmp_path)
    with pytest.raises(ValueError, match="is missing; prepare the data set first"):
        run(SPEC, tmp_path, tmp_path)
    other = SPEC.model_copy(update={"data": DATA.model_copy(update={"seed": 6})})
    with pytest.raises(ValueError, match='"data" differs from the model\'s data specification'):
        run(other, data_dir, tmp_path)
    with pytest.raises(ValueError, match=r"diverged: its loss is nan at step \d+ of 30; .*learning_rate 1e\+30"):
        run(changed(steps=30, learning_rate=1e30), data_dir, tmp_path)
    assert not [*tmp_path.rglob("manifest.json"), *tmp_path.rglob("*.safetensors")]
