"""What the tests of BFCL-v4's generation share: a sampler that knows what to say, and a small set of real cases."""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from pathlib import Path

from dara.config import Benchmark, Sampling
from dara.evaluation import bfcl_v4
from dara.evaluation.records import Case, Response, select_cases
from oracle import oracle_response

SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_response_tokens=8)


def benchmark(**changes: object) -> Benchmark:
    """BFCL-v4 on a case of each category."""
    settings = {"samples": 1, "sampling": SAMPLING, "seed": 0, "batch_size": 4, "limit": 14, "seconds_per_case": 10.0}
    return Benchmark(**{"name": "bfcl_v4", **settings, **changes})


@cache
def _all_cases() -> list[Case]:
    return bfcl_v4.load_cases(bfcl_v4.data_directory())


def real_cases(limit: int | None) -> list[Case]:
    """Cases of the installed bfcl-eval, spread over the categories."""
    return select_cases(_all_cases(), limit)


class ScriptedSampler:
    """Answers the prompt of request number `n` (from 0) by `answer(text, n)`; one request at a poll, the newest first.

    Raises whatever `answer` raises. A prompt is rendered as its messages joined by "|".
    """

    def __init__(self, answer: Callable[[str, int], str], capacity: int = 3) -> None:
        self.identity = {"sampler": "scripted"}
        self.capacity, self.answered, self.seeds = capacity, 0, []
        self._answer, self._waiting = answer, []

    def __call__(self, *_: object) -> "ScriptedSampler":
        return self

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        return "|".join(message["content"] for message in messages)

    def use(self, checkpoint_dir: Path) -> None:
        """Every checkpoint says the same."""

    def session(self, sampling: Sampling, max_context: int | None, tell: object = None) -> "ScriptedSampler":
        self._waiting = []
        return self

    def submit(self, key: Hashable, prompt: str, seed: int) -> None:
        self._waiting.append((key, prompt, seed))

    def poll(self) -> list[tuple[Hashable, Response]]:
        if not self._waiting:
            return []
        key, prompt, seed = self._waiting.pop()
        text = self._answer(prompt, self.answered)
        self.answered += 1
        self.seeds.append(seed)
        return [(key, Response(text, 1 + len(text.split()), True))]

    def close(self) -> None:
        """Nothing is held."""


class OracleSampler(ScriptedSampler):
    """Gives the gold answer of each case, output by output, to whatever it is asked."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__(lambda prompt, n: "", capacity=32)
        self.identity = {"sampler": "oracle"}
        self._left = {case.id: iter(oracle_response(case).outputs) for case in cases}

    def poll(self) -> list[tuple[Hashable, Response]]:
        answered = [(key, next(self._left[key[0]])) for key, _, _ in self._waiting]
        self._waiting = []
        return [(key, Response(text, len(text), True)) for key, text in answered]
