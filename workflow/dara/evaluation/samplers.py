"""Samplers, which generate the responses of an evaluation: their interface, and the parts that all of them share.

`Sampler.generate` answers all prompts at once, from one stream of random numbers. A session answers request by request,
each with its own seed, so that an evaluation can continue after a kill; `run_programs` runs the dialogues of many cases
concurrently on one session. `CheckpointTokenizer` handles the text of a checkpoint, the same way for every sampler.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dara.evaluation.records import Place, Response
from dara.evaluation.tools import Program, Prompt
from dara.specs import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OVERFLOW = Response("", 0, False, stopped="context_overflow")

ProgressCallback = Callable[[int, int], None]
"""Called during a session, with the numbers of new tokens and new responses."""


def no_progress(tokens: int, responses: int) -> None:
    """Ignore the progress of a session."""


class Session(Protocol):
    """Requests to one model, answered in any order; `capacity` concurrent requests keep it busy."""

    capacity: int

    def submit(self, key: Hashable, prompt: str, seed: int) -> None:
        """Submit a complete text for a response. A prompt that leaves no room is answered by a context overflow."""

    def poll(self) -> list[tuple[Hashable, Response]]:
        """Run until at least one request is answered; return (key, response) of each, or nothing if none is pending."""


class Sampler(Protocol):
    """Generator of responses from one checkpoint at a time.

    `identity` has all settings that determine the responses, besides the checkpoint and the arguments of `generate`:
    JSON values, the same for every checkpoint. Responses of different identities do not belong in one table.
    """

    identity: dict[str, Any]

    def use(self, checkpoint_dir: Path) -> None:
        """Switch to this checkpoint, as if the sampler had been created for it. Sessions of another checkpoint end."""

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """Return `samples` responses to each prompt. The same arguments give the same responses."""

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Return chat messages as text, rendered by the checkpoint's chat template."""

    def session(
        self, sampling: Sampling, max_context: int | None, on_progress: ProgressCallback = no_progress
    ) -> Session:
        """Begin a session. `max_context`: tokens of prompt and response together, if the model allows more."""

    def close(self) -> None:
        """Release the memory of the model."""


SPARE_TOKENS = 2  # of the context, left free as in the paper's evaluation
# Files that determine a checkpoint's responses besides the weights: its configuration has positions and end tokens.
SETTINGS_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "*chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)


class CheckpointTokenizer:
    """Tokenizer, chat template, end tokens and context of a checkpoint, read when they are needed.

    Raises:
        ValueError: there is no end token, no chat template where messages are rendered, or an empty prompt.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._directory, local_files_only=True)
        if tokenizer.eos_token_id is None:
            raise ValueError(f"{self._directory}: the tokenizer needs an end token")
        return tokenizer

    @cached_property
    def end_tokens(self) -> list[int]:
        """Return the tokenizer's end token and those of the checkpoint's generation settings, sorted.

        Some models end a turn with another token than the tokenizer's.
        """
        paths = [self._directory / name for name in ("generation_config.json", "config.json")]
        settings = next((path for path in paths if path.is_file()), None)
        own = json.loads(settings.read_text("utf-8")).get("eos_token_id") if settings else None
        return sorted({self.tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None})

    @cached_property
    def positions(self) -> int:
        """Return the number of tokens that the model itself allows for prompt and response."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self._directory, local_files_only=True).max_position_embeddings

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Render chat messages; see `Sampler.render`."""
        if not self.tokenizer.chat_template:
            raise ValueError(f"{self._directory}: the tokenizer has no chat template, which this benchmark needs")
        return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)

    def encode(self, prompt: str) -> list[int]:
        """Return token ids; a prompt is the complete text, so no token is added to it."""
        if not prompt:
            raise ValueError("a prompt is empty; a model needs a text to continue")
        return self.tokenizer(prompt, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text without special tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def room(self, prompt_tokens: int, sampling: Sampling, max_context: int | None) -> int:
        """Return the room for new tokens after a prompt, limited by response and context; 0 or less is an overflow."""
        context = self.positions if max_context is None else min(max_context, self.positions)
        return min(sampling.max_response_tokens, context - prompt_tokens - SPARE_TOKENS)


def run_programs(
    waiting: Iterable[tuple[Place, Callable[[], Program]]], session: Session, sampler: Sampler, seed: int
) -> Iterator[list[tuple[Place, Response]]]:
    """Yield the responses of cases as soon as their programs end, and an empty list when only others made progress.

    The session's capacity limits the number of concurrent programs. The seed of a request depends on `seed`, case,
    sample and step alone, not on the order of execution.
    """
    queue = iter(waiting)
    running: dict[Place, Program] = {}
    answered: dict[Place, int] = {}  # responses that each running program has had

    def ask(place: Place, prompt: Prompt) -> None:
        text = prompt if isinstance(prompt, str) else sampler.render(prompt)
        session.submit(place, text, request_seed(seed, place, answered[place]))

    while True:
        for place, make in itertools.islice(queue, session.capacity - len(running)):
            running[place], answered[place] = make(), 0
            ask(place, next(running[place]))
        if not running:
            return
        ended = []
        for place, response in session.poll():
            answered[place] += 1
            try:
                prompt = running[place].send(response)
            except StopIteration as end:  # a program returns its case's final response
                del running[place], answered[place]
                ended.append((place, end.value))
            else:
                ask(place, prompt)
        yield ended


def request_seed(seed: int, place: Place, step: int) -> int:
    """Return the seed (31 bits) of one request."""
    text = f"{seed}/{place[0]}/{place[1]}/{step}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "big") >> 1


BAR = 20  # characters
EVERY_SECONDS = 5.0
QUIET_SECONDS = 60.0  # between two log lines while nothing ends, as with many long dialogues


class Progress:
    """Progress log: `label: [#### ] 20%, 660 of 3301, about 12 s left` every few seconds and at the end.

    While nothing ends it logs every minute, with the counts given to `made`, if any: `label: [## ] 10%, 22 of 220, 61
    outputs and 14,205 tokens in 180 s`.

    Args:
        done: count at the start; it is left out of the estimate of the time left.
    """

    def __init__(self, logger: logging.Logger, label: str, total: int, done: int = 0) -> None:
        self._logger, self._label, self._total, self._done, self._before = logger, label, total, done, done
        self._tokens = self._outputs = 0
        self._started = self._shown = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Count `count` more as done; 0 means that work goes on, and nothing has ended."""
        self._done += count
        self._show(0.0 if self._done == self._total else EVERY_SECONDS if count else QUIET_SECONDS)

    def made(self, tokens: int, outputs: int) -> None:
        """Count tokens and outputs of unfinished items. Call it often: it logs when it is time."""
        self._tokens += tokens
        self._outputs += outputs
        self._show(QUIET_SECONDS)

    def _show(self, after: float) -> None:
        now = time.monotonic()
        if now - self._shown >= after:
            self._shown = now
            self._logger.info("%s: %s", self._label, self.line(now - self._started))

    def line(self, seconds: float) -> str:
        """Return the progress line after `seconds` of work."""
        share = self._done / self._total if self._total else 1.0
        filled = "#" * round(BAR * share)
        here = f"[{filled:<{BAR}}] {share:.0%}, {self._done} of {self._total}"
        if self._tokens:
            here += f", {self._outputs} outputs and {self._tokens:,} tokens in {seconds:.0f} s"
        if self._done > self._before:
            return f"{here}, about {seconds / (self._done - self._before) * (self._total - self._done):.0f} s left"
        return here if self._tokens else f"{here}, since {seconds:.0f} s"
