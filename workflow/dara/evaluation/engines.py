"""The two engines of samplers: Hugging Face's `generate` on one CPU thread, and vLLM on GPUs or a CPU.

vLLM works on requests in continuous batches. It takes a minute to start on a GPU, so one engine serves all checkpoints
of a job: each checkpoint's weights replace those of the one before.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import GenerationConfig

from dara.evaluation.records import Response
from dara.evaluation.samplers import SETTINGS_FILES, Answers, ProgressCallback, Sampler, Session
from dara.libraries import one_thread, quiet
from dara.specs import Sampling

if TYPE_CHECKING:
    from vllm import LLM

logger = logging.getLogger(__name__)

# vLLM on a CPU reads these when it is imported. Set before that, they are the same on every machine.
CPU_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several processes share the cores
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process
}
BATCH_TOKENS = 8192  # tokens of one engine step, as in the paper's evaluation
MEMORY = 0.85  # share of a GPU's memory that the engine takes


class TransformersSampler(Sampler):
    """Hugging Face's `generate` in float32 on one CPU thread, prompts padded on the left."""

    def __init__(self, checkpoint_dir: Path, batch_size: int, tensor_parallel: int = 1) -> None:
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


class VllmSampler(Sampler):
    """Sampler on offline vLLM; the engine starts with the first request, and loads the weights of further checkpoints.

    bfloat16 on GPUs (`tensor_parallel` of them), float32 on a CPU; no graphs are captured; common prefixes of prompts
    are computed once; the checkpoint's own decoding settings are ignored.
    """

    def __init__(self, checkpoint_dir: Path, batch_size: int, tensor_parallel: int = 1) -> None:
        super().__init__(checkpoint_dir, batch_size)
        self._max_context: int | None = None  # of the first session: the engine reserves no more
        self._asked = 0  # requests so far
        self._gpu = torch.cuda.is_available()
        self.identity: dict[str, Any] = {
            "sampler": "vllm",
            "device": "cuda" if self._gpu else "cpu",
            "dtype": "bfloat16" if self._gpu else "float32",
            "tensor_parallel": tensor_parallel,
            "max_num_seqs": batch_size,
            "max_num_batched_tokens": BATCH_TOKENS,
            "chunked_prefill": self._gpu,
            "enforce_eager": True,
            "prefix_caching": True,
            "vllm": _vllm_version(),
            **{package: metadata.version(package) for package in ("torch", "transformers")},
        }

    def session(self, sampling: Sampling, max_context: int | None, on_progress: ProgressCallback) -> Session:
        """Begin a session; see `Sampler`. The first session sets the longest sequence that the engine reserves."""
        if "engine" not in self.__dict__:
            self._max_context = max_context
        limits = [limit for limit in (max_context, self._max_context) if limit is not None]
        return super().session(sampling, min(limits, default=None), on_progress)

    def use(self, checkpoint_dir: Path) -> None:
        """Switch to a checkpoint; see `Sampler`.

        A running engine loads the weights if the checkpoint has the same form as the one before, else it starts again.
        """
        before = self._directory
        super().use(checkpoint_dir)
        if "engine" not in self.__dict__ or before == checkpoint_dir:
            return
        if _form(before) != _form(checkpoint_dir):
            logger.info("%s has another form than %s: vLLM starts again", checkpoint_dir, before)
            self.close()
            return
        started = time.monotonic()
        self.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(checkpoint_dir)})
        if not self._gpu:
            self.engine.apply_model(_pack_output_layer)
        forgotten = self.engine.reset_prefix_cache()
        logger.info(
            "vLLM took over the weights of %s in %.1f s (a layer whose weights it says failed to load has none itself)",
            *(checkpoint_dir, time.monotonic() - started),
        )
        if not forgotten:
            logger.warning("vLLM has not forgotten what it computed with %s, so it starts again", before)
            self.close()

    def close(self) -> None:
        """Release the engine; see `Sampler`."""
        llm = self.__dict__.pop("engine", None)
        if llm is None:
            return
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()

    @cached_property
    def engine(self) -> LLM:
        """Return the running engine."""
        if not self._gpu:
            os.environ.update(CPU_SETTINGS)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        started = time.monotonic()
        logger.info("vLLM starts with %s", self._directory)
        from vllm import LLM

        longest = min(self._max_context or self._text.positions, self._text.positions)
        llm = LLM(
            model=str(self._directory),
            tensor_parallel_size=self.identity["tensor_parallel"],
            dtype=self.identity["dtype"],
            gpu_memory_utilization=MEMORY,
            max_model_len=longest,
            max_num_seqs=self._batch_size,
            # On a CPU a prompt goes into one step: if vLLM splits it, it rewinds the request's own random generator,
            # which torch's generators on a CPU cannot do ("CPU Generator does not use offset").
            max_num_batched_tokens=BATCH_TOKENS if self._gpu else max(BATCH_TOKENS, longest),
            enable_chunked_prefill=self._gpu,
            enable_prefix_caching=True,
            enforce_eager=True,
            generation_config="vllm",
            seed=0,
        )
        logger.info("vLLM started in %.1f s", time.monotonic() - started)
        return llm

    def _answer(self, session: Session) -> Answers:
        """Hand the waiting requests to the engine, and run it until one ends; others start as soon as one ends."""
        engine = self.engine.llm_engine
        from vllm import SamplingParams

        for request in session.waiting:
            parameters = SamplingParams(
                temperature=session.sampling.temperature,
                top_p=session.sampling.top_p,
                top_k=-1,
                max_tokens=request.room,
                seed=request.seed,
                stop_token_ids=self._text.end_tokens,
                skip_special_tokens=True,
            )
            self._asked += 1
            engine.add_request(str(self._asked), {"prompt_token_ids": request.tokens}, parameters)
            session.begun[str(self._asked)] = (request.key, 0)  # with its tokens so far
        session.waiting.clear()
        answered: Answers = []
        while session.begun and not answered:
            for output in engine.step():
                key, before = session.begun.pop(output.request_id)
                (only,) = output.outputs
                tokens = list(only.token_ids)
                session.on_progress(len(tokens) - before, int(output.finished))
                if output.finished:
                    answered.append((key, self._text.response(tokens, only.finish_reason == "stop")))
                else:
                    session.begun[output.request_id] = (key, len(tokens))
        return answered


def _form(checkpoint_dir: Path) -> dict[str, Any]:
    """Return the form of an engine: the settings of model and tokenizer, and name, type and shape of each weight.

    With equal names and shapes a reload replaces all weights: vLLM itself only warns of weights that it misses.
    """
    from safetensors import safe_open

    files = {path for pattern in SETTINGS_FILES for path in checkpoint_dir.glob(pattern)}
    form: dict[str, Any] = {path.name: path.read_bytes() for path in files}
    for path in checkpoint_dir.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no dictionary
                weight = weights.get_slice(name)
                form[f"weight {name}"] = (weight.get_dtype(), weight.get_shape())
    return form


def _pack_output_layer(model: torch.nn.Module) -> None:
    """Pack the output layer's weights again, as vLLM does on a CPU after loading them.

    If they are those of the embedding (`tie_word_embeddings`), a reload replaces the embedding's and leaves the packed
    copy unchanged. On GPUs nothing is packed: both use one tensor, which is overwritten.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


def _vllm_version() -> str:
    """Return the version of vLLM; its CPU build has another name. Raise ValueError if it is not installed."""
    for package in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{package} {metadata.version(package)}"
    raise ValueError(
        "vLLM is not installed in this environment; use the sampler transformers, or the environment "
        "envs/openrlhf-cuda.txt (envs/openrlhf-cpu.txt without a GPU)"
    )


SAMPLERS: dict[str, Callable[[Path, int, int], Sampler]] = {"transformers": TransformersSampler, "vllm": VllmSampler}
"""Name of a sampler -> (checkpoint directory, batch size, GPUs of one engine) -> a sampler of that checkpoint."""
