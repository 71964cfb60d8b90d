"""The one attention function: what a query sees is read from the cache, so any model class works unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from pte_cli.rollout.cache import BoundedCache
from pte_cli.rollout.observed import Part

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
    visible = bounded_cache.visible(module.layer_idx, sliding_window)
    seen = visible if tokens == 1 else visible.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(2, 3)
    observed = bounded_cache.observed
    if rows * heads * tokens * key.shape[2] <= EXPLICIT:
        # The same operators for one token and for many: rounding differs least between rollout and replay.
        weights = _weights(queries * scaling, key, seen)
        if observed is not None:
            observed.record(module.layer_idx, [Part(slice(0, tokens), weights.unflatten(2, (group, tokens)))])
        out = torch.matmul(weights.to(value.dtype), value)
    else:
        out = F.scaled_dot_product_attention(queries, key, value, attn_mask=seen, scale=scaling)
        if observed is not None:
            observed.record(module.layer_idx, _in_parts(queries * scaling, key, visible, group))
    return out.reshape(rows, heads, tokens, size).transpose(1, 2), None


def _weights(queries: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    """Softmax of scaled `queries` `[..., T, D]` over the keys they see, in float32 at least."""
    scores = torch.matmul(queries, key.mT).masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


@torch.no_grad()
def _in_parts(queries: Tensor, key: Tensor, visible: Tensor, group: int) -> Iterator[Part]:
    """The weights the fused kernel does not hand out, for a few queries at a time."""
    rows, kv_heads, lines, _ = queries.shape
    tokens = lines // group
    queries, key, seen = queries.unflatten(2, (group, tokens)), key.unsqueeze(2), visible.unsqueeze(2)
    size = max(1, EXPLICIT // (rows * kv_heads * group * key.shape[2]))
    for start in range(0, tokens, size):
        part = slice(start, min(start + size, tokens))
        yield Part(part, _weights(queries[:, :, :, part], key, seen[:, :, :, part]))


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
