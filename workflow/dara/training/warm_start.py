"""The warm start: trains a small Llama on demonstrations; it becomes the base model of the laptop's runs.

The loss is on the response and its end token. Batches are not sorted by length: batches of similar length would halve
the accuracy on the math task. Everything runs in float32 on one thread, so the same specification gives the same
weights.
"""

import logging
import math
import platform
import random
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dara.config import Architecture, WarmStart
from dara.data import source_of
from dara.data.generated import demonstration_parameters, draw, held_out
from dara.files import read_json
from dara.runs import model_id
from dara.specs import ModelSpec
from dara.store import MANIFEST, assembled, checksums, write_manifest
from dara.system import one_thread, quiet

logger = logging.getLogger(__name__)

CONTEXT = 256  # positions of the model; a prompt with the longest response has about 100
LOWEST_RATE = 1e-5  # added to the cosine schedule, so that its last steps still learn
LOG_EVERY = 40  # steps
Pair = tuple[list[int], list[int]]  # tokens of a prompt, tokens of its response with the end token


def warm_start(spec: ModelSpec, data_dir: Path, scratch: Path, manifest: Path) -> None:
    """Train the base model of `spec`, publish it in `<scratch>/models/<model id>/`, and write `manifest`.

    `data_dir` is the prepared data set of `spec.data`; its tokenizer goes into the checkpoint. Raises ValueError if it
    was made from another specification, if a parameter does not fit the source, or if the loss is not finite.
    """
    started = time.monotonic()
    prepared = data_dir / MANIFEST
    if not prepared.is_file():
        raise ValueError(f"{prepared} is missing; prepare the data set first (dara prepare)")
    if read_json(prepared)["data"] != spec.data.model_dump(mode="json"):
        raise ValueError(f'{prepared}: "data" differs from the model\'s data specification; prepare the data set again')
    quiet()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(data_dir / "tokenizer")
    with one_thread():
        model = build_model(spec.architecture, tokenizer, spec.warm_start.seed)
        loss = fit(model, demonstration_batches(spec, tokenizer), spec, pad=tokenizer.pad_token_id)
    directory = scratch / "models" / model_id(spec)
    with assembled(directory) as staging:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
    versions = {"torch": str(torch.__version__)} | {name: version(name) for name in ("transformers", "tokenizers")}
    content = {
        "model": spec.model_dump(mode="json"),
        "directory": str(directory),
        "sha256": checksums(directory),
        "loss": loss,
        "versions": {"python": platform.python_version(), **versions},
    }
    write_manifest(manifest, content)
    logger.info("warm start of %s | done | loss %.3f | %.0f s", spec.name, loss, time.monotonic() - started)


def build_model(architecture: Architecture, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return a float32 Llama with tied embeddings and seeded random weights; keep the global random state.

    The vocabulary may have more entries than the tokenizer, as is usual; ValueError if it has fewer.
    """
    if len(tokenizer) > architecture.vocabulary:
        raise ValueError(
            f"architecture.vocabulary: {architecture.vocabulary} is too small; "
            f"the tokenizer has {len(tokenizer)} entries"
        )
    config = LlamaConfig(
        vocab_size=architecture.vocabulary,
        hidden_size=architecture.hidden_size,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.heads,
        intermediate_size=architecture.intermediate_size,
        initializer_range=architecture.initializer_range,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(torch.float32)


def demonstration_batches(spec: ModelSpec, tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Pair]]:
    """Yield batches of tokenized demonstrations without end, in the order drawn; none of a held-out problem."""
    task, recipe = source_of(spec.data).generator, spec.warm_start
    parameters = demonstration_parameters(spec.data.source, recipe.demonstrations)
    excluded = held_out(spec.data)
    rng = random.Random(f"{spec.data.source}/{spec.data.version}/demonstrations/{recipe.seed}")
    while True:
        examples = [draw(spec.data, rng, excluded) for _ in range(recipe.batch_size)]
        prompts = tokenizer([one.prompt for one in examples])["input_ids"]
        answers = tokenizer([task.demonstration(rng, one, **parameters) for one in examples])["input_ids"]
        yield [(p, [*a, tokenizer.eos_token_id]) for p, a in zip(prompts, answers, strict=True)]


def fit(model: LlamaForCausalLM, batches: Iterator[list[Pair]], spec: ModelSpec, *, pad: int) -> float:
    """Train `model` in place by the recipe of `spec`; return the last batch's loss in nats per response token.

    Raises ValueError as soon as a loss is not finite.
    """
    recipe, last = spec.warm_start, spec.warm_start.steps
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay, fused=True
    )
    model.train()
    started, value = time.monotonic(), math.nan
    for step in range(1, last + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step - 1, recipe)
        loss = response_loss(model, next(batches), pad)
        value = loss.item()
        if not math.isfinite(value):
            raise ValueError(
                f"the warm start diverged: its loss is {value} at step {step} of {last}; "
                f"warm_start.learning_rate {recipe.learning_rate} is probably too large"
            )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        if step % LOG_EVERY == 0 or step == last:
            left = (time.monotonic() - started) / step * (last - step)
            logger.info("warm start of %s | step %d/%d | loss %.3f | %.0f s left", spec.name, step, last, value, left)
    model.eval()
    return value


def learning_rate(step: int, recipe: WarmStart) -> float:
    """Return the rate of the 0-based `step`: a linear rise over `warmup_steps`, times half a cosine over all steps."""
    rise = min(1.0, (step + 1) / max(1, recipe.warmup_steps))
    return recipe.learning_rate * rise * (0.5 + 0.5 * math.cos(math.pi * step / recipe.steps)) + LOWEST_RATE


def response_loss(model: LlamaForCausalLM, batch: list[Pair], pad: int) -> torch.Tensor:
    """Return the mean cross entropy of a batch's response tokens, end tokens included: a scalar with gradient.

    Padding is on the right, so the causal mask alone excludes it; logits are computed only where a response token is
    next.
    """
    longest = max(len(prompt) + len(answer) for prompt, answer in batch)
    tokens = torch.full((len(batch), longest), pad)  # (B, T)
    answered = torch.zeros((len(batch), longest), dtype=torch.bool)  # (B, T): the token belongs to the response
    for row, (prompt, answer) in enumerate(batch):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        answered[row, len(prompt) : end] = True
    hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state  # (B, T - 1, hidden)
    following = answered[:, 1:]
    return F.cross_entropy(model.lm_head(hidden[following]), tokens[:, 1:][following])
