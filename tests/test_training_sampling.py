"""Sampling and log-probabilities that share a prompt's keys and values equal the plain computation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dara.training.trl import NotFiniteError, draw, log_probs_and_entropies, sample
from training_tiny import PROBLEMS, tiny_model, tokenizer

TOKENS = tokenizer()
MODEL = tiny_model(TOKENS)
PROMPTS = [TOKENS(row["prompt"])["input_ids"] for row in PROBLEMS[:5]]  # of different lengths
G, LONGEST = 4, 10
TOLERANCE = {"atol": 2e-5, "rtol": 0}


def responses(*, temperature=1.0, seed=0):
    ends, generator = {"end_tokens": (TOKENS.eos_token_id,), "max_tokens": LONGEST}, torch.Generator()
    drawn = {"temperature": temperature, "top_p": 1.0, "generator": generator.manual_seed(seed)}
    return sample(MODEL, PROMPTS, G, pad=TOKENS.pad_token_id, **ends, **drawn)


def plain(prompt: list[int], response: list[int], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of a response's tokens, one sequence at a time, without padding or cache."""
    logits = MODEL(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
    log_all = logits.log_softmax(-1)
    return log_all[range(len(response)), response], -(log_all.exp() * log_all).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_responses_end_once_and_have_the_policys_log_probabilities(temperature):
    tokens, log_probs = responses(temperature=temperature)
    lengths = [len(row) for row in tokens]
    assert len(tokens) == len(PROMPTS) * G
    assert len(set(lengths)) > 3
    assert max(lengths) == (LONGEST if temperature == 1.0 else 6)
    for i, (row, values) in enumerate(zip(tokens, log_probs, strict=True)):
        assert TOKENS.eos_token_id not in row[:-1]
        assert row[-1] == TOKENS.eos_token_id or len(row) == LONGEST
        expected, _ = plain(PROMPTS[i // G], row, temperature)
        torch.testing.assert_close(torch.tensor(values), expected.detach(), **TOLERANCE)


@pytest.mark.parametrize(("temperature", "longest"), [(1.0, LONGEST), (0.6, LONGEST), (1.0, 1)])  # 1: one pass only
def test_log_probabilities_entropies_and_gradients_equal_the_plain_ones(temperature, longest):
    tokens = [row[:longest] for row in responses(seed=1)[0]]
    n, most = torch.tensor([len(row) for row in tokens]), max(map(len, PROMPTS))
    response_ids = torch.tensor([row + [0] * (n.max() - len(row)) for row in tokens])
    response_mask = (torch.arange(n.max()) < n[:, None]).int()
    prompt_ids = torch.tensor([[TOKENS.pad_token_id] * (most - len(row)) + row for row in PROMPTS for _ in range(G)])
    prompt_mask = torch.tensor([[0] * (most - len(row)) + [1] * len(row) for row in PROMPTS for _ in range(G)])
    coefficients = torch.randn(response_ids.shape, generator=torch.Generator().manual_seed(2))

    MODEL.zero_grad()
    batch = (prompt_ids, prompt_mask, response_ids, response_mask)
    got, entropies = log_probs_and_entropies(MODEL, *batch, group_size=G, temperature=temperature)
    (got * coefficients).sum().backward()
    gradients = [parameter.grad.clone() for parameter in MODEL.parameters()]

    MODEL.zero_grad()
    for i, row in enumerate(tokens):
        expected, entropy = plain(PROMPTS[i // G], row, temperature)
        torch.testing.assert_close(got[i, : len(row)], expected, **TOLERANCE)
        torch.testing.assert_close(entropies[i, : len(row)], entropy.detach(), **TOLERANCE)
        assert (got[i, len(row) :] == 0).all()
        assert (entropies[i, len(row) :] == 0).all()
        (expected * coefficients[i, : len(row)]).sum().backward()
    for gradient, parameter in zip(gradients, MODEL.parameters(), strict=True):
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradient, parameter.grad, atol=2e-4, rtol=1e-3)


def test_the_generator_decides_the_sample():
    assert responses(seed=3) == responses(seed=3)
    assert responses(seed=3)[0] != responses(seed=4)[0]


def test_frequencies_are_the_probabilities():
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(20_000, 3)
    tokens, log_probs = draw(logits, 1.0, 1.0, torch.Generator().manual_seed(0))
    shares = torch.bincount(tokens, minlength=3) / len(tokens)
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.015, rtol=0)
    torch.testing.assert_close(log_probs, logits[0][tokens])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), st.floats(0.05, 1.0), st.integers(0, 2**31))
def test_top_p_draws_only_from_the_smallest_set_that_holds_p(weights, top_p, seed):
    probs = torch.tensor(weights, dtype=torch.float64)
    probs = probs / probs.sum()
    tokens, log_probs = draw(probs.log().expand(50, -1), 1.0, top_p, torch.Generator().manual_seed(seed))
    for token in set(tokens.tolist()):
        assert probs[probs > probs[token]].sum() < top_p + 1e-9
    torch.testing.assert_close(log_probs, probs.log()[tokens])  # of the policy itself, not of the cut one


def test_logits_that_are_no_numbers_are_a_divergence():
    with pytest.raises(NotFiniteError, match="not finite"):
        draw(torch.tensor([[0.0, float("nan")]]), 1.0, 1.0, torch.Generator())
