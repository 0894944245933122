"""Sessions of the samplers, request by request, on random models of a few thousand parameters."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bfcl_v4_fakes import benchmark
from dara.config import Sampling
from dara.evaluation.records import Response
from dara.evaluation.samplers import OVERFLOW, SAMPLERS, Sampler, TransformersSampler

WORDS, POSITIONS = 200, 64
PAD, END, OTHER_END = 0, 1, 2
FREE = Sampling(temperature=1.0, top_p=1.0, max_response_tokens=6)
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def save_checkpoint(
    folder: Path, logits: dict[int, float] | None = None, template: str | None = TEMPLATE, sharpness: float = 1.0
) -> Path:
    """A small Llama over words; with `logits` each place has the same distribution. Head size 32, so vLLM runs it."""
    special = {"<pad>": PAD, "<eos>": END, "<turn>": OTHER_END}
    vocabulary = {**special, "user": 3, "assistant": 4, **{f"w{i}": i + 5 for i in range(WORDS)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", additional_special_tokens=["<turn>"]
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=POSITIONS, tie_word_embeddings=False, pad_token_id=PAD, eos_token_id=[END, OTHER_END],
        bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        model.lm_head.weight.mul_(sharpness)
        if logits is not None:
            layer = model.model.layers[0]
            for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight, model.lm_head.weight):
                weight.zero_()
            model.model.embed_tokens.weight.fill_(1.0)  # so the last hidden state is 1 everywhere
            for token, logit in logits.items():
                model.lm_head.weight[token] = logit / 64
    model.save_pretrained(folder)
    return folder


def answers(
    sampler: Sampler, requests: dict[str, tuple[str, int]], sampling: Sampling = FREE, context: int | None = None
) -> dict[str, Response]:
    """Key -> response to (prompt, seed)."""
    session = sampler.session(sampling, context)
    for key, (prompt, seed) in requests.items():
        session.submit(key, prompt, seed)
    found: dict[str, Response] = {}
    while part := session.poll():
        assert not found.keys() & dict(part).keys()
        found |= dict(part)
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("random"))


def test_what_a_request_gets_depends_on_its_seed_and_not_on_its_neighbours(checkpoint: Path) -> None:
    requests = {f"{i}": (" ".join(["w1", "w2", "w3"] * (1 + i % 3)), i) for i in range(7)}
    before = torch.get_rng_state()
    together = answers(TransformersSampler(checkpoint, 3), requests)
    assert torch.equal(before, torch.get_rng_state())
    assert set(together) == set(requests)
    alone = {key: answers(TransformersSampler(checkpoint, 1), {key: request})[key] for key, request in requests.items()}
    assert together == alone == answers(TransformersSampler(checkpoint, 3), dict(reversed(requests.items())))
    same = answers(TransformersSampler(checkpoint, 2), {"a": ("w1", 0), "b": ("w1", 1), "c": ("w1", 0)})
    assert same["a"] == same["c"] != same["b"]


def test_draws_have_the_probabilities_of_the_softmax_at_the_temperature(tmp_path: Path) -> None:
    # At temperature 0.5: e^(2 * 1) to 1 against e^0, the rest far below.
    logits = dict.fromkeys(range(WORDS + 5), -50.0) | {10: 1.0, 11: 0.0}
    sampler = TransformersSampler(save_checkpoint(tmp_path, logits), 500)
    one = Sampling(temperature=0.5, top_p=1.0, max_response_tokens=1)
    drawn = Counter(
        response.text for response in answers(sampler, {str(i): ("w1", i) for i in range(2000)}, one).values()
    )
    assert set(drawn) == {"w5", "w6"}
    assert drawn["w5"] / 2000 == pytest.approx(0.881, abs=0.03)  # e^2 / (e^2 + 1), four standard errors
    nucleus = Sampling(temperature=0.5, top_p=0.8, max_response_tokens=1)
    cut = {response.text for response in answers(sampler, {str(i): ("w1", i) for i in range(100)}, nucleus).values()}
    assert cut == {"w5"}


def test_every_end_token_of_the_checkpoint_ends_a_response(tmp_path: Path) -> None:
    for end in (END, OTHER_END):
        sampler = TransformersSampler(save_checkpoint(tmp_path / str(end), {end: 39.0, 12: 40.0}), 32)
        said = answers(sampler, {str(i): ("w1", i) for i in range(32)}).values()
        assert {response.finished for response in said} == {True, False}
        for response in said:
            words = response.text.split()
            assert set(words) <= {"w7"}
            assert response.n_tokens == len(words) + response.finished
            assert response.finished or response.n_tokens == FREE.max_response_tokens


def test_a_response_gets_what_the_context_leaves_but_two_tokens(tmp_path: Path) -> None:
    sampler = TransformersSampler(save_checkpoint(tmp_path, {12: 40.0}), 8)
    long = Sampling(temperature=1.0, top_p=1.0, max_response_tokens=1000)
    prompts = {str(length): (" ".join(["w1"] * length), 0) for length in (1, 50, 61, 62, 63, 64, 500)}
    said = answers(sampler, prompts, long)
    assert {key: response.n_tokens for key, response in said.items()} == {
        "1": 61, "50": 12, "61": 1, "62": 0, "63": 0, "64": 0, "500": 0
    }  # fmt: skip
    assert all(said[key] == OVERFLOW for key in ("62", "63", "64", "500"))
    assert said["50"] == Response(" ".join(["w7"] * 12), 12, False)
    short = answers(sampler, {"a": ("w1 w1", 0), "b": (" ".join(["w1"] * 14), 0)}, long, context=16)
    assert (short["a"].n_tokens, short["b"]) == (12, OVERFLOW)


def test_messages_are_rendered_with_the_checkpoints_template(checkpoint: Path, tmp_path: Path) -> None:
    sampler = TransformersSampler(checkpoint, 1)
    assert sampler.render([{"role": "user", "content": "w1"}]) == "user w1 assistant "
    assert sampler.count_tokens("user w1 assistant ") == 3
    without = TransformersSampler(save_checkpoint(tmp_path, template=None), 1)
    with pytest.raises(ValueError, match="the tokenizer has no chat template, which this benchmark needs"):
        without.render([{"role": "user", "content": "w1"}])
    with pytest.raises(ValueError, match="a prompt is empty"):
        answers(sampler, {"a": ("", 0)})


def test_a_closed_sampler_starts_again(checkpoint: Path) -> None:
    sampler = TransformersSampler(checkpoint, 2)
    first = answers(sampler, {"a": ("w1", 0)})
    sampler.close()
    assert answers(sampler, {"a": ("w1", 0)}) == first


@pytest.mark.openrlhf
def test_vllm_samples_request_by_request(checkpoint: Path, tmp_path: Path) -> None:
    from dara.evaluation.vllm_sampler import VllmSampler

    sampler = VllmSampler(checkpoint, 4)
    requests = {f"{i}": (" ".join(["w1", "w2", "w3"] * (1 + i % 3)), i) for i in range(9)}
    first = answers(sampler, requests)
    assert set(first) == set(requests)
    assert answers(sampler, dict(reversed(requests.items()))) == first
    assert len({response.text for response in first.values()}) > 1
    assert answers(sampler, {"long": (" ".join(["w1"] * 62), 0)})["long"] == OVERFLOW
    assert answers(sampler, {"fits": (" ".join(["w1"] * 61), 0)})["fits"].n_tokens == 1
    twice = sampler.generate(["w1", "w2 w3"], 2, FREE, seed=3)
    assert (
        twice
        == sampler.generate(["w1", "w2 w3"], 2, FREE, seed=3)
        != sampler.generate(["w1", "w2 w3"], 2, FREE, seed=4)
    )
    assert sampler.identity["sampler"] == "vllm"
    assert sampler.identity["max_num_seqs"] == 4
    assert "0." in sampler.identity["vllm"]
    sampler.close()
    sharp = save_checkpoint(tmp_path / "sharp", sharpness=1000.0)  # so that only the logits matter
    other, nearly_greedy = VllmSampler(sharp, 4), Sampling(temperature=0.01, top_p=1.0, max_response_tokens=6)
    assert answers(other, requests, nearly_greedy) == answers(TransformersSampler(sharp, 4), requests, nearly_greedy)
    other.close()
    ends = VllmSampler(save_checkpoint(tmp_path / "ends", {OTHER_END: 40.0, 12: 40.0}), 4)
    for response in answers(ends, {str(i): ("w1", i) for i in range(12)}).values():
        words = response.text.split()
        assert set(words) <= {"w7"}
        assert response.n_tokens == len(words) + response.finished
    ends.close()


def test_vllm_that_is_not_installed_says_what_to_use(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dara.evaluation import vllm_sampler

    def absent(package: str) -> str:
        raise vllm_sampler.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(vllm_sampler.metadata, "version", absent)
    with pytest.raises(ValueError, match="vLLM is not installed in this environment; use the sampler transformers"):
        vllm_sampler.VllmSampler(checkpoint, 4)


def test_the_gpus_of_one_engine_belong_to_the_identity(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dara.evaluation import vllm_sampler

    monkeypatch.setattr(vllm_sampler.metadata, "version", lambda package: "1.2")
    for gpus in (1, 2):
        identity = SAMPLERS["vllm"](checkpoint, benchmark(sampler="vllm", tensor_parallel=gpus)).identity
        assert (identity["tensor_parallel"], identity["max_num_seqs"], identity["vllm"]) == (gpus, 4, "vllm 1.2")
