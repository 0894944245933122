"""What the evaluation tests share: cases on disk, and samplers that know what to say."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dara.config import Benchmark, DataSpec, Sampling
from dara.data import SOURCES
from dara.data.generated import held_out
from dara.evaluation.records import SCORE_TABLE, SCORES, Response
from dara.files import gzipped


def benchmark(name: str, samples: int = 1, seconds: float = 5.0, **changes: object) -> Benchmark:
    """A benchmark of a few tokens."""
    sampling = Sampling(temperature=0.6, top_p=0.95, max_response_tokens=40)
    limit = 23 if name == "laptop_math" else None
    settings = {"samples": samples, "sampling": sampling, "seed": 0, "batch_size": 8, "length_limit": limit}
    return Benchmark(**{"name": name, "seconds_per_case": seconds, **settings, **changes})


def write_cases(name: str, folder: Path, rows: int = 24) -> dict[str, str]:
    """Real held-out cases of a laptop source in `folder`; returns prompt -> right answer."""
    source = SOURCES[name].generator
    examples = held_out(DataSpec(source=name, seed=100, train_rows=1, held_out_rows=rows)).values()
    for file, content in source.benchmark_files(examples).items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    if name == "laptop_math":
        return {one.prompt: rf"so \boxed{{{one.reference}}}" for one in examples}
    return {one.prompt: one.reference for one in examples}


def write_checkpoints(folder: Path, steps: Sequence[int]) -> dict[int, Path]:
    """Directories that look like checkpoints, each with weights of its own."""
    checkpoints = {step: folder / f"step_{step}" for step in steps}
    for step, path in checkpoints.items():
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(b"weights %d" % step)
    return checkpoints


class FakeSampler:
    """Says `answer(prompt)` to each prompt, of a chat to its last message; counts the calls of `generate`, and keeps which
    checkpoints it used."""

    def __init__(self, answer: Callable[[str], str], identity: str = "fake", n_tokens: int = 20) -> None:
        self.identity = {"sampler": identity}
        self.calls = 0
        self.used: list[str] = []  # names of the checkpoints' directories
        self.closed = 0
        self._answer, self._n_tokens = answer, n_tokens
        self.capacity = 4
        self._asked: list[tuple[object, str]] = []

    def __call__(self, *_: object) -> "FakeSampler":
        """As a factory it is its own product."""
        return self

    def use(self, checkpoint_dir: Path) -> None:
        self.used.append(checkpoint_dir.name)

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        self.calls += 1
        return [[Response(self._answer(prompt), self._n_tokens, True)] * samples for prompt in prompts]

    def render(self, messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"]

    def session(self, sampling: Sampling, max_context: int | None, on_progress: object = None) -> "FakeSampler":
        return self

    def submit(self, key: object, prompt: str, seed: int) -> None:
        self._asked.append((key, prompt))

    def poll(self) -> list[tuple[object, Response]]:
        asked, self._asked = self._asked, []
        return [(key, Response(self._answer(prompt), self._n_tokens, True)) for key, prompt in asked]

    def close(self) -> None:
        self.closed += 1


def write_scores(directory: Path, table: str, responses: dict) -> None:
    """The two files of scores: a table with a column `step`, and what says that it was made from these responses."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SCORE_TABLE).write_bytes(gzipped(table.encode()))
    steps = sorted({int(line.partition(",")[0]) for line in table.splitlines()[1:]})
    content = {"scorer": {"scorer": {"scorer": 2}}, "steps": steps, "responses": responses}
    checksum = hashlib.sha256(table.encode()).hexdigest()
    (directory / SCORES).write_text(json.dumps({**content, "scores_sha256": checksum}))
