"""The one attention function: what a query sees is read from the cache, so any model class works unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from pte_cli.rollout.cache import BoundedCache

NAME = "pte_bounded"
EXPLICIT = 2**24
"""Up to this many attention weights (64 MiB in float32) are written out; beyond, the fused kernel takes over."""


def bounded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    bounded_cache: BoundedCache,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention over the slots that `bounded_cache` shows.

    query `[B, H, T, D]`, key and value `[B, Hkv, K, D]` to `[B, T, H, D]`. The H / Hkv query heads of a group are
    laid beside each other as more queries, so keys and values are never repeated. `attention_mask` is ignored.
    """
    rows, heads, tokens, size = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    queries = query.reshape(rows, kv_heads, group * tokens, size)
    seen = bounded_cache.visible(module.layer_idx, sliding_window)
    if tokens > 1:
        seen = seen.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(2, 3)
    if rows * heads * tokens * key.shape[2] <= EXPLICIT:
        # The same operators for one token and for many: rounding differs least between rollout and replay.
        scores = torch.matmul(queries * scaling, key.mT).masked_fill(~seen, float("-inf"))
        precise = torch.promote_types(scores.dtype, torch.float32)
        out = torch.matmul(torch.softmax(scores, dim=-1, dtype=precise).to(value.dtype), value)
    else:
        out = F.scaled_dot_product_attention(queries, key, value, attn_mask=seen, scale=scaling)
    return out.reshape(rows, heads, tokens, size).transpose(1, 2), None


AttentionInterface.register(NAME, bounded_attention)


@contextmanager
def using_bounded_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block the model attends through its bounded cache; afterwards as it did before."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
