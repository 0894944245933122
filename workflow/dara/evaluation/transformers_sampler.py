"""Hugging Face's `generate` as a sampler, on one CPU thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from dara.evaluation.records import Response
from dara.evaluation.samplers import Answers, ProgressCallback, Sampler, Session
from dara.libraries import one_thread, quiet
from dara.specs import Sampling


class TransformersSampler(Sampler):
    """Hugging Face's `generate` in float32 on one CPU thread, prompts padded on the left."""

    def __init__(self, checkpoint_dir: Path, batch_size: int) -> None:
        super().__init__(checkpoint_dir, batch_size)
        versions = {package: metadata.version(package) for package in ("torch", "transformers")}
        settings = {"sampler": "transformers", "dtype": "float32", "threads": 1, "batch_size": batch_size}
        self.identity = settings | versions

    def use(self, checkpoint_dir: Path) -> None:
        """Switch to a checkpoint; see `Sampler`."""
        self.close()
        super().use(checkpoint_dir)

    def close(self) -> None:
        """Release the model; see `Sampler`."""
        self.__dict__.pop("_model", None)

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """Return `samples` responses to each prompt (all of a prompt in one batch), reproducible from `seed`.

        Raises:
            ValueError: a prompt is empty, or too long for the model together with the longest response.
        """
        count = max(1, self._batch_size // samples)
        responses: list[list[Response]] = []
        # generate() draws from the global generator: it is seeded here, and restored afterwards.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for start in range(0, len(prompts), count):
                flat = self._batch(prompts[start : start + count], samples, sampling)
                responses += [flat[i : i + samples] for i in range(0, len(flat), samples)]
        return responses

    def _batch(self, prompts: Sequence[str], samples: int, sampling: Sampling) -> list[Response]:
        """Return the responses to a batch, the samples of a prompt next to each other."""
        for number, prompt in enumerate(prompts):
            if not prompt:
                raise ValueError(f"prompt {number} of a batch is empty; a model needs a text to continue")
        pad, longest = self._text.tokenizer.pad_token_id, sampling.max_response_tokens
        if pad is None:
            raise ValueError(f"{self._directory}: the tokenizer needs a padding token")
        rows = [self._text.encode(prompt) for prompt in prompts]
        needed, positions = max(map(len, rows)) + longest, self._text.positions
        if needed > positions:
            raise ValueError(
                f"{self._directory}: the longest prompt and response need {needed} tokens, the model has {positions} "
                "positions; lower benchmark.sampling.max_response_tokens"
            )
        decoding: dict[str, Any] = {"do_sample": sampling.temperature > 0}
        if sampling.temperature:  # top_k is off; left out, it would be 50
            decoding |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        made = self._continue(rows, pad, longest, {**decoding, "num_return_sequences": samples})
        return [self._response(tokens, longest) for tokens in made]

    def _answer(self, session: Session) -> Answers:
        """Answer the oldest request and those most similar in length, for the least padding."""
        first = len(session.waiting[0].tokens)
        batch = sorted(session.waiting, key=lambda request: abs(len(request.tokens) - first))[: self._batch_size]
        session.waiting = [request for request in session.waiting if request not in batch]
        rows, rooms = [request.tokens for request in batch], [request.room for request in batch]
        # Sampling is done by `Draw`, with the random numbers of each request.
        seeds = [request.seed for request in batch]
        draw = [Draw(session.sampling, seeds)] if session.sampling.temperature else []
        limit = Rooms(max(map(len, rows)), rooms, self._text.end_tokens, session.on_progress)
        made = self._continue(
            rows,
            self._text.end_tokens[0],  # masked, so any token does
            max(rooms),
            {"do_sample": False},
            logits_processor=transformers.LogitsProcessorList(draw),
            stopping_criteria=transformers.StoppingCriteriaList([limit]),
        )
        session.on_progress(0, len(batch))
        return [(request.key, self._response(row, request.room)) for request, row in zip(batch, made, strict=True)]

    def _continue(
        self, rows: Sequence[list[int]], pad: int, longest: int, decoding: dict[str, Any], **options: Any
    ) -> list[list[int]]:
        """Return the new tokens of each row of token ids, all padded to the length of the longest."""
        width = max(map(len, rows))
        config = GenerationConfig(
            **decoding, max_new_tokens=longest, eos_token_id=self._text.end_tokens, pad_token_id=pad
        )
        with torch.inference_mode(), one_thread():
            tokens = self._model.generate(
                input_ids=torch.tensor([[pad] * (width - len(row)) + row for row in rows]),
                attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
                generation_config=config,
                **options,
            )
        return tokens[:, width:].tolist()

    def _response(self, tokens: list[int], room: int) -> Response:
        """Return the response in a row of new tokens, which ends at an end token or after `room` tokens."""
        end = next((i for i, token in enumerate(tokens) if token in self._text.end_tokens), len(tokens))
        kept = tokens[: min(end + 1, room)]
        return self._text.response(kept, end < len(kept))

    @cached_property
    def _model(self) -> transformers.PreTrainedModel:
        quiet()
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self._directory, dtype=torch.float32, local_files_only=True
        ).eval()
        # The checkpoint's generation settings (top_k, penalties) must not fill in what is left unset here.
        model.generation_config = GenerationConfig()
        last = self._text.positions - 1

        def within(
            module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            # A row at its limit is still computed while other rows of its batch continue, and its output is ignored.
            # Without this hook it would index learned positions that do not exist.
            if kwargs.get("position_ids") is not None:
                kwargs["position_ids"] = kwargs["position_ids"].clamp(max=last)
            return args, kwargs

        model.register_forward_pre_hook(within, with_kwargs=True)
        return model


class Rooms(transformers.StoppingCriteria):
    """Stopping criterion that ends each row at its own limit, and reports the number of new tokens.

    Args:
        width: tokens of the padded prompts.
        rooms: new tokens that each row may get.
    """

    def __init__(
        self, width: int, rooms: Sequence[int], end_tokens: Sequence[int], on_progress: ProgressCallback
    ) -> None:
        self._limits, self._ends = width + torch.tensor(rooms), torch.tensor(end_tokens)
        self._on_progress = on_progress
        self._going = torch.ones(len(rooms), dtype=torch.bool)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Return which rows are full."""
        self._on_progress(int(self._going.sum()), 0)
        full = self._limits <= input_ids.shape[1]
        self._going = self._going & ~full & ~torch.isin(input_ids[:, -1], self._ends)
        return full


class Draw(transformers.LogitsProcessor):
    """Logits processor that makes the largest logit a draw: softmax at the temperature, cut at top_p.

    It adds Gumbel noise: the largest sum is a draw from the softmax (Gumbel 1954). Each row has its own generator.
    """

    def __init__(self, sampling: Sampling, seeds: Sequence[int]) -> None:
        self._temperature = sampling.temperature
        self._cut = transformers.TopPLogitsWarper(sampling.top_p) if sampling.top_p < 1 else None
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return (B, V) logits with noise."""
        scores = scores / self._temperature
        if self._cut is not None:
            scores = self._cut(input_ids, scores)
        noise = [torch.empty(scores.shape[1]).exponential_(generator=generator) for generator in self._generators]
        return scores - torch.stack(noise).log()
