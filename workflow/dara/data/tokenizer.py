"""The tokenizer of the laptop tasks: whole words where the task uses them, bytes for everything else.

A text is split into tags, words, single digits, white space and runs of punctuation; a piece that the task uses is one
token, any other piece is spelt in bytes. So limits of the response length count words and digits, and yet every text is
encoded and decoded without loss. It is a byte-level BPE model without merges: trained merges would spend most of a
vocabulary of this size on halves of words, and would still split words of the task.
"""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 512  # entries: 2 special tokens, 256 bytes, whole pieces, and unused ones
PAD, EOS = "<pad>", "<eos>"
PIECES = r"</?[a-z_]+>|\\boxed\{|[a-z_]+|[0-9]|\s|[^a-z0-9\s_<\\]+|<|\\"


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """The tokenizer whose whole-piece tokens are the most frequent pieces of `texts`.

    Deterministic: ties are in alphabetical order, and the order of the texts does not matter. Entries that are left
    over never come from a text, but have a text of their own, so that a model that samples one is seen to do so.
    """
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts = Counter(piece for text in texts for piece, _ in split.pre_tokenize_str(text))
    fixed = [PAD, EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    whole = sorted(counts.keys() - set(fixed), key=lambda piece: (-counts[piece], piece))
    unused = [f"<unused_{i}>" for i in range(VOCABULARY)]  # with a digit, so not one piece
    entries = [*fixed, *whole, *unused][:VOCABULARY]
    # ignore_merges: a piece that is an entry becomes that entry, without merges that lead to it.
    model = models.BPE(vocab={piece: i for i, piece in enumerate(entries)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",  # generation continues the end of a prompt
        clean_up_tokenization_spaces=False,  # it would change texts
    )
