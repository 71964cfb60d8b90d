"""The `pte` encoder itself: arXiv 2602.16839, section 3, for all layers and rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pte_cli.api import EncoderShape, Evicted, State
    from pte_plugins.encoders.pte import PteOptions

TINY = 1e-6


class PteEncoder(nn.Module):
    """`S <- Normalize(S + S')` with `S' = ((W_Qa q_g)(W_Ka K_e)^T)(W_Va V_e)`.

    Parameters, one set per layer, in one tensor each (L layers, rank r, g global tokens, d_kv = Hkv * D):
    global_tokens `[g, hidden]` shared by all layers; w_q `[L, r, hidden]`; w_k, w_v `[L, r, d_kv]`;
    w_k0, w_v0 `[L, r, hidden]` with `initial = "global"`; w_g `[L, r, g]` where g != r.

    State: `{"S": [L, B, g, r]}`.
    """

    def __init__(self, options: PteOptions, shape: EncoderShape) -> None:
        super().__init__()
        self.options = options
        self.rotated_keys = options.rotated_keys
        self.rank = shape.rank
        layers, g, r, hidden = shape.layers, options.global_tokens, shape.rank, shape.hidden
        d_kv = shape.kv_heads * shape.head_dim

        def random(*size: int) -> nn.Parameter:
            """Rows of unit length in expectation, so that projections keep the scale of what they read."""
            return nn.Parameter(torch.randn(*size) / size[-1] ** 0.5)

        self.global_tokens = random(g, hidden)
        self.w_q = random(layers, r, hidden)
        self.w_k = random(layers, r, d_kv)
        self.w_v = random(layers, r, d_kv)
        if options.initial == "global":
            self.w_k0 = random(layers, r, hidden)
            self.w_v0 = random(layers, r, hidden)
        if g != r:
            self.w_g = random(layers, r, g)

    def init(self, batch: int) -> State:
        """S_0, `[L, batch, g, r]`: zero (`identity`), or what the global tokens say of themselves (`global`)."""
        if self.options.initial == "identity":
            return {"S": self.w_q.new_zeros(len(self.w_q), batch, self.options.global_tokens, self.rank)}
        keys = self.global_tokens @ self.w_k0.mT
        values = self.global_tokens @ self.w_v0.mT
        first = self._normalize(self._queries() @ (keys.mT @ values))
        return {"S": first.unsqueeze(1).expand(-1, batch, -1, -1)}

    def absorb(self, state: State, evicted: Evicted) -> State:
        """`Normalize(S + S')` for evicted keys and values `[L, b, Hkv, n, D]`."""
        keys = self._project(evicted.keys, self.w_k) * evicted.mask[None, :, :, None]
        values = self._project(evicted.values, self.w_v)
        # The right factor first: r x n x r instead of g x n x r and g x n x r, and no g x n matrix is kept.
        new = self._queries().unsqueeze(1) @ (keys.mT @ values)
        return {"S": self._normalize(state["S"] + new)}

    def core(self, state: State, layer: int) -> Tensor:
        """M `[B, r, r]`: S^T where rows are read by key, S itself where columns are."""
        s = state["S"][layer]
        if self.options.global_tokens != self.rank:
            s = self.w_g[layer] @ s
        return s.mT if self.options.read == "key" else s

    def _queries(self) -> Tensor:
        """W_Qa q_g, `[L, g, r]`."""
        return self.global_tokens @ self.w_q.mT

    def _project(self, cached: Tensor, weight: Tensor) -> Tensor:
        """`[L, b, Hkv, n, D]` by `[L, r, Hkv * D]` to `[L, b, n, r]`."""
        layers, rows, heads, count, size = cached.shape
        flat = cached.to(weight.dtype).transpose(2, 3).reshape(layers, rows * count, heads * size)
        return (flat @ weight.mT).view(layers, rows, count, -1)

    def _normalize(self, s: Tensor) -> Tensor:
        """Frobenius norm to sqrt(r), each row to 1, or unchanged. Near zero the scale is kept, not blown up."""
        if self.options.normalize == "frobenius":
            return s * (self.rank**0.5 / (s.square().sum((-2, -1), keepdim=True) + TINY).sqrt())
        if self.options.normalize == "row":
            return s / (s.square().sum(-1, keepdim=True) + TINY).sqrt()
        return s
