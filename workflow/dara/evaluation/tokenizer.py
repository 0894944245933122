"""The text side of a checkpoint: tokenizer, chat template, end tokens and context, the same for every sampler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dara.specs import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPARE_TOKENS = 2  # of the context, left free as in the paper's evaluation
# What decides, besides the weights, what a checkpoint says: positions and end tokens stand in its configuration.
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
        """The tokenizer's end token and those of the checkpoint's own settings, sorted.

        Some models end a turn with a token of their own besides the tokenizer's.
        """
        paths = [self._directory / name for name in ("generation_config.json", "config.json")]
        settings = next((path for path in paths if path.is_file()), None)
        own = json.loads(settings.read_text("utf-8")).get("eos_token_id") if settings else None
        return sorted({self.tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None})

    @cached_property
    def positions(self) -> int:
        """Tokens that the model itself allows for prompt and response."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self._directory, local_files_only=True).max_position_embeddings

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """See `Sampler.render`."""
        if not self.tokenizer.chat_template:
            raise ValueError(f"{self._directory}: the tokenizer has no chat template, which this benchmark needs")
        return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)

    def encode(self, prompt: str) -> list[int]:
        """Token ids; a prompt is the complete text, so no token is added to it."""
        if not prompt:
            raise ValueError("a prompt is empty; a model needs a text to continue")
        return self.tokenizer(prompt, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text without special tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def room(self, prompt_tokens: int, sampling: Sampling, max_context: int | None) -> int:
        """New tokens for a prompt: what the response and the context allow; 0 or less is an overflow."""
        context = self.positions if max_context is None else min(max_context, self.positions)
        return min(sampling.max_response_tokens, context - prompt_tokens - SPARE_TOKENS)
