"""Samplers, which generate the responses of an evaluation: what all of them share, and the dialogues run on them.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dara.evaluation.records import Place, Response
from dara.evaluation.tools import Program, Prompt
from dara.specs import Sampling

OVERFLOW = Response("", 0, False, stopped="context_overflow")
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
ProgressCallback = Callable[[int, int], object]
"""Called during a session, with the numbers of new tokens and new responses."""


class CheckpointTokenizer:
    """Tokenizer of a checkpoint. ValueError if it has no end token, or for an empty prompt.

    Attributes:
        end_tokens: the tokenizer's end token and those of the checkpoint's generation settings, sorted: some models end
            a turn with another token than the tokenizer's.
        positions: tokens that the model itself allows for prompt and response.
    """

    def __init__(self, directory: Path) -> None:
        from transformers import AutoConfig, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        if self.tokenizer.eos_token_id is None:
            raise ValueError(f"{directory}: the tokenizer needs an end token")
        paths = [directory / name for name in ("generation_config.json", "config.json")]
        settings = next((path for path in paths if path.is_file()), None)
        own = json.loads(settings.read_text("utf-8")).get("eos_token_id") if settings else None
        own = own if isinstance(own, list) else [own]
        self.end_tokens: list[int] = sorted({self.tokenizer.eos_token_id, *own} - {None})
        self.positions: int = AutoConfig.from_pretrained(directory, local_files_only=True).max_position_embeddings

    def encode(self, prompt: str) -> list[int]:
        """Return token ids; a prompt is the complete text, so no token is added to it."""
        if not prompt:
            raise ValueError("a prompt is empty; a model needs a text to continue")
        return self.tokenizer(prompt, add_special_tokens=False)["input_ids"]

    def response(self, tokens: Sequence[int], finished: bool) -> Response:
        """Return a response with its text without special tokens."""
        text = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return Response(text, len(tokens), finished)


@dataclass(frozen=True)
class Request:
    """A prompt in a session: token ids, its limit of new tokens, and the seed of its own random numbers."""

    key: Hashable
    tokens: list[int]
    room: int
    seed: int


Answers = list[tuple[Hashable, Response]]


@dataclass
class Session:
    """Requests to one model, answered in any order; `capacity` concurrent requests keep it busy.

    `context`: most tokens of prompt and response together. `answer`: the sampler's method that takes requests out of
    `waiting`, may keep them in `begun`, and returns answers.
    """

    text: CheckpointTokenizer
    sampling: Sampling
    context: int
    capacity: int
    on_progress: ProgressCallback
    answer: Callable[[Session], Answers]
    waiting: list[Request] = field(default_factory=list)
    begun: dict[str, Any] = field(default_factory=dict)
    overflowed: Answers = field(default_factory=list)

    def submit(self, key: Hashable, prompt: str, seed: int) -> None:
        """Submit a complete text for a response. A prompt that leaves no room is answered by a context overflow."""
        tokens = self.text.encode(prompt)
        room = min(self.sampling.max_response_tokens, self.context - len(tokens) - SPARE_TOKENS)
        if room > 0:
            self.waiting.append(Request(key, tokens, room, seed))
        else:
            self.overflowed.append((key, OVERFLOW))

    def poll(self) -> Answers:
        """Run until at least one request is answered; return (key, response) of each, or nothing if none is pending."""
        if self.overflowed or not (self.waiting or self.begun):
            answered, self.overflowed = self.overflowed, []
            return answered
        return self.answer(self)


class Sampler(ABC):
    """Generator of responses from one checkpoint at a time.

    `identity` has all settings that determine the responses, besides the checkpoint and the arguments of `generate`:
    JSON values, the same for every checkpoint. Responses of different identities do not belong in one table.
    The checkpoint, a local directory with weights and tokenizer, is read when it is first needed. `batch_size`:
    responses generated at once.
    """

    identity: dict[str, Any]

    def __init__(self, checkpoint_dir: Path, batch_size: int) -> None:
        self._directory, self._batch_size = checkpoint_dir, batch_size

    @cached_property
    def _text(self) -> CheckpointTokenizer:
        return CheckpointTokenizer(self._directory)

    def use(self, checkpoint_dir: Path) -> None:
        """Switch to this checkpoint, as if the sampler had been created for it. Sessions of another checkpoint end."""
        self._directory = checkpoint_dir
        self.__dict__.pop("_text", None)

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Return chat messages as text, rendered by the checkpoint's chat template. ValueError if it has none."""
        tokenizer = self._text.tokenizer
        if not tokenizer.chat_template:
            raise ValueError(f"{self._directory}: the tokenizer has no chat template, which this benchmark needs")
        return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)

    def session(self, sampling: Sampling, max_context: int | None, on_progress: ProgressCallback) -> Session:
        """Begin a session, in which a response depends on its request's seed alone, not on the other requests.

        max_context: tokens of prompt and response together, if the model allows more.
        """
        context = min(max_context or self._text.positions, self._text.positions)
        return Session(self._text, sampling, context, 2 * self._batch_size, on_progress, self._answer)

    def generate(self, prompts: Sequence[str], samples: int, sampling: Sampling, seed: int) -> list[list[Response]]:
        """Return `samples` responses to each prompt, reproducible from `seed`; an overflow where one does not fit."""
        session = self.session(sampling, None, lambda *made: None)
        places = [(number, sample) for number in range(len(prompts)) for sample in range(samples)]
        for number, sample in places:
            session.submit((number, sample), prompts[number], request_seed(seed, (str(number), sample), 0))
        answered: dict[Hashable, Response] = {}
        while len(answered) < len(places):
            answered |= session.poll()
        return [[answered[number, sample] for sample in range(samples)] for number in range(len(prompts))]

    @abstractmethod
    def _answer(self, session: Session) -> Answers:
        """Answer at least one of a session's requests; there is one."""

    @abstractmethod
    def close(self) -> None:
        """Release the memory of the model."""


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
    outputs and 14,205 tokens in 180 s`. `done`, the count at the start, is left out of the estimate of the time left.
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
        """Log a line if the last one was longer ago."""
        now = time.monotonic()
        if now - self._shown < after:
            return
        self._shown, seconds = now, now - self._started
        share = self._done / self._total if self._total else 1.0
        line = f"[{'#' * round(BAR * share):<{BAR}}] {share:.0%}, {self._done} of {self._total}"
        if self._tokens:
            line += f", {self._outputs} outputs and {self._tokens:,} tokens in {seconds:.0f} s"
        if ended := self._done - self._before:
            line += f", about {seconds / ended * (self._total - self._done):.0f} s left"
        elif not self._tokens:
            line += f", since {seconds:.0f} s"
        self._logger.info("%s: %s", self._label, line)
