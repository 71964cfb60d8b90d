"""Cache-aware supervised fine-tuning: worked completions scored under the bounded cache a rollout would have."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pte_cli.api import EvictionPolicy, pinned_length
from pte_cli.rollout.trace import Trace, worked_trace
from pte_cli.tasks.codec import Worked
from pte_cli.train.replay import Loss, Scored


def worked_traces(examples: Sequence[Worked], policy: EvictionPolicy, budget: int | None, frac: float) -> list[Trace]:
    """The examples with the evictions their lengths bring about under `policy`."""
    return [worked_trace(e.prompt, e.completion, budget, frac, pinned_length(policy, len(e.prompt))) for e in examples]


def token_weights(examples: Sequence[Worked], answer_weight: float) -> torch.Tensor:
    """Weights `[B, longest completion]` that sum to 1: 1 per thinking token and `answer_weight` per answer token."""
    weights = torch.zeros(len(examples), max(len(example.completion) for example in examples))
    for row, example in enumerate(examples):
        weights[row, : len(example.completion)] = 1.0
        weights[row, len(example.completion) - example.answer : len(example.completion)] = answer_weight
    return weights / weights.sum()


def likelihood_loss(weights: torch.Tensor) -> Loss:
    """The weighted mean negative log-likelihood; `weights` `[B, T]` sum to 1 over the whole batch."""

    def loss(scored: Scored) -> torch.Tensor:
        return -(scored.logprobs * weights[scored.rows, scored.tokens]).sum()

    return loss
