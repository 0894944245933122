"""Inputs for the tests of training: 12 problems, a small tokenizer, a tiny Llama that often ends its responses."""

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dara.data.generated import build_tokenizer
from dara.registries import ENGINES
from dara.specs import RunSpec
from dara.training.run import RunInputs

PROBLEMS = [
    {"id": f"p{i}", "prompt": f"<user>solve {i}{i}+{i}{' ' * i}</user>\n", "reference": str(12 * i)} for i in range(12)
]


def tokenizer():
    """The product's own tokenizer over the texts of the problems."""
    return build_tokenizer(row["prompt"] + "\\boxed{" + row["reference"] + "}" for row in PROBLEMS)


def tiny_model(tokens, seed: int = 0) -> LlamaForCausalLM:
    """Hidden size 32, one layer; about one token in six is the end token, so lengths differ within a group."""
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=False,
        pad_token_id=tokens.pad_token_id,
        eos_token_id=tokens.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        model.model.embed_tokens.weight[:, 0] = 3.0
        for layer in model.model.layers:  # nothing adds to the first hidden value, so it is large in every position
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[tokens.eos_token_id, 0] = 0.7
    return model.eval()


def write_inputs(directory: Path) -> dict[str, Path]:
    """data_dir and model_dir of RunInputs, made in `directory`."""
    paths = {"data_dir": directory / "data", "model_dir": directory / "model"}
    paths["data_dir"].mkdir(parents=True)
    (paths["data_dir"] / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    tokens = tokenizer()
    tiny_model(tokens).save_pretrained(paths["model_dir"])
    tokens.save_pretrained(paths["model_dir"])
    return paths


def tiny_spec(
    *, method: str | dict = "dara_sym", params: dict | None = None, learning_rate: float = 1e-2, **changes
) -> RunSpec:
    """A run of 4 steps of 4 prompts x 4 responses of at most 8 tokens, with a checkpoint every 2 steps."""
    data = {"source": "laptop_math", "seed": 0, "train_rows": 12, "held_out_rows": 1}
    optimizer = {"learning_rate": learning_rate, "betas": [0.9, 0.98], "weight_decay": 0.0, "max_grad_norm": 1.0}
    architecture = {"vocabulary": 512, "hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 48}
    warm_start = {"steps": 1, "batch_size": 1, "learning_rate": 1.0, "warmup_steps": 0, "betas": [0.9, 0.98]}
    fields = {
        "contract": 1,
        "task": "math",
        "rewards": ["correctness", "length"],
        "reward_params": {"length": {"limit": 4}},
        "data": data,
        "model": {
            "name": "tiny",
            "data": data,
            "architecture": {**architecture, "initializer_range": 0.3},
            "warm_start": {**warm_start, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 0},
        },
        "method": method if isinstance(method, dict) else {"name": method, "params": params or {}},
        "group_size": 4,
        "prompts_per_step": 4,
        "steps": 4,
        "checkpoint_every": 2,
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 8},
        "optimizer": {**optimizer, "updates_per_step": 2, "clip_low": 0.2, "clip_high": 0.3},
        "engine": "trl",
        "seed": 100,
    }
    return RunSpec.model_validate({**fields, **changes})


def run(spec: RunSpec, inputs: dict[str, Path], directory: Path, **options) -> Path:
    """Train in `directory`; the published results."""
    ENGINES[spec.engine].train(
        spec, RunInputs(**inputs, scratch=directory / "scratch", out=directory / "out", **options)
    )
    return directory / "out"
