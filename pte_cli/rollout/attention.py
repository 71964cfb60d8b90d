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

    query `[B, H, T, D]`, key and value `[B, Hkv, K, D]` to `[B, T, H, D]`. `attention_mask` is ignored.
    """
    out = attend(bounded_cache, module.layer_idx, query, key, value, scaling, sliding_window)
    return out.transpose(1, 2), None


def attend(
    cache: BoundedCache, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
) -> Tensor:
    """Attention of `query` `[B, H, T, D]` over `key` and `value` `[B, Hkv, K, D]` of a layer, `[B, H, T, D]`.

    The H / Hkv query heads of a group are laid beside each other as more queries, so keys and values are never
    repeated. window: the layer's own limit of how far back it sees.
    """
    rows, heads, tokens, size = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    observed = cache.observed
    if rows * heads * tokens * key.shape[2] <= EXPLICIT:
        # The same operators for one token and for many: rounding differs least between rollout and replay.
        bias = cache.bias(layer, window, kv_heads, group, query.dtype)
        queries = query.reshape(rows * kv_heads, group * tokens, size)
        scores = torch.baddbmm(bias, queries, key.flatten(0, 1).mT, alpha=scaling)
        weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        if observed is not None:
            written = weights.view(rows, kv_heads, group, tokens, -1)
            observed.record(layer, [Part(slice(0, tokens), written)])
        out = torch.bmm(weights.to(value.dtype), value.flatten(0, 1))
    else:
        visible = cache.visible(layer, window)
        queries = query.reshape(rows, kv_heads, group * tokens, size)
        seen = visible if tokens == 1 else visible.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(2, 3)
        out = F.scaled_dot_product_attention(queries, key, value, attn_mask=seen, scale=scaling)
        if observed is not None:
            observed.record(layer, _in_parts(queries * scaling, key, visible, group))
    return out.view(rows, heads, tokens, size)


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
