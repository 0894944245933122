"""The prompts of a run in their order, as OpenRLHF's data loader hands them out, from any position on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dara.training.lifecycle import prompt_positions
from dara.training.openrlhf.labels import Label

Batch = tuple[list[str], list[str], list[str], list[None]]


@dataclass(frozen=True)
class PromptLoader:
    """Iterates without end over batches of one prompt: ([data source], [prompt], [label], [no image]).

    path: what `labels.prompt_file` wrote. seed: of the order. sampler_seed: goes into the labels. start: position in
    the run of the first prompt, the number of prompts that were taken before.
    """

    path: Path
    seed: int
    sampler_seed: int
    start: int = 0

    def __iter__(self) -> Iterator[Batch]:
        rows = [json.loads(line) for line in self.path.read_bytes().splitlines()]  # of bytes: a text may hold U+2028
        positions = islice(prompt_positions(len(rows), self.seed), self.start, None)
        for position, i in enumerate(positions, self.start):
            known = json.loads(rows[i]["label"])
            label = Label(known["id"], known["reference"], position, self.sampler_seed)
            yield ["default"], [rows[i]["input"]], [label.dumps()], [None]
