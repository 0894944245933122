"""Hugging Face's `generate` as a sampler, on one CPU thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.evaluation.records import Response
from dara.evaluation.samplers import OVERFLOW, CheckpointTokenizer, ProgressCallback, Session, no_progress
from dara.specs import Sampling
from dara.system import one_thread, quiet

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Request:
    """A waiting prompt: token ids, its limit of new tokens, and the seed of its own random numbers."""

    key: Hashable
    tokens: list[int]
    max_new_tokens: int
    seed: int


class TransformersSampler:
    """Hugging Face's `generate` in float32 on one CPU thread, prompts padded on the left.

    Args:
        checkpoint_dir: local directory with the weights and the tokenizer; read when they are first needed.
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

    def use(self, checkpoint_dir: Path) -> None:
        """Switch to a checkpoint; see `Sampler`."""
        self.close()
        self._directory, self._text = checkpoint_dir, CheckpointTokenizer(checkpoint_dir)

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """Return `samples` responses to each prompt (all of a prompt in one batch), reproducible from `seed`.

        Raises:
            ValueError: a prompt is empty, or too long for the model together with the longest response.
        """
        import torch

        count = max(1, self._batch_size // samples)
        responses: list[list[Response]] = []
        # generate() draws from the global generator: it is seeded here, and restored afterwards.
        with torch.random.fork_rng(devices=[]), torch.inference_mode(), one_thread():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), count):
                flat = self._batch(prompts[start : start + count], samples, sampling)
                responses += [flat[i : i + samples] for i in range(0, len(flat), samples)]
        return responses

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Render chat messages; see `Sampler`."""
        return self._text.render(messages)

    def session(
        self, sampling: Sampling, max_context: int | None, on_progress: ProgressCallback = no_progress
    ) -> Session:
        """Begin a session; see `Sampler`. A response depends on its request's seed alone, not on its batch."""

        def answer(requests: Sequence[Request]) -> list[Response]:
            return self._answer(requests, sampling, on_progress)

        return _TransformersSession(self._text, self._batch_size, sampling, max_context, answer)

    def close(self) -> None:
        """Release the model; see `Sampler`."""
        self.__dict__.pop("_model", None)

    def _answer(self, requests: Sequence[Request], sampling: Sampling, on_progress: ProgressCallback) -> list[Response]:
        """Return the responses to a batch of requests."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

        width = max(len(request.tokens) for request in requests)
        pad = self._text.end_tokens[0]  # masked, so any token does
        ids = [[pad] * (width - len(request.tokens)) + request.tokens for request in requests]
        mask = [[0] * (width - len(request.tokens)) + [1] * len(request.tokens) for request in requests]
        rooms = [request.max_new_tokens for request in requests]
        config = GenerationConfig(
            do_sample=False,  # with a temperature, `_draw` samples
            max_new_tokens=max(rooms),
            eos_token_id=self._text.end_tokens,
            pad_token_id=pad,
        )
        draw = [_draw(sampling, [request.seed for request in requests])] if sampling.temperature else []
        with torch.inference_mode(), one_thread():
            tokens = self._model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                generation_config=config,
                logits_processor=LogitsProcessorList(draw),
                stopping_criteria=StoppingCriteriaList([_rooms(width, rooms, self._text.end_tokens, on_progress)]),
            )[:, width:]
        on_progress(0, len(requests))
        return [self._cut(row, request) for row, request in zip(tokens.tolist(), requests, strict=True)]

    def _cut(self, tokens: list[int], request: Request) -> Response:
        """Return a request's response from a row, which ends at an end token or at the request's limit."""
        end = next((i for i, token in enumerate(tokens) if token in self._text.end_tokens), len(tokens))
        kept = tokens[: min(end + 1, request.max_new_tokens)]
        return Response(self._text.decode(kept), len(kept), end < len(kept))

    def _batch(self, prompts: Sequence[str], samples: int, sampling: Sampling) -> list[Response]:
        """Return the responses to a batch, the samples of a prompt next to each other."""
        from transformers import GenerationConfig

        inputs = self._encode(prompts, sampling.max_response_tokens)
        width = inputs["input_ids"].shape[1]
        random = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0,  # off; left out, it would be 50
        }
        config = GenerationConfig(
            **(random if sampling.temperature else {"do_sample": False}),
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
        """Return the response with these `tokens`, without the prompt; tokens after the first end token are padding."""
        end = next((i for i, token in enumerate(tokens) if token in self._text.end_tokens), None)
        kept = tokens if end is None else tokens[: end + 1]
        return Response(self._text.decode(kept), len(kept), end is not None)

    @cached_property
    def _model(self) -> PreTrainedModel:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        quiet()
        model = AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.float32, local_files_only=True).eval()
        # The checkpoint's generation settings (top_k, penalties) must not fill in what is left unset here.
        model.generation_config = GenerationConfig()
        model.register_forward_pre_hook(_within(self._text.positions), with_kwargs=True)
        return model


def _within(positions: int) -> Callable[..., Any]:
    """Return a hook that keeps position ids below `positions`.

    A row at its limit is still computed while other rows of its batch continue, and its output is ignored. Without this
    hook it would index learned positions that do not exist.
    """

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = kwargs["position_ids"].clamp(max=positions - 1)
        return args, kwargs

    return hook


def _rooms(width: int, rooms: Sequence[int], end_tokens: Sequence[int], on_progress: ProgressCallback) -> Any:
    """Return a stopping criterion that ends each row at its own limit, and reports the number of new tokens.

    Args:
        width: tokens of the padded prompts.
        rooms: new tokens that each row may get.
    """
    import torch
    from transformers import StoppingCriteria

    limits, ends = torch.tensor(rooms), torch.tensor(end_tokens)

    class _Rooms(StoppingCriteria):
        going = torch.ones(len(rooms), dtype=torch.bool)

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            on_progress(int(self.going.sum()), 0)
            full = limits <= input_ids.shape[1] - width
            self.going = self.going & ~full & ~torch.isin(input_ids[:, -1], ends)
            return full

    return _Rooms()


def _draw(sampling: Sampling, seeds: Sequence[int]) -> Any:
    """Return a logits processor that makes the largest logit a draw: softmax at the temperature, cut at top_p.

    It adds Gumbel noise: the largest sum is a draw from the softmax (Gumbel 1954). Each row has its own generator.
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
    """Session that answers in batches: the oldest request and those most similar in length, for the least padding."""

    def __init__(
        self,
        text: CheckpointTokenizer,
        batch_size: int,
        sampling: Sampling,
        max_context: int | None,
        answer: Callable[[Sequence[Request]], list[Response]],
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
            responses = self._answer(batch)
            self._answered = [(request.key, response) for request, response in zip(batch, responses, strict=True)]
        answered, self._answered = self._answered, []
        return answered
