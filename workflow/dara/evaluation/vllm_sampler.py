"""The vLLM engine as a sampler: continuous batching, on GPUs or, with its CPU build, on a CPU.

Starting the engine takes a minute on a GPU, so one engine serves all checkpoints of a job: each checkpoint's weights
replace those of the one before.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Hashable, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dara.evaluation.records import Response
from dara.evaluation.samplers import (
    OVERFLOW,
    SETTINGS_FILES,
    CheckpointTokenizer,
    ProgressCallback,
    Session,
    no_progress,
    request_seed,
)
from dara.specs import Sampling

if TYPE_CHECKING:
    import torch
    from vllm import LLM, RequestOutput

logger = logging.getLogger(__name__)

# vLLM on a CPU reads these when it is imported. Set before that, they are the same on every machine.
CPU_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several processes share the cores
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process
}
BATCH_TOKENS = 8192  # tokens of one engine step, as in the paper's evaluation


class VllmSampler:
    """Sampler on offline vLLM; the engine starts with the first request, and loads the weights of further checkpoints.

    bfloat16 on GPUs, float32 on a CPU; no graphs are captured; common prefixes of prompts are computed once; the
    checkpoint's own decoding settings are ignored.

    Args:
        checkpoint_dir: local directory with the weights and the tokenizer.
        batch_size: sequences that the engine works on at once (max_num_seqs).
        tensor_parallel: GPUs of one engine.
        memory: share of a GPU's memory that the engine takes.
    """

    def __init__(
        self, checkpoint_dir: Path, batch_size: int, *, tensor_parallel: int = 1, memory: float = 0.85
    ) -> None:
        import torch

        self._directory, self._batch_size = checkpoint_dir, batch_size
        self._tensor_parallel, self._memory = tensor_parallel, memory
        self._max_context: int | None = None  # of the first session: the engine reserves no more
        self._text = CheckpointTokenizer(checkpoint_dir)
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

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """Generate request by request (see `Sampler`); a prompt that does not fit is a context overflow, no error."""
        session = self.session(sampling, None)
        places = [(number, sample) for number in range(len(prompts)) for sample in range(samples)]
        for number, sample in places:
            session.submit((number, sample), prompts[number], request_seed(seed, (str(number), sample), 0))
        answered: dict[Hashable, Response] = {}
        while len(answered) < len(places):
            answered.update(session.poll())
        return [[answered[number, sample] for sample in range(samples)] for number in range(len(prompts))]

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Render chat messages; see `Sampler`."""
        return self._text.render(messages)

    def session(
        self, sampling: Sampling, max_context: int | None, on_progress: ProgressCallback = no_progress
    ) -> Session:
        """Begin a session; see `Sampler`. The first session sets the longest sequence that the engine reserves."""
        if "engine" not in self.__dict__:
            self._max_context = max_context
        return _VllmSession(self, sampling, self._limit(max_context), on_progress)

    def use(self, checkpoint_dir: Path) -> None:
        """Switch to a checkpoint; see `Sampler`.

        A running engine loads the weights if the checkpoint has the same form as the one before, else it starts again.
        """
        before, self._directory = self._directory, checkpoint_dir
        self._text = CheckpointTokenizer(checkpoint_dir)
        if "engine" not in self.__dict__ or before == checkpoint_dir:
            return
        if _form(before) != _form(checkpoint_dir):
            logger.info("%s has another form than %s: vLLM starts again", checkpoint_dir, before)
            self.close()
        elif not self._take_over():
            logger.warning("vLLM has not forgotten what it computed with %s, so it starts again", before)
            self.close()

    def _take_over(self) -> bool:
        """Replace the weights; return False if cached keys and values of the old ones may still be used."""
        started = time.monotonic()
        self.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(self._directory)})
        if not self._gpu:
            self.engine.apply_model(_pack_output_layer)
        forgotten = self.engine.reset_prefix_cache()
        logger.info(
            "vLLM took over the weights of %s in %.1f s (a layer whose weights it says failed to load has none itself)",
            *(self._directory, time.monotonic() - started),
        )
        return forgotten

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

    def _limit(self, max_context: int | None) -> int:
        limits = [limit for limit in (max_context, self._max_context) if limit is not None]
        return min([*limits, self._text.positions])

    @cached_property
    def engine(self) -> LLM:
        """Return the running engine."""
        started = time.monotonic()
        logger.info("vLLM starts with %s", self._directory)
        llm = self._start()
        logger.info("vLLM started in %.1f s", time.monotonic() - started)
        return llm

    def _start(self) -> LLM:
        if not self._gpu:
            os.environ.update(CPU_SETTINGS)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM

        return LLM(
            model=str(self._directory),
            tensor_parallel_size=self._tensor_parallel,
            dtype=self.identity["dtype"],
            gpu_memory_utilization=self._memory,
            max_model_len=self._limit(None),
            max_num_seqs=self._batch_size,
            # On a CPU a prompt goes into one step: if vLLM splits it, it rewinds the request's own random generator,
            # which torch's generators on a CPU cannot do ("CPU Generator does not use offset").
            max_num_batched_tokens=BATCH_TOKENS if self._gpu else max(BATCH_TOKENS, self._limit(None)),
            enable_chunked_prefill=self._gpu,
            enable_prefix_caching=True,
            enforce_eager=True,
            generation_config="vllm",
            seed=0,
        )

    def ask(self, name: str, tokens: list[int], room: int, sampling: Sampling, seed: int) -> None:
        """Hand a request to the engine: token ids of the prompt, and its limit of new tokens."""
        from vllm import SamplingParams

        parameters = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=-1,
            max_tokens=room,
            seed=seed,
            stop_token_ids=self._text.end_tokens,
            skip_special_tokens=True,
        )
        self.engine.llm_engine.add_request(name, {"prompt_token_ids": tokens}, parameters)

    @property
    def text(self) -> CheckpointTokenizer:
        """Return the checkpoint's tokenizer."""
        return self._text

    @property
    def batch_size(self) -> int:
        """Return the number of sequences that the engine processes at once."""
        return self._batch_size


class _VllmSession:
    """Session whose requests are in the engine; a new one starts as soon as another ends."""

    def __init__(
        self, sampler: VllmSampler, sampling: Sampling, max_context: int, on_progress: ProgressCallback
    ) -> None:
        self.capacity = 2 * sampler.batch_size  # so that a waiting request replaces one that ends
        self._sampler, self._sampling, self._max_context = sampler, sampling, max_context
        self._on_progress = on_progress
        self._asked: dict[str, Hashable] = {}
        self._made: dict[str, int] = {}  # tokens of unfinished requests
        self._answered: list[tuple[Hashable, Response]] = []
        self._count = 0

    def submit(self, key: Hashable, prompt: str, seed: int) -> None:
        tokens = self._sampler.text.encode(prompt)
        room = self._sampler.text.room(len(tokens), self._sampling, self._max_context)
        if room <= 0:
            self._answered.append((key, OVERFLOW))
            return
        name = str(self._count)
        self._count += 1
        self._asked[name] = key
        self._sampler.ask(name, tokens, room, self._sampling, seed)

    def poll(self) -> list[tuple[Hashable, Response]]:
        while self._asked and not self._answered:
            for output in self._sampler.engine.llm_engine.step():
                self._count_tokens(output)
                if output.finished:
                    self._answered.append((self._asked.pop(output.request_id), self._response(output)))
        answered, self._answered = self._answered, []
        return answered

    def _count_tokens(self, output: RequestOutput) -> None:
        made = len(output.outputs[0].token_ids)
        self._on_progress(made - self._made.pop(output.request_id, 0), int(output.finished))
        if not output.finished:
            self._made[output.request_id] = made

    def _response(self, output: RequestOutput) -> Response:
        (only,) = output.outputs
        tokens = list(only.token_ids)
        return Response(self._sampler.text.decode(tokens), len(tokens), only.finish_reason == "stop")


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
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    raise ValueError(
        "vLLM is not installed in this environment; use the sampler transformers, or the environment "
        "envs/openrlhf-cuda.txt (envs/openrlhf-cpu.txt without a GPU)"
    )
