"""The encoder itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from my_plugin import Options
    from pte_cli.api import EncoderShape, Evicted, State


class MyPlugin(nn.Module):
    """`S <- bound * tanh((S + (P_k K)^T (P_v V)) / bound)`, one S `[r, r]` per layer and row.

    Parameters (L layers, rank r, d = Hkv * D): w_k, w_v `[L, r, d]`. State: `{"S": [L, B, r, r]}`.
    """

    rotated_keys = False  # keys without the rotation of their position

    def __init__(self, options: Options, shape: EncoderShape) -> None:
        super().__init__()
        self.bound = options.bound
        size = shape.kv_heads * shape.head_dim
        self.w_k = nn.Parameter(torch.randn(shape.layers, shape.rank, size) / size**0.5)
        self.w_v = nn.Parameter(torch.randn(shape.layers, shape.rank, size) / size**0.5)

    def init(self, batch: int) -> State:
        """Nothing was evicted yet: zero, which is plain LoRA."""
        layers, rank, _ = self.w_k.shape
        return {"S": self.w_k.new_zeros(layers, batch, rank, rank)}

    def absorb(self, state: State, evicted: Evicted) -> State:
        """Add what leaves. Pure: nothing given is changed; padding (mask False) does not count."""
        keys = self._project(evicted.keys, self.w_k) * evicted.mask[None, :, :, None]
        values = self._project(evicted.values, self.w_v)
        return {"S": self.bound * torch.tanh((state["S"] + keys.mT @ values) / self.bound)}

    def core(self, state: State, layer: int) -> Tensor:
        """M `[B, r, r]` of one layer: keys on the side that meets the input."""
        return state["S"][layer].mT

    def _project(self, cached: Tensor, weight: Tensor) -> Tensor:
        """`[L, b, Hkv, n, D]` by `[L, r, Hkv * D]` to `[L, b, n, r]`."""
        flat = cached.to(weight.dtype).transpose(2, 3).flatten(3)
        return flat @ weight.mT.unsqueeze(1)


__all__ = ["MyPlugin"]
