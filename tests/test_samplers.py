"""The samplers on random models of a few thousand parameters: all prompts at once, and request by request."""

from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from dara.config import Sampling
from dara.evaluation.engines import TransformersSampler, VllmSampler, _form
from dara.evaluation.records import Response
from dara.evaluation.samplers import OVERFLOW, Sampler

WORDS, POSITIONS = 200, 64
PAD, END, OTHER_END = 0, 1, 2


def sampling(temperature: float = 1.0, top_p: float = 1.0, longest: int = 6) -> Sampling:
    return Sampling(temperature=temperature, top_p=top_p, max_response_tokens=longest)


FREE, LONG = sampling(), sampling(longest=1000)
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def save(
    folder: Path, family: str = "Llama", seed: int = 0, template: str | None = TEMPLATE, **changes: object
) -> Path:
    """A small random model over words, whose head size of 32 lets vLLM run it; a place for a test to change weights."""
    special = {"<pad>": PAD, "<eos>": END, "<turn>": OTHER_END}
    vocabulary = {**special, "user": 3, "assistant": 4, **{f"w{i}": i + 5 for i in range(WORDS)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", additional_special_tokens=["<turn>"]
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    config = {
        "vocab_size": len(vocabulary), "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": POSITIONS, "pad_token_id": PAD,
        "tie_word_embeddings": False, "eos_token_id": [END, OTHER_END], "bos_token_id": None, **changes,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**config))
    # A checkpoint's own settings must not matter.
    model.generation_config = GenerationConfig(top_k=1, do_sample=True, eos_token_id=[END, OTHER_END], pad_token_id=PAD)
    model.save_pretrained(folder)
    return folder


def save_checkpoint(folder: Path, logits: dict[int, float] | None = None, sharpness: float = 1.0) -> Path:
    """The same; with `logits` each place has the same distribution, and with sharpness only the logits matter."""
    model = AutoModelForCausalLM.from_pretrained(save(folder))
    with torch.no_grad():
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
    sampler: Sampler, requests: dict[str, tuple[str, int]], settings: Sampling = FREE, context: int | None = None
) -> dict[str, Response]:
    """Key -> response to (prompt, seed)."""
    session = sampler.session(settings, context, lambda *made: None)
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


def word_requests(count: int) -> dict[str, tuple[str, int]]:
    return {f"{i}": (" ".join(["w1", "w2", "w3"] * (1 + i % 3)), i) for i in range(count)}


def same_prompt(count: int) -> dict[str, tuple[str, int]]:
    return {f"{seed}": ("w1", seed) for seed in range(count)}


def test_what_a_request_gets_depends_on_its_seed_and_not_on_its_neighbours(checkpoint: Path) -> None:
    requests, before = word_requests(7), torch.get_rng_state()
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
    drawn = Counter(said.text for said in answers(sampler, same_prompt(2000), sampling(0.5, longest=1)).values())
    assert set(drawn) == {"w5", "w6"}
    assert drawn["w5"] / 2000 == pytest.approx(0.881, abs=0.03)  # e^2 / (e^2 + 1), four standard errors
    nucleus = answers(sampler, same_prompt(100), sampling(0.5, top_p=0.8, longest=1))
    assert {said.text for said in nucleus.values()} == {"w5"}


def test_temperature_0_is_greedy(checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokens = torch.tensor([[9, 14]])  # w4 w9
    for _ in range(6):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(dim=-1)], dim=1)
    words = [f"w{token - 5}" for token in tokens[0, 2:].tolist()]
    greedy = sampling(0, top_p=0.5)
    prompts, sampler = ["w4 w9", "w3", "w4 w5 w6 w7"], TransformersSampler(checkpoint, 3)
    said = answers(sampler, {prompt: (prompt, seed) for seed, prompt in enumerate(prompts)}, greedy)
    assert said["w4 w9"].text.split() == words
    assert said == answers(sampler, {prompt: (prompt, 7) for prompt in prompts}, greedy)
    assert [[said[prompt]] for prompt in prompts] == sampler.generate(prompts, 1, greedy, seed=0)
    assert sampler.generate(prompts[:1], 1, greedy, seed=1) == [[said["w4 w9"]]]
    assert len({response.text for response in said.values()}) > 1


@pytest.mark.parametrize("end", [END, OTHER_END])
def test_every_end_token_of_the_checkpoint_ends_a_response(end: int, tmp_path: Path) -> None:
    sampler = TransformersSampler(save_checkpoint(tmp_path, {end: 39.0, 12: 40.0}), 32)
    said = answers(sampler, same_prompt(32)).values()
    assert {response.finished for response in said} == {True, False}
    for response in said:
        words = response.text.split()
        assert set(words) <= {"w7"}
        assert response.n_tokens == len(words) + response.finished
        assert response.finished or response.n_tokens == FREE.max_response_tokens


def test_a_response_gets_what_the_context_leaves_but_two_tokens(tmp_path: Path) -> None:
    sampler = TransformersSampler(save_checkpoint(tmp_path, {12: 40.0}), 8)
    prompts = {str(length): (" ".join(["w1"] * length), 0) for length in (1, 50, 61, 62, 63, 64, 500)}
    said = answers(sampler, prompts, LONG)
    assert {key: response.n_tokens for key, response in said.items()} == {
        "1": 61, "50": 12, "61": 1, "62": 0, "63": 0, "64": 0, "500": 0
    }  # fmt: skip
    assert all(said[key] == OVERFLOW for key in ("62", "63", "64", "500"))
    assert said["50"] == Response(" ".join(["w7"] * 12), 12, False)
    short = answers(sampler, {"a": ("w1 w1", 0), "b": (" ".join(["w1"] * 14), 0)}, LONG, context=16)
    assert (short["a"].n_tokens, short["b"]) == (12, OVERFLOW)


def test_the_same_seed_gives_the_same_responses_and_leaves_the_global_generator_alone(checkpoint: Path) -> None:
    before = torch.get_rng_state()
    first, again, other = (
        TransformersSampler(checkpoint, 4).generate(["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"], 2, FREE, seed=seed)
        for seed in (7, 7, 8)
    )
    assert first == again != other
    assert torch.equal(before, torch.get_rng_state())
    assert [len(samples) for samples in first] == [2, 2, 2]
    assert first[0][0] != first[0][1]


def test_padding_does_not_change_what_a_prompt_gets(checkpoint: Path) -> None:
    # Nearly greedy, so that only the logits matter: alone, and beside a longer prompt that makes padding necessary.
    sampler = TransformersSampler(checkpoint, batch_size=2)
    alone = sampler.generate(["w4 w9"], 1, sampling(1e-4), seed=0)
    padded = sampler.generate(["w4 w9", "w5 w6 w7 w8 w9 w10 w11"], 1, sampling(1e-4), seed=0)
    assert alone[0] == padded[0]


def test_temperature_and_top_p_are_used_and_top_k_is_off(tmp_path: Path) -> None:
    # Temperature 1: w7 has e^1 / (e^1 + 204) = 1.3 % and the rest 0.5 % each. Temperature 0.05: w7 has 99.99996 %.
    sampler = TransformersSampler(save_checkpoint(tmp_path, {12: 1.0}), batch_size=800)

    def words(settings: Sampling, samples: int) -> set[str]:
        return {response.text for response in sampler.generate(["w1"], samples, settings, seed=0)[0]}

    assert words(sampling(0.05, longest=1), 100) == words(sampling(top_p=0.001, longest=1), 100) == {"w7"}
    # 800 draws from 205 tokens leave about 4 out; the library's default of 50 would leave 152 out.
    assert len(words(sampling(longest=1), 800)) > 180


def test_a_prompt_that_does_not_fit_is_an_error(checkpoint: Path) -> None:
    sampler = TransformersSampler(checkpoint, batch_size=4)
    with pytest.raises(ValueError, match="need 68 tokens, the model has 64 positions"):
        sampler.generate([" ".join(["w1"] * 62)], 1, FREE, seed=0)
    with pytest.raises(ValueError, match="prompt 1 of a batch is empty"):
        sampler.generate(["w1", ""], 1, FREE, seed=0)
    with pytest.raises(ValueError, match="a prompt is empty"):
        answers(sampler, {"a": ("", 0)})


def test_a_short_prompt_gets_its_room_beside_a_long_one_where_positions_are_learned(tmp_path: Path) -> None:
    folder = save(tmp_path, "GPT2", eos_token_id=END, initializer_range=0.5)  # it has no position behind the last
    prompts = {str(length): (" ".join(["w1"] * length), length) for length in (1, 30, 50, 61)}
    together = answers(TransformersSampler(folder, 4), prompts, LONG)
    alone = {key: answers(TransformersSampler(folder, 1), {key: one}, LONG)[key] for key, one in prompts.items()}
    assert together == alone
    unfinished = {key: said.n_tokens for key, said in together.items() if not said.finished}
    assert unfinished
    assert all(n_tokens == POSITIONS - 2 - int(key) for key, n_tokens in unfinished.items())


def test_a_batch_ends_where_no_row_has_room(tmp_path: Path) -> None:
    """Also when the row with the most room has ended by itself: the others are not computed to its end."""
    told = []
    sampler = TransformersSampler(save_checkpoint(tmp_path, {12: 40.0}), 2)
    session = sampler.session(LONG, None, lambda *made: told.append(made))
    session.submit("short", "w1", 0)
    session.submit("long", " ".join(["w1"] * 50), 0)
    assert {key: response.n_tokens for key, response in session.poll()} == {"short": 61, "long": 12}
    assert told == [(2, 0)] * 12 + [(1, 0)] * 49 + [(0, 2)]  # while the batch is made, token by token
    told.clear()
    sampler.use(save_checkpoint(tmp_path / "ends", {END: 40.0}))
    session = sampler.session(FREE, None, lambda *made: told.append(made))
    session.submit("a", "w1", 0)
    session.poll()
    assert told == [(1, 0), (0, 1)]


def test_a_sampler_draws_from_the_checkpoint_that_it_is_told_to_use(checkpoint: Path, tmp_path: Path) -> None:
    other, without = save_checkpoint(tmp_path / "other", {12: 40.0}), save(tmp_path / "without", template=None)
    (other / "chat_template.jinja").write_text("{{ 'other ' }}")
    sampler, messages = TransformersSampler(checkpoint, 2), [{"role": "user", "content": "w1"}]
    first = answers(sampler, {"a": ("w1", 0)})
    assert sampler.render(messages) == "user w1 assistant "
    sampler.use(other)
    assert answers(sampler, {"a": ("w1", 0)})["a"].text == " ".join(["w7"] * 6)
    assert sampler.render(messages) == "other "
    sampler.use(checkpoint)
    assert answers(sampler, {"a": ("w1", 0)}) == first
    sampler.close()
    assert answers(sampler, {"a": ("w1", 0)}) == first
    sampler.use(without)
    with pytest.raises(ValueError, match="the tokenizer has no chat template, which this benchmark needs"):
        sampler.render(messages)


@pytest.mark.openrlhf
def test_vllm_samples_request_by_request(checkpoint: Path, tmp_path: Path) -> None:
    sampler, requests = VllmSampler(checkpoint, 4), word_requests(9)
    first = answers(sampler, requests)
    assert set(first) == set(requests)
    assert answers(sampler, dict(reversed(requests.items()))) == first
    assert len({response.text for response in first.values()}) > 1
    assert answers(sampler, {"long": (" ".join(["w1"] * 62), 0)})["long"] == OVERFLOW
    assert answers(sampler, {"fits": (" ".join(["w1"] * 61), 0)})["fits"].n_tokens == 1
    twice = [sampler.generate(["w1", "w2 w3"], 2, FREE, seed=seed) for seed in (3, 3, 4)]
    assert twice[0] == twice[1] != twice[2]
    told = []
    session = sampler.session(FREE, None, lambda *made: told.append(made))
    session.submit("a", "w1", 0)
    session.submit("b", "w2 w3", 1)
    said = dict(session.poll() + session.poll())
    assert [sum(column) for column in zip(*told, strict=True)] == [sum(one.n_tokens for one in said.values()), 2]
    assert len(told) > 2
    sampler.close()
    sharp = save_checkpoint(tmp_path / "sharp", sharpness=1000.0)
    other = VllmSampler(sharp, 4)
    for temperature in (0.01, 0):
        greedy = sampling(temperature)
        assert answers(other, requests, greedy) == answers(TransformersSampler(sharp, 4), requests, greedy)
    other.close()
    ends = VllmSampler(save_checkpoint(tmp_path / "ends", {OTHER_END: 40.0, 12: 40.0}), 4)
    for response in answers(ends, same_prompt(12)).values():
        words = response.text.split()
        assert set(words) <= {"w7"}
        assert response.n_tokens == len(words) + response.finished
    ends.close()


def save_model(folder: Path, seed: int, family: str = "Llama", tied: bool = False, layers: int = 2) -> Path:
    """A random model with weights of its own, and positions for prompts of several blocks of vLLM's cache (128)."""
    save(
        folder, family, seed, num_hidden_layers=layers, intermediate_size=128, max_position_embeddings=512,
        tie_word_embeddings=tied, initializer_range=0.5,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weight.add_(torch.randn(weight.shape))
    model.save_pretrained(folder)
    return folder


def probabilities(sampler: Sampler) -> tuple[list, list[int]]:
    """Greedy tokens with the log-probabilities of the five likeliest, and how many tokens of each came from the cache.

    The prompts have their first 300 tokens in common, so that keys and values are taken from the cache.
    """
    from vllm import SamplingParams

    common = [7 * i % WORDS + 5 for i in range(300)]
    parameters = SamplingParams(temperature=0, max_tokens=8, logprobs=5, ignore_eos=True)
    prompts = [{"prompt_token_ids": [*common, *range(10, 10 + more)]} for more in (1, 5, 9)]
    outputs = sampler.engine.generate(prompts, parameters, use_tqdm=False)
    said = [
        [sorted((token, place.logprob) for token, place in step.items()) for step in output.outputs[0].logprobs]
        for output in outputs
    ]
    return said, [output.num_cached_tokens for output in outputs]


@pytest.mark.openrlhf
@pytest.mark.parametrize(("family", "tied"), [("Llama", False), ("Llama", True), ("Qwen2", True)])
def test_a_vllm_engine_that_took_over_weights_says_what_a_fresh_one_says(
    family: str, tied: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dara")
    first, second = (save_model(tmp_path / str(seed), seed, family, tied) for seed in (1, 2))
    prompt = " ".join(f"w{7 * i % WORDS}" for i in range(300))
    requests = {f"{i}": (f"{prompt} w{i}", i) for i in range(6)}

    def everything(sampler: VllmSampler) -> tuple[list, dict[str, Response]]:
        # transformers reads every tokenizer beside a Qwen2 as Qwen's own.
        return probabilities(sampler)[0], answers(sampler, requests) if family == "Llama" else {}

    sampler = VllmSampler(first, 4)
    before = everything(sampler)
    assert probabilities(sampler)[1] == [256] * 3  # what is cached must not outlive the weights that it was made by
    engine = sampler.engine
    sampler.use(second)
    after = everything(sampler)
    sampler.use(first)
    back = everything(sampler)
    assert sampler.engine is engine
    ours = [message for message in caplog.messages if message.startswith("vLLM ")]
    assert [message.split(" ")[1] for message in ours] == ["starts", "started", "took", "took"]
    sampler.close()
    fresh = VllmSampler(second, 4)
    assert after == everything(fresh)
    fresh.close()
    assert back == before
    assert before[0] != after[0]
    assert family == "Qwen2" or before[1] != after[1]


@pytest.mark.openrlhf
def test_a_vllm_engine_starts_again_for_another_form(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dara")
    small, large = save_model(tmp_path / "small", 1), save_model(tmp_path / "large", 2, layers=3)
    sampler = VllmSampler(small, 4)
    answers(sampler, word_requests(3))
    sampler.use(large)
    assert f"{large} has another form than {small}: vLLM starts again" in caplog.messages
    after = answers(sampler, word_requests(3))
    sampler.close()
    fresh = VllmSampler(large, 4)
    assert after == answers(fresh, word_requests(3))
    fresh.close()


def test_the_form_of_a_checkpoint_is_its_settings_and_the_shapes_of_its_weights(tmp_path: Path) -> None:
    first, second = (save_model(tmp_path / str(seed), seed) for seed in (1, 2))
    assert _form(first) == _form(second)
    assert _form(first)["weight lm_head.weight"] == ("F32", [WORDS + 5, 64])
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        content = (second / name).read_text()
        (second / name).write_text(content + " ")
        assert _form(first) != _form(second)
        (second / name).write_text(content)
    AutoModelForCausalLM.from_pretrained(second, dtype=torch.bfloat16).save_pretrained(second)
    assert _form(first)["weight lm_head.weight"] != _form(second)["weight lm_head.weight"]


def test_the_identity_says_what_made_the_responses(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = TransformersSampler(checkpoint, batch_size=4).identity
    assert (identity["sampler"], identity["batch_size"]) == ("transformers", 4)
    assert identity["torch"].startswith(torch.__version__.split("+")[0])

    def absent(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(ValueError, match="vLLM is not installed in this environment; use the sampler transformers"):
        VllmSampler(checkpoint, 4)
    monkeypatch.setattr(metadata, "version", lambda package: "1.2")
    for gpus in (1, 2):
        identity = VllmSampler(checkpoint, 4, gpus).identity
        assert (identity["sampler"], identity["tensor_parallel"], identity["max_num_seqs"]) == ("vllm", gpus, 4)
        assert identity["vllm"] == "vllm 1.2"
