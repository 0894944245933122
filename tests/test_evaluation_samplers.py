"""The transformers sampler on a random model of a few thousand parameters."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dara.config import Sampling
from dara.evaluation.transformers_sampler import TransformersSampler

WORDS = 200
PAD, END = 0, 1
FREE = Sampling(temperature=1.0, top_p=1.0, max_response_tokens=6)


def save_checkpoint(folder: Path, logits: dict[int, float] | None = None) -> Path:
    """A Llama of 10,000 parameters over the words w0 ... w199. With `logits` each place has the same distribution."""
    vocabulary = {"<pad>": PAD, "<eos>": END, **{f"w{i}": i + 2 for i in range(WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=WORDS + 2, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, tie_word_embeddings=False, pad_token_id=PAD, eos_token_id=END, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        if logits is not None:
            layer = model.model.layers[0]
            for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight, model.lm_head.weight):
                weight.zero_()
            model.model.embed_tokens.weight.fill_(1.0)  # so the last hidden state is 1 everywhere
            for token, logit in logits.items():
                model.lm_head.weight[token] = logit / 16
    assert sum(p.numel() for p in model.parameters()) < 50_000
    # A checkpoint's own settings must not matter.
    model.generation_config = GenerationConfig(top_k=1, do_sample=True, eos_token_id=END, pad_token_id=PAD)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("random"))


def test_the_same_seed_gives_the_same_responses_and_leaves_the_global_generator_alone(random_model: Path) -> None:
    prompts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]
    before = torch.get_rng_state()
    first = TransformersSampler(random_model, batch_size=4).generate(prompts, 2, FREE, seed=7)
    again = TransformersSampler(random_model, batch_size=4).generate(prompts, 2, FREE, seed=7)
    other = TransformersSampler(random_model, batch_size=4).generate(prompts, 2, FREE, seed=8)
    assert first == again != other
    assert torch.equal(before, torch.get_rng_state())
    assert [len(samples) for samples in first] == [2, 2, 2]
    assert first[0][0] != first[0][1]


def test_padding_does_not_change_what_a_prompt_gets(random_model: Path) -> None:
    # Nearly greedy, so that only the logits matter: alone, and beside a longer prompt that makes padding necessary.
    nearly_greedy = Sampling(temperature=1e-4, top_p=1.0, max_response_tokens=6)
    sampler = TransformersSampler(random_model, batch_size=2)
    alone = sampler.generate(["w4 w9"], 1, nearly_greedy, seed=0)
    padded = sampler.generate(["w4 w9", "w5 w6 w7 w8 w9 w10 w11"], 1, nearly_greedy, seed=0)
    assert alone[0] == padded[0]


def test_the_end_token_is_counted_and_is_not_in_the_text(tmp_path: Path) -> None:
    word = 12  # "w10"; it and the end token are equally likely, nothing else is
    sampler = TransformersSampler(save_checkpoint(tmp_path, {END: 40.0, word: 40.0}), batch_size=64)
    (responses,) = sampler.generate(["w1"], 64, FREE, seed=0)
    for response in responses:
        words = response.text.split()
        assert set(words) <= {"w10"}
        assert response.n_tokens == len(words) + response.finished
        assert response.finished or response.n_tokens == FREE.max_response_tokens
    assert {response.n_tokens for response in responses if response.finished} >= {1, 2, 3}
    assert not all(response.finished for response in responses)


def test_top_k_is_off(tmp_path: Path) -> None:
    uniform = TransformersSampler(save_checkpoint(tmp_path, {}), batch_size=800)
    one_token = Sampling(temperature=1.0, top_p=1.0, max_response_tokens=1)
    (responses,) = uniform.generate(["w1"], 800, one_token, seed=0)
    # 800 draws from 202 tokens leave about 4 out; the library's default of 50 would leave 152 out.
    assert len({response.text for response in responses}) > 180


def test_top_p_and_temperature_are_used(tmp_path: Path) -> None:
    # Temperature 1: w10 has e^1 / (e^1 + 201) = 1.3 % and the rest 0.5 % each. Temperature 0.05: w10 has 99.99996 %.
    sampler = TransformersSampler(save_checkpoint(tmp_path, {12: 1.0}), batch_size=100)
    cold = Sampling(temperature=0.05, top_p=1.0, max_response_tokens=1)
    nucleus = Sampling(temperature=1.0, top_p=0.001, max_response_tokens=1)
    for sampling in (cold, nucleus):
        assert {response.text for response in sampler.generate(["w1"], 100, sampling, seed=0)[0]} == {"w10"}
    assert len({response.text for response in sampler.generate(["w1"], 100, FREE, seed=0)[0]}) > 50


def test_temperature_0_is_greedy(random_model: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(random_model)
    tokens = torch.tensor([[6, 11]])  # w4 w9
    for _ in range(6):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(dim=-1)], dim=1)
    words = [f"w{token - 2}" for token in tokens[0, 2:].tolist()]
    greedy = Sampling(temperature=0, top_p=0.5, max_response_tokens=6)
    sampler = TransformersSampler(random_model, batch_size=2)
    (alone,), (padded,), _ = sampler.generate(["w4 w9"], 1, greedy, seed=0) + sampler.generate(
        ["w4 w9", "w5 w6 w7"], 1, greedy, seed=1
    )
    assert alone == padded
    assert alone.text.split() == words


def test_the_identity_says_what_made_the_responses(random_model: Path) -> None:
    identity = TransformersSampler(random_model, batch_size=4).identity
    assert identity["sampler"] == "transformers"
    assert identity["batch_size"] == 4
    assert identity["torch"].startswith(torch.__version__.split("+")[0])


def test_a_prompt_that_does_not_fit_is_an_error(random_model: Path) -> None:
    sampler = TransformersSampler(random_model, batch_size=4)
    with pytest.raises(ValueError, match="need 36 tokens, the model has 32 positions"):
        sampler.generate([" ".join(["w1"] * 30)], 1, FREE, seed=0)
    with pytest.raises(ValueError, match="prompt 1 of a batch is empty"):
        sampler.generate(["w1", ""], 1, FREE, seed=0)
