"""What generates responses at evaluation, behind one small interface.

`generate` answers all prompts at once, from one stream of random numbers. A session answers request by request, each
with a seed of its own, so that work goes on after a kill and dialogues of many cases run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol

from dara.evaluation.records import Response
from dara.specs import Benchmark, Sampling

OVERFLOW = Response("", 0, False, stopped="context_overflow")

Tell = Callable[[int, int], None]
"""Called while a session works, with the numbers of tokens and of responses that were just made."""


def tell_nobody(tokens: int, responses: int) -> None:
    """Where nobody wants to know."""


class Session(Protocol):
    """Requests to one model, answered in any order; `capacity` is how many at once keep it busy."""

    capacity: int

    def submit(self, key: Hashable, prompt: str, seed: int) -> None:
        """Ask for a response to a complete text. A prompt that leaves no room is answered by a context overflow."""

    def poll(self) -> list[tuple[Hashable, Response]]:
        """Work until at least one request is answered; (key, response) of each. Empty when nothing is asked."""


class Sampler(Protocol):
    """Draws responses from one checkpoint at a time.

    `identity` says what makes the responses, besides the checkpoint and the arguments of `generate`: values of JSON,
    the same for every checkpoint. Responses made under different identities do not belong in one table.
    """

    identity: dict[str, Any]

    def use(self, checkpoint_dir: Path) -> None:
        """Draw from this checkpoint from now on, as a sampler made for it would. Sessions of another one end."""

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """`samples` responses to each prompt. The same arguments give the same responses."""

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Chat messages as the text that the checkpoint's chat template makes of them, ready for the answer."""

    def session(self, sampling: Sampling, max_context: int | None, tell: Tell = tell_nobody) -> Session:
        """A session. `max_context`: tokens of prompt and response together, where the model itself allows more."""

    def close(self) -> None:
        """Give the memory of the model back."""


def _vllm(checkpoint_dir: Path, benchmark: Benchmark) -> Sampler:
    from dara.evaluation.vllm_sampler import VllmSampler  # not at the top: most environments have no vLLM

    return VllmSampler(checkpoint_dir, benchmark.batch_size, tensor_parallel=benchmark.tensor_parallel)


def _transformers(checkpoint_dir: Path, benchmark: Benchmark) -> Sampler:
    from dara.evaluation.transformers_sampler import TransformersSampler  # which needs this module

    return TransformersSampler(checkpoint_dir, benchmark.batch_size)


SAMPLERS: dict[str, Callable[[Path, Benchmark], Sampler]] = {"transformers": _transformers, "vllm": _vllm}
"""Name of a sampler -> (checkpoint directory, settings) -> a sampler that draws from that checkpoint."""
