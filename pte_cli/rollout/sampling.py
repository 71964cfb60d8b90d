"""From logits to tokens. One uniform number per token decides, so a row's tokens don't depend on its batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Every field is ours; nothing is inherited from a model folder.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off; the smallest set of tokens whose mass reaches it.
    max_new_tokens: completion length at which a row is cut off (finish "length").
    end_ids: any of these ends a completion and is its last token.
    vocab: ids from here on are never sampled (models pad their embedding); None allows all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 256
    end_ids: tuple[int, ...] = ()
    vocab: int | None = None


def log_probs(logits: Tensor, temperature: float, vocab: int | None) -> Tensor:
    """Log-probabilities over the sampleable vocabulary at `temperature` (1 where greedy), float32 or float64.

    The one definition that rollout and replay share. Not renormalised for top-k or top-p.
    """
    logits = logits[..., :vocab].to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits if temperature in (0.0, 1.0) else logits / temperature, dim=-1)


def sample(logprobs: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Tokens `[B]` from `logprobs` `[B, vocab]`: greedy, or inverse-CDF at `uniform` `[B]` in [0, 1)."""
    if sampling.temperature == 0:
        return logprobs.argmax(-1)
    probs = _restrict(logprobs, sampling).exp()
    # Summed in double: over a vocabulary of 150,000 the float32 tail would drown in rounding.
    cumulative = probs.cumsum(-1, dtype=torch.float64 if probs.device.type != "mps" else torch.float32)
    target = uniform.to(cumulative.dtype).unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=probs.shape[-1] - 1)


def choose(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Next tokens and their log-probabilities, each `[b]`, from `logits` `[b, V]` at `uniform` `[b]` in [0, 1)."""
    logprobs = log_probs(logits, sampling.temperature, sampling.vocab)
    token = sample(logprobs, uniform, sampling)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


def _restrict(logprobs: Tensor, sampling: Sampling) -> Tensor:
    """-inf outside the k likeliest tokens, then outside the nucleus (arXiv 1904.09751) of what is left."""
    size = logprobs.shape[-1]
    if 0 < sampling.top_k < size:
        kept = logprobs.topk(sampling.top_k, dim=-1)
        logprobs = torch.full_like(logprobs, float("-inf")).scatter(-1, kept.indices, kept.values)
    if sampling.top_p < 1:
        ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        before = probs.cumsum(-1) - probs
        ordered = ordered.masked_fill(before >= sampling.top_p, float("-inf"))
        logprobs = torch.empty_like(logprobs).scatter(-1, order, ordered)
    return logprobs


def uniforms(seed: int, sequence: int, count: int) -> Tensor:
    """`count` numbers in [0, 1) that belong to this sequence of this seed, float32 on the CPU."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + sequence * 7_919) % 2**63)
    return torch.rand(count, generator=generator)
