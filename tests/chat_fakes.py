"""A chat model that knows what to say: the sampler's interface without a model."""

from collections.abc import Callable
from pathlib import Path

from dara.evaluation.records import Response


class FakeChatSampler:
    """Says `answer(the last message)`; as a factory it is its own product, session and sampler."""

    capacity = 4

    def __init__(self, answer: Callable[[str], str], n_tokens: int = 20, finished: bool = True) -> None:
        self.identity = {"sampler": "fake"}
        self._answer, self._n_tokens, self._finished = answer, n_tokens, finished
        self._asked: list[tuple[object, str]] = []

    def __call__(self, checkpoint_dir: Path, batch_size: int) -> "FakeChatSampler":
        return self

    def render(self, messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"]

    def use(self, checkpoint_dir: Path) -> None:
        """Every checkpoint says the same."""

    def session(self, sampling: object, max_context: int | None, tell: object = None) -> "FakeChatSampler":
        return self

    def submit(self, key: object, prompt: str, seed: int) -> None:
        self._asked.append((key, prompt))

    def poll(self) -> list[tuple[object, Response]]:
        asked, self._asked = self._asked, []
        return [(key, Response(self._answer(text), self._n_tokens, self._finished)) for key, text in asked]

    def close(self) -> None:
        """Nothing is held."""
