"""What generates responses at evaluation, behind one small interface.

`generate` answers all prompts at once, from one stream of random numbers. A session answers request by request, each
with a seed of its own, so that work goes on after a kill and dialogues of many cases run side by side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dara.evaluation.records import Response
from dara.libraries import one_thread, quiet
from dara.specs import Benchmark, Sampling

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OVERFLOW = Response("", 0, False, stopped="context_overflow")
SPARE_TOKENS = 2  # of the context, left free as in the paper's evaluation


class Session(Protocol):
    """Requests to one model, answered in any order; `capacity` is how many at once keep it busy."""

    capacity: int

    def submit(self, key: Hashable, prompt: str, seed: int) -> None:
        """Ask for a response to a complete text. A prompt that leaves no room is answered by a context overflow."""

    def poll(self) -> list[tuple[Hashable, Response]]:
        """Work until at least one request is answered; (key, response) of each. Empty when nothing is asked."""


class Sampler(Protocol):
    """Draws responses from one checkpoint.

    `identity` says what makes the responses, besides the checkpoint and the arguments of `generate`: values of JSON,
    the same for every checkpoint. Responses made under different identities do not belong in one table.
    """

    identity: dict[str, Any]

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """`samples` responses to each prompt. The same arguments give the same responses."""

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Chat messages as the text that the checkpoint's chat template makes of them, ready for the answer."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, without any that a tokenizer would add."""

    def session(self, sampling: Sampling, max_context: int | None) -> Session:
        """A session. `max_context`: tokens of prompt and response together, where the model itself allows more."""

    def close(self) -> None:
        """Give the memory of the model back."""


class CheckpointTokenizer:
    """Tokenizer, chat template, end tokens and context of a checkpoint, read when they are needed.

    Raises:
        ValueError: there is no end token, no chat template where messages are rendered, or an empty prompt.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._directory, local_files_only=True)
        if tokenizer.eos_token_id is None:
            raise ValueError(f"{self._directory}: the tokenizer needs an end token")
        return tokenizer

    @cached_property
    def end_tokens(self) -> list[int]:
        """The tokenizer's end token and those of the checkpoint's own settings, sorted.

        Some models end a turn with a token of their own besides the tokenizer's.
        """
        paths = [self._directory / name for name in ("generation_config.json", "config.json")]
        settings = next((path for path in paths if path.is_file()), None)
        own = json.loads(settings.read_text("utf-8")).get("eos_token_id") if settings else None
        return sorted({self.tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None})

    @cached_property
    def positions(self) -> int:
        """Tokens that the model itself allows for prompt and response."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self._directory, local_files_only=True).max_position_embeddings

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """See `Sampler.render`."""
        if not self.tokenizer.chat_template:
            raise ValueError(f"{self._directory}: the tokenizer has no chat template, which this benchmark needs")
        return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)

    def encode(self, prompt: str) -> list[int]:
        """Token ids; a prompt is the complete text, so no token is added to it."""
        if not prompt:
            raise ValueError("a prompt is empty; a model needs a text to continue")
        return self.tokenizer(prompt, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text without special tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def room(self, prompt_tokens: int, sampling: Sampling, max_context: int | None) -> int:
        """New tokens for a prompt: what the response and the context allow; 0 or less is an overflow."""
        context = self.positions if max_context is None else min(max_context, self.positions)
        return min(sampling.max_response_tokens, context - prompt_tokens - SPARE_TOKENS)


@dataclass(frozen=True)
class Request:
    """A prompt that waits: token ids, how many new ones it may get, and the seed of its own random numbers."""

    key: Hashable
    tokens: list[int]
    max_new_tokens: int
    seed: int


class TransformersSampler:
    """Hugging Face's `generate` in float32 on one CPU thread, prompts padded on the left.

    Args:
        checkpoint_dir: local directory with the weights and the tokenizer; read at the first `generate`.
        batch_size: responses generated at once.
    """

    def __init__(self, checkpoint_dir: Path, batch_size: int) -> None:
        self._directory = checkpoint_dir
        self._batch_size = batch_size
        self._text = CheckpointTokenizer(checkpoint_dir)
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

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """See `Sampler`."""
        return self._text.render(messages)

    def count_tokens(self, text: str) -> int:
        """See `Sampler`."""
        return len(self._text.encode(text))

    def session(self, sampling: Sampling, max_context: int | None) -> Session:
        """See `Sampler`. What a request draws depends on its seed alone, not on its neighbours in a batch."""
        return _TransformersSession(self._text, self._batch_size, sampling, max_context, self._answer)

    def close(self) -> None:
        """See `Sampler`."""
        self.__dict__.pop("_model", None)

    def _answer(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        """Responses to a batch of requests."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        width = max(len(request.tokens) for request in requests)
        pad = self._text.end_tokens[0]  # masked, so any token does
        ids = [[pad] * (width - len(request.tokens)) + request.tokens for request in requests]
        mask = [[0] * (width - len(request.tokens)) + [1] * len(request.tokens) for request in requests]
        config = GenerationConfig(
            do_sample=False,  # the drawing is done by _Draw
            max_new_tokens=max(request.max_new_tokens for request in requests),
            eos_token_id=self._text.end_tokens,
            pad_token_id=pad,
        )
        with torch.inference_mode(), one_thread():
            tokens = self._model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                generation_config=config,
                logits_processor=LogitsProcessorList([_draw(sampling, [request.seed for request in requests])]),
            )[:, width:]
        return [self._cut(row, request) for row, request in zip(tokens.tolist(), requests, strict=True)]

    def _cut(self, tokens: list[int], request: Request) -> Response:
        """The request's own part of a row: it ends at an end token, or where its room ends."""
        end = next((i for i, token in enumerate(tokens) if token in self._text.end_tokens), len(tokens))
        kept = tokens[: min(end + 1, request.max_new_tokens)]
        return Response(self._text.decode(kept), len(kept), end < len(kept))

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
            eos_token_id=self._text.end_tokens,
            pad_token_id=self._text.tokenizer.pad_token_id,
        )
        tokens = self._model.generate(**inputs, generation_config=config)[:, width:]
        return [self._response(row) for row in tokens.tolist()]

    def _encode(self, prompts: Sequence[str], max_response_tokens: int) -> dict[str, torch.Tensor]:
        for number, prompt in enumerate(prompts):
            if not prompt:
                raise ValueError(f"prompt {number} of a batch is empty; a model needs a text to continue")
        if self._text.tokenizer.pad_token_id is None:
            raise ValueError(f"{self._directory}: the tokenizer needs a padding token")
        # A prompt is the complete text: no token is added to it.
        encoded = self._text.tokenizer(
            list(prompts), padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt"
        )
        needed = encoded["input_ids"].shape[1] + max_response_tokens
        room = self._text.positions
        if needed > room:
            raise ValueError(
                f"{self._directory}: the longest prompt and response need {needed} tokens, the model has {room} "
                "positions; lower benchmark.sampling.max_response_tokens"
            )
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def _response(self, tokens: list[int]) -> Response:
        """`tokens` without the prompt; what follows the first end token is padding."""
        end = next((i for i, token in enumerate(tokens) if token in self._text.end_tokens), None)
        kept = tokens if end is None else tokens[: end + 1]
        return Response(self._text.decode(kept), len(kept), end is not None)

    @cached_property
    def _model(self) -> PreTrainedModel:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        quiet()
        model = AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.float32, local_files_only=True).eval()
        # What a checkpoint's own settings say (top_k, penalties) must not fill the gaps of ours.
        model.generation_config = GenerationConfig()
        return model


def _draw(sampling: Sampling, seeds: Sequence[int]) -> Any:
    """A logits processor after which the largest logit is a draw: softmax at the temperature, cut at top_p.

    It adds Gumbel noise, whose largest sum is a draw from the softmax (Gumbel 1954); each row has a generator of its
    own.
    """
    import torch
    from transformers import LogitsProcessor, TopPLogitsWarper

    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    cut = TopPLogitsWarper(sampling.top_p) if sampling.top_p < 1 else None

    class _Draw(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            scores = scores / sampling.temperature
            if cut is not None:
                scores = cut(input_ids, scores)
            noise = [torch.empty(scores.shape[1]).exponential_(generator=generator) for generator in generators]
            return scores - torch.stack(noise).log()

    return _Draw()


class _TransformersSession:
    """Answers a batch at a time: the oldest request and those of the most similar length, for the least padding."""

    def __init__(
        self,
        text: CheckpointTokenizer,
        batch_size: int,
        sampling: Sampling,
        max_context: int | None,
        answer: Callable[[Sequence[Request], Sampling], list[Response]],
    ) -> None:
        self.capacity = 2 * batch_size
        self._text, self._batch_size, self._sampling = text, batch_size, sampling
        self._max_context, self._answer = max_context, answer
        self._waiting: list[Request] = []
        self._answered: list[tuple[Hashable, Response]] = []

    def submit(self, key: Hashable, prompt: str, seed: int) -> None:
        tokens = self._text.encode(prompt)
        room = self._text.room(len(tokens), self._sampling, self._max_context)
        if room <= 0:
            self._answered.append((key, OVERFLOW))
        else:
            self._waiting.append(Request(key, tokens, room, seed))

    def poll(self) -> list[tuple[Hashable, Response]]:
        if not self._answered and self._waiting:
            first = len(self._waiting[0].tokens)
            batch = sorted(self._waiting, key=lambda request: abs(len(request.tokens) - first))[: self._batch_size]
            chosen = {request.key for request in batch}
            self._waiting = [request for request in self._waiting if request.key not in chosen]
            responses = self._answer(batch, self._sampling)
            self._answered = [(request.key, response) for request, response in zip(batch, responses, strict=True)]
        answered, self._answered = self._answered, []
        return answered


def _vllm(checkpoint_dir: Path, benchmark: Benchmark) -> Sampler:
    from dara.evaluation.vllm_sampler import VllmSampler  # not at the top: most environments have no vLLM

    return VllmSampler(checkpoint_dir, benchmark.batch_size, tensor_parallel=benchmark.tensor_parallel)


def _transformers(checkpoint_dir: Path, benchmark: Benchmark) -> Sampler:
    return TransformersSampler(checkpoint_dir, benchmark.batch_size)


SAMPLERS: dict[str, Callable[[Path, Benchmark], Sampler]] = {"transformers": _transformers, "vllm": _vllm}
"""Name of a sampler -> (checkpoint directory, settings) -> the sampler of that checkpoint."""
