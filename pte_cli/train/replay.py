"""Scoring traces under exactly the context their rollout had, with gradients at the memory of one round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from pte_cli.api import EvictionPolicy, State
from pte_cli.rollout.bounded_model import NLL_GRADIENT, BoundedModel
from pte_cli.rollout.trace import Trace
from pte_cli.train.exact import exact
from pte_cli.train.forward import Forward, Loss, Scored
from pte_cli.train.logprobs import CHUNK
from pte_cli.train.rounds import Plan
from pte_cli.train.truncated import truncated

__all__ = ["Loss", "Scored", "replay"]


def replay(
    model: BoundedModel,
    traces: Sequence[Trace],
    policy: EvictionPolicy,
    *,
    temperature: float = 1.0,
    vocab: int | None = None,
    loss: Loss | None = None,
    gradient: Literal["truncated", "exact"] = "exact",
    on_last_state: Callable[[State], None] | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Log-probabilities `[B, longest completion]` of the traces' tokens, detached, 0 where a row has no token.

    With `loss`, gradients of the sum of its values are accumulated in the trainable parameters: `truncated` (through
    encoder states, not through cached keys and values) or `exact`. ValueError for `exact` with an encoder that learns
    from a gradient of its own, whose second derivative is not computed.
    on_last_state: told the encoder state of the last round, of those rows that reach it.
    Where a trace has no recorded positions, `policy` decides what leaves, from the same cache a rollout would have.
    """
    plan = Plan(traces, model.device)
    length = max(len(trace.completion) for trace in traces)
    dtype = torch.promote_types(model.dtype, torch.float32)
    result = torch.zeros(len(traces), length, dtype=dtype, device=model.device)
    forward = Forward(model, plan, policy, result, temperature, vocab, chunk)
    with model.session():
        if loss is None or gradient == "truncated":
            last = truncated(forward, loss)
        elif NLL_GRADIENT in getattr(model.encoder, "needs", frozenset()):
            raise ValueError("the exact gradient of an encoder that learns from a likelihood is not available")
        else:
            last = exact(forward, loss)
    if on_last_state is not None:
        on_last_state(last)
    return result
