"""Generated problems: the split into held-out and training problems, and their tokenizer.

The held-out problems are drawn first; no training row and no demonstration of a warm start contains one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dara.data import SOURCES, source_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from dara.specs import DataSpec

MAX_DRAWS = 10_000  # draws for one example before its category counts as used up
TOKENIZER_TEXTS = 3000  # examples whose texts make the vocabulary: each word of a task is in dozens of them
VOCABULARY = 512  # entries of the tokenizer: 2 special tokens, 256 bytes, whole pieces, and unused ones
PAD, EOS = "<pad>", "<eos>"
PIECES = r"</?[a-z_]+>|\\boxed\{|[a-z_]+|[0-9]|\s|[^a-z0-9\s_<\\]+|<|\\"


def demonstration_parameters(source: str, overrides: Mapping[str, float]) -> dict[str, float]:
    """Return the source's demonstration parameters with `overrides`. ValueError for an unknown key or a non-share."""
    defaults = SOURCES[source].generator.DEMONSTRATION_PARAMETERS
    for key, value in overrides.items():
        if key not in defaults:
            raise ValueError(
                f"warm_start.demonstrations: {source} has no parameter {key!r}; it has {', '.join(defaults)}"
            )
        if not 0 <= value <= 1:
            raise ValueError(f"warm_start.demonstrations.{key}: {value} is no share; it must lie between 0 and 1")
    return {**defaults, **overrides}


def held_out(data: DataSpec) -> dict[tuple, Any]:
    """Return the held-out examples by their problems, which are distinct and independent of `train_rows`.

    Training rows and demonstrations must not contain these problems.
    """
    rng, examples = _rng(data, "held_out"), {}
    while len(examples) < data.held_out_rows:
        example = draw(data, rng, examples)
        examples[example.problem] = example
    return examples


def train_rows(data: DataSpec) -> list[dict[str, str]]:
    """Return the training rows {"id", "prompt", "reference"}. Problems may repeat, but none is a held-out one."""
    rng, excluded = _rng(data, "train"), held_out(data)
    examples = [draw(data, rng, excluded) for _ in range(data.train_rows)]
    return [{"id": f"train_{i}", "prompt": one.prompt, "reference": one.reference} for i, one in enumerate(examples)]


def draw(data: DataSpec, rng: random.Random, excluded: Container[tuple]) -> Any:
    """Draw an example whose problem is not in `excluded`.

    An excluded problem is replaced by one of its own category: otherwise leaving out the held-out problems would make
    the categories with few problems rarer. Raises ValueError if a category has no problem left.
    """
    draw_any = source_of(data).generator.example
    example = draw_any(rng)
    wanted = example.category
    for _ in range(MAX_DRAWS):
        if example.category == wanted and example.problem not in excluded:
            return example
        example = draw_any(rng)
    raise ValueError(
        f"data.held_out_rows: {data.source} has too few distinct problems of category {wanted} to hold out "
        f"{data.held_out_rows} of all; ask for fewer"
    )


def texts(data: DataSpec) -> Iterable[str]:
    """Yield texts of the task for the tokenizer: prompts, gold answers and demonstrations."""
    rng, task = _rng(data, "tokenizer"), source_of(data).generator
    for _ in range(TOKENIZER_TEXTS):
        example = task.example(rng)
        yield from (example.prompt, example.reference)
        yield task.demonstration(rng, example, **task.DEMONSTRATION_PARAMETERS)


def _rng(data: DataSpec, purpose: str) -> random.Random:
    """Return a separate generator for each purpose, so that a change of one never shifts another."""
    return random.Random(f"{data.source}/{data.version}/{data.seed}/{purpose}")


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Build the tokenizer whose whole-piece tokens are the most frequent pieces of `texts`, in any order.

    A text is split into tags, words, single digits, white space and runs of punctuation; a piece that the task uses is
    one token, any other piece is encoded in bytes. So limits of the response length count words and digits, and still
    every text is encoded and decoded without loss. It is a byte-level BPE model without merges: trained merges would
    spend most of a vocabulary of this size on halves of words, and would still split words of the task.

    Unused entries never result from a text, but have a text of their own, so a sampled one is visible in the response.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    into_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), into_bytes])
    counts = Counter(piece for text in texts for piece, _ in split.pre_tokenize_str(text))
    fixed = [PAD, EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    whole = sorted(counts.keys() - set(fixed), key=lambda piece: (-counts[piece], piece))
    unused = [f"<unused_{i}>" for i in range(VOCABULARY)]  # each contains a digit, so it is never one piece
    entries = [*fixed, *whole, *unused][:VOCABULARY]
    # ignore_merges: a piece that is an entry becomes that entry, without merges that produce it.
    model = models.BPE(vocab={piece: i for i, piece in enumerate(entries)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",  # generation continues the end of a prompt
        clean_up_tokenization_spaces=False,  # it would change texts
    )
