"""What a cached token is worth: one pure function per score, all `[L, b, Hkv, C]` from an `EvictionView`.

L layers, b rows, Hkv KV heads, C slots, w observed queries. Sums over query heads are over the group of a KV head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pte_cli.api import EvictionView

if TYPE_CHECKING:
    from torch import Tensor


def attention(view: EvictionView, _mix: float) -> Tensor:
    """`sum_t a_t(i)`: the attention weights token i has received since it was cached.

    H2O (Zhang et al. 2023, arXiv 2306.14048). Cost per eviction: none beyond the sum kept while decoding.
    """
    return view.attention


def window(view: EvictionView, _mix: float) -> Tensor:
    """`sum_(t in the last w) a_t(i)`: the weights from the last w queries.

    SnapKV's observation window (Li et al. 2024, arXiv 2404.14469), asked anew at each eviction and without its pooling
    over neighbours. Cost: w x C per head.
    """
    return view.recent_attention.sum(3)


def attention_value(view: EvictionView, _mix: float) -> Tensor:
    """`sum_t a_t(i) * |v_i|_1`: attention weighted by how much there is to read.

    VATP (Guo et al. 2024, arXiv 2406.12335). Cost: C x D per head.
    """
    return view.attention * view.values.to(view.attention.dtype).abs().sum(-1)


def key_norm(view: EvictionView, _mix: float) -> Tensor:
    """`-|k_i|_2`: keys of small norm attract attention and stay.

    Devoto et al. 2024, arXiv 2406.11430. Cost: C x D per head; nothing is recorded while decoding.
    """
    keys = view.keys
    return -keys.float().norm(dim=-1) if keys.element_size() < 4 else -keys.norm(dim=-1)


def key_diversity(view: EvictionView, mix: float) -> Tensor:
    """`mix * I(i) - (1 - mix) * R(i)`: attended, and unlike the rest.

    I: mean weight from the last w queries. R: softmax over the evictable tokens of the mean cosine similarity of k_i to
    the keys of the others. After R-KV (Cai et al. 2025, arXiv 2505.24133), without its pooling and its exemption of
    recent near-copies (the recency guard protects those). Cost: C x D per head, since the mean similarity to all keys
    is the similarity to their mean.
    """
    seen = view.recent_attention
    counts = view.evictable.expand(view.keys.shape[:-1])
    keys = view.keys.to(seen.dtype)
    units = keys / keys.norm(dim=-1, keepdim=True).clamp(min=1e-12) * counts.unsqueeze(-1)
    others = counts.sum(-1, keepdim=True) - 1
    similarity = ((units * units.sum(3, keepdim=True)).sum(-1) - 1) / others.clamp(min=1)
    redundancy = similarity.masked_fill(~counts, float("-inf")).softmax(-1)
    return mix * seen.mean(3) - (1 - mix) * redundancy


@dataclass(frozen=True)
class Score:
    """A score and what the cache must record for it."""

    function: Callable[[EvictionView, float], Tensor]
    needs: frozenset[str] = frozenset()


SCORES = {
    "attention": Score(attention, frozenset({"attention"})),
    "window": Score(window, frozenset({"recent_attention"})),
    "attention-value": Score(attention_value, frozenset({"attention"})),
    "key-norm": Score(key_norm),
    "key-diversity": Score(key_diversity, frozenset({"recent_attention"})),
}
