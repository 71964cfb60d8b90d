"""Log-probabilities of given tokens without ever holding batch x length x vocabulary logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pte_cli.rollout.sampling import log_probs

CHUNK = 1024
"""Tokens whose logits exist at the same time."""


def token_log_probs(
    hidden: Tensor,
    head: nn.Module,
    targets: Tensor,
    temperature: float,
    vocab: int | None,
    chunk: int = CHUNK,
) -> Tensor:
    """log p(targets) `[N]` from hidden states `[N, H]`; with gradients, a chunk's logits are made again for them."""

    def score(part: Tensor, wanted: Tensor) -> Tensor:
        return log_probs(head(part), temperature, vocab).gather(-1, wanted[:, None]).squeeze(-1)

    parts = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    if torch.is_grad_enabled() and len(hidden) > chunk:
        return torch.cat([checkpoint(score, part, wanted, use_reentrant=False) for part, wanted in parts])
    return torch.cat([score(part, wanted) for part, wanted in parts])
