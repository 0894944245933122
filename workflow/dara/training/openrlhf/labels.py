"""What travels with a prompt through OpenRLHF: its id, its reference, and where it stands in the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dara.files import write_atomically

PROMPTS_CONSUMED = "filter/prompts_generated_total"


@dataclass(frozen=True)
class Label:
    """A prompt's label, JSON in OpenRLHF's label column.

    position: number of the prompt in the whole run, from 0. No two prompts of a run share one, whatever a filter makes
    of them, and an interruption does not change it. seed: the run's sampler seed.
    """

    id: str
    reference: str
    position: int
    seed: int

    def dumps(self) -> str:
        """The label as text."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def loads(cls, text: str) -> Label:
        """The label of a text; ValueError unless it has exactly the label's keys."""
        fields = json.loads(text)
        if not isinstance(fields, dict) or set(fields) != set(cls.__annotations__):
            raise ValueError(
                f"a prompt's label is {text:.200}; it must be JSON with the keys {list(cls.__annotations__)}"
            )
        return cls(**fields)

    def sample_seed(self, sample: int) -> int:
        """Seed of the sampler for one response to this prompt, in [0, 2^63).

        It depends on nothing else, so what is drawn does not depend on which requests the sampler computes together,
        nor on how many engines there are.
        """
        key = f"{self.seed}|{self.position}|{self.id}|{sample}".encode()
        return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1


def prompt_file(rows: Iterable[Mapping[str, str]], path: Path) -> None:
    """Write OpenRLHF's prompt data set: one JSON line a row, in the order of `rows`, with `input` and `label`.

    rows: {"id", "prompt", "reference"}, each once. The order in which a run sees them, and the number of its steps, are
    not in the file: the loader of the run makes them.
    """
    lines = [
        {"input": row["prompt"], "label": json.dumps({"id": row["id"], "reference": row["reference"]})} for row in rows
    ]
    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def consumed(metrics: Sequence[Mapping[str, float]], prompts_per_step: int) -> int:
    """How many prompts the steps of these lines of metrics.jsonl have taken: the position of the next one.

    Without a filter a step takes `prompts_per_step`; with one, what it says of itself.
    """
    return sum(round(line.get(PROMPTS_CONSUMED, prompts_per_step)) for line in metrics)
