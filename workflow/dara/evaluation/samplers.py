"""What generates responses at evaluation, behind one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dara.config import Sampling
from dara.evaluation.records import Response
from dara.libraries import one_thread, quiet

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Sampler(Protocol):
    """Draws responses from one checkpoint.

    `identity` says what makes the responses, besides the checkpoint and the arguments of `generate`: values of JSON,
    the same for every checkpoint. Responses made under different identities do not belong in one table.
    """

    identity: dict[str, Any]

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """`samples` responses to each prompt. The same arguments give the same responses."""


class TransformersSampler:
    """Hugging Face's `generate` in float32 on one CPU thread, prompts padded on the left.

    Args:
        checkpoint_dir: local directory with the weights and the tokenizer; read at the first `generate`.
        batch_size: responses generated at once.
    """

    def __init__(self, checkpoint_dir: Path, batch_size: int) -> None:
        self._directory = checkpoint_dir
        self._batch_size = batch_size
        versions = {package: metadata.version(package) for package in ("torch", "transformers")}
        self.identity = {
            "sampler": "transformers",
            "dtype": "float32",
            "threads": 1,
            "batch_size": batch_size,
            **versions,
        }

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """`samples` responses to each prompt (all of a prompt in one batch), reproducible from `seed`.

        Raises:
            ValueError: a prompt is empty, or too long for the model together with the longest response.
        """
        import torch

        count = max(1, self._batch_size // samples)
        responses: list[list[Response]] = []
        # The seed holds inside only: generate() draws from the global generator, which is put back afterwards.
        with torch.random.fork_rng(devices=[]), torch.inference_mode(), one_thread():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), count):
                flat = self._batch(prompts[start : start + count], samples, sampling)
                responses += [flat[i : i + samples] for i in range(0, len(flat), samples)]
        return responses

    def _batch(self, prompts: Sequence[str], samples: int, sampling: Sampling) -> list[Response]:
        """Responses to a batch, the samples of a prompt next to each other."""
        from transformers import GenerationConfig

        inputs = self._encode(prompts, sampling.max_response_tokens)
        width = inputs["input_ids"].shape[1]
        config = GenerationConfig(
            do_sample=True,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=0,  # off; left out, it would be 50
            max_new_tokens=sampling.max_response_tokens,
            num_return_sequences=samples,
            eos_token_id=sorted(self._end_tokens),
            pad_token_id=self._tokenizer.pad_token_id,
        )
        tokens = self._model.generate(**inputs, generation_config=config)[:, width:]
        return [self._response(row) for row in tokens.tolist()]

    def _encode(self, prompts: Sequence[str], max_response_tokens: int) -> dict[str, torch.Tensor]:
        for number, prompt in enumerate(prompts):
            if not prompt:
                raise ValueError(f"prompt {number} of a batch is empty; a model needs a text to continue")
        # A prompt is the complete text: no token is added to it.
        encoded = self._tokenizer(
            list(prompts), padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt"
        )
        needed = encoded["input_ids"].shape[1] + max_response_tokens
        room = self._model.config.max_position_embeddings
        if needed > room:
            raise ValueError(
                f"{self._directory}: the longest prompt and response need {needed} tokens, the model has {room} "
                "positions; lower benchmark.sampling.max_response_tokens"
            )
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def _response(self, tokens: list[int]) -> Response:
        """`tokens` without the prompt; what follows the first end token is padding."""
        end = next((i for i, token in enumerate(tokens) if token in self._end_tokens), None)
        kept = tokens if end is None else tokens[: end + 1]
        text = self._tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return Response(text, len(kept), end is not None)

    @cached_property
    def _loaded(self) -> tuple[PreTrainedModel, set[int]]:
        """The model, and the end tokens of its own generation settings, which are emptied."""
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        quiet()
        model = AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.float32, local_files_only=True).eval()
        own = model.generation_config.eos_token_id
        # What a checkpoint's own settings say (top_k, penalties) must not fill the gaps of ours.
        model.generation_config = GenerationConfig()
        return model, set(own) if isinstance(own, list) else {own} - {None}

    @property
    def _model(self) -> PreTrainedModel:
        return self._loaded[0]

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._directory, local_files_only=True)
        if tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
            raise ValueError(f"{self._directory}: the tokenizer needs an end token and a padding token")
        return tokenizer

    @cached_property
    def _end_tokens(self) -> set[int]:
        # Some models end a turn with a token of their own besides the tokenizer's.
        return {self._tokenizer.eos_token_id} | self._loaded[1]


SAMPLERS = {"transformers": TransformersSampler}
