"""The laptop tokenizer: whole words, single digits, and bytes for the rest, without loss."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dara.data import laptop_math, laptop_tools
from dara.data.generated import VOCABULARY, build_tokenizer


def texts(task, n=1000):
    rng = random.Random(0)
    for _ in range(n):
        one = task.example(rng)
        yield from (task.prompt(one), task.reference(one))
        yield task.demonstration(rng, one, **task.DEMONSTRATION_PARAMETERS)


TOKENIZERS = {task.__name__: build_tokenizer(texts(task)) for task in (laptop_tools, laptop_math)}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(name, text):
    tokenizer = TOKENIZERS[name]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


ODD = ["<pad>", "a<eos> b", "<unused_3>", " , . n't", "<|im_start|>assistant\n", "\r\n\t", "é"]


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_survive(text):
    for tokenizer in TOKENIZERS.values():
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_word_of_the_task_is_one_token():
    tokenizer = TOKENIZERS[laptop_tools.__name__]
    text = '<think>use weather</think>\n<tool_call>\n{"name":"weather","parameters":{"city":"paris"}}\n</tool_call>'
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == [
        *("<think>", "use", "Ġ", "weather", "</think>", "Ċ", "<tool_call>", "Ċ", '{"', "name", '":"', "weather", '","'),
        *("parameters", '":{"', "city", '":"', "paris", '"}}', "Ċ", "</tool_call>"),
    ]


def test_digits_are_counted_one_by_one():
    tokenizer = TOKENIZERS[laptop_math.__name__]
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("47+8=55;\\boxed{55}")["input_ids"])
    assert tokens == ["4", "7", "+", "8", "=", "5", "5", ";", "\\boxed{", "5", "5", "}"]


def test_vocabulary():
    for tokenizer in TOKENIZERS.values():
        assert len(tokenizer) == VOCABULARY == 512
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
        assert tokenizer.decode([511]).startswith("<unused_")


def test_order_of_texts_does_not_matter():
    corpus = list(texts(laptop_tools, 200))
    assert build_tokenizer(corpus).get_vocab() == build_tokenizer(reversed(corpus)).get_vocab()


def test_a_saved_tokenizer_is_the_same(tmp_path):
    tokenizer = TOKENIZERS[laptop_tools.__name__]
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<tools>weather(city,day)</tools> Ünknown"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert (loaded.pad_token, loaded.eos_token, loaded.padding_side) == ("<pad>", "<eos>", "left")
