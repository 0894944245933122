"""The two expensive CPU operations for groups of G responses to one prompt: sampling and log-probabilities.

Both encode a prompt once and share its keys and values among the G responses of its group, which halves the cost of an
update on the small models. They use the model's own forward pass and cache, so they work for any causal language model
of transformers with a `DynamicCache`. `tests/test_training_sampling.py` compares both with the plain computation.
"""

from __future__ import annotations

import torch
from transformers import DynamicCache, PreTrainedModel


class NotFiniteError(ArithmeticError):
    """Logits of the policy are not finite: it has diverged."""


def left_pad(sequences: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and mask, both (N, longest), of `sequences` aligned at their ends."""
    longest = max(map(len, sequences))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in sequences])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in sequences])
    return ids, mask


def encode(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, DynamicCache]:
    """Return the last hidden state (B, hidden) and the cache of B left-padded prompts (B, P)."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model.base_model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=DynamicCache(config=model.config),
        use_cache=True,
    )
    return out.last_hidden_state[:, -1], out.past_key_values


def draw(
    logits: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one token for each row of `logits` (N, V), and its log-probability (N,) at this temperature.

    top_p keeps the most likely tokens, as long as the tokens before them have less than probability top_p in total. The
    log-probability is that of the policy before this truncation: it is the denominator of the policy ratio, whose
    numerator is not truncated either. Raises NotFiniteError for logits that are not finite.
    """
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    if log_probs.isnan().any():
        raise NotFiniteError("the policy's logits are not finite")
    probs = log_probs.exp()
    if top_p < 1.0:
        ordered, index = probs.sort(dim=-1, descending=True)
        # The mass before a token decides, not up to it, so the most likely token is always kept.
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
        probs = torch.zeros_like(probs).scatter(-1, index, ordered)
    tokens = torch.multinomial(probs, 1, generator=generator)  # normalises the remaining probabilities
    return tokens[:, 0], log_probs.gather(1, tokens)[:, 0]


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    prompts: list[list[int]],
    group_size: int,
    *,
    temperature: float,
    top_p: float,
    max_tokens: int,
    end_tokens: tuple[int, ...],
    pad: int,
    generator: torch.Generator,
) -> tuple[list[list[int]], list[list[float]]]:
    """Return responses to B prompts, G = `group_size` each, prompt by prompt, and each token's log-probability.

    A response ends with one of `end_tokens`, which it includes, or after `max_tokens`. Finished rows are removed from
    the batch once they are a quarter of it.
    """
    ids, mask = left_pad(prompts, pad)
    hidden, cache = encode(model, ids, mask)
    # From here on N = B * G rows; each has a copy of its prompt's keys and values, since its own tokens follow them.
    cache.batch_repeat_interleave(group_size)
    hidden, mask = (x.repeat_interleave(group_size, 0) for x in (hidden, mask))
    rows, position = torch.arange(len(mask)), mask.sum(1)
    tokens = torch.full((len(mask), max_tokens), pad)
    log_probs = torch.zeros(len(mask), max_tokens)
    ends = torch.tensor(end_tokens)
    alive = torch.ones(len(mask), dtype=torch.bool)
    for t in range(max_tokens):
        # Finished rows still in the batch draw too, so the random numbers depend on when rows are removed: a change
        # of that rule changes every run.
        drawn, log_prob = draw(model.lm_head(hidden), temperature, top_p, generator)
        tokens[rows, t], log_probs[rows, t] = drawn, log_prob
        alive = alive & ~torch.isin(drawn, ends)
        count = int(alive.sum())
        if count == 0 or t == max_tokens - 1:
            break
        # Selecting rows copies the cache, which costs as much as a few steps, so it is not done for each finished row.
        if count <= 0.75 * len(rows):
            keep = alive.nonzero()[:, 0]
            cache.batch_select_indices(keep)
            rows, drawn, position, mask, alive = rows[keep], drawn[keep], position[keep], mask[keep], alive[keep]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        out = model.base_model(
            input_ids=drawn[:, None], attention_mask=mask, position_ids=position[:, None], past_key_values=cache
        )
        hidden, position = out.last_hidden_state[:, -1], position + 1
    # Cut off what a finished row drew after its first end token.
    is_end = torch.isin(tokens, ends)
    lengths = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, max_tokens).tolist()
    return (
        [row[:n] for row, n in zip(tokens.tolist(), lengths, strict=True)],
        [row[:n] for row, n in zip(log_probs.tolist(), lengths, strict=True)],
    )


def log_probs_and_entropies(
    model: PreTrainedModel,
    prompt_ids: torch.Tensor,
    prompt_mask: torch.Tensor,
    response_ids: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    group_size: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probability and entropy (N, C) of each response token; 0 where the mask is 0.

    Prompts (N, P) are padded left and come in groups of `group_size` equal rows, responses (N, C) are padded right.
    """
    last, cache = encode(model, prompt_ids[::group_size], prompt_mask[::group_size])
    cache.batch_repeat_interleave(group_size)
    # The prompt's last hidden state predicts the first response token, and token i predicts i + 1: the last one of the
    # response is no input.
    mask = torch.cat([prompt_mask, response_mask[:, :-1]], dim=1)
    positions = prompt_mask.sum(1, keepdim=True) + torch.arange(response_ids.shape[1] - 1)
    hidden = last.repeat_interleave(group_size, 0)[:, None]
    if response_ids.shape[1] > 1:
        out = model.base_model(
            input_ids=response_ids[:, :-1], attention_mask=mask, position_ids=positions, past_key_values=cache
        )
        hidden = torch.cat([hidden, out.last_hidden_state], dim=1)
    valid = response_mask.bool()
    logits = model.lm_head(hidden[valid]) / temperature  # of response tokens only: padding has no logits
    log_all = logits.log_softmax(-1)
    chosen = log_all.gather(1, response_ids[valid][:, None])[:, 0]
    with torch.no_grad():  # the entropy is only logged
        entropy = -(log_all.exp() * log_all).sum(-1)
    zeros = hidden.new_zeros(valid.shape)
    return zeros.masked_scatter(valid, chosen), zeros.masked_scatter(valid, entropy)
