"""The `ttt` encoder itself: S is a linear map from keys to values, trained on what leaves the cache.

Sun et al. 2024 ("Learning to (Learn at Test Time)", arXiv 2407.04620) with a linear inner model, one S per layer and
sequence. Its outer parameters (projections, step sizes) are trained like any other, through these updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pte_cli.api import EncoderShape, Evicted, State
    from pte_plugins.encoders.ttt import TttOptions

TINY = 1e-6


class TttEncoder(nn.Module):
    """S `[L, B, r, r]` maps k~ = P_k k / |P_k k| to v~ = P_v v; the core is S itself, zero at the start.

    reconstruction: `S <- S - eta / b * sum_i (S k~_i - v~_i) k~_i^T`, the delta rule for the n evicted tokens together,
        `steps` times. b >= 1 bounds the largest eigenvalue of `sum_i k~_i k~_i^T` and eta = sigmoid(step) is in (0, 1),
        so no step overshoots. With `momentum` m: `Z <- m Z + step; S <- S + Z`.
    ridge: `S <- argmin_S sum_i |S k~_i - v~_i|^2 + ridge * |S - S_before|^2`, solved exactly.
    nll: `S <- S - eta * G / max(1, |G|)`, G the gradient of the evicted tokens' mean negative log-likelihood with
        respect to S. First order: G counts as a constant when S is differentiated, so the gradient reaches eta and
        earlier S only.

    Parameters: p_k, p_v `[L, r, Hkv * D]` (not for `nll`), step `[L]` (not for `ridge`).
    """

    def __init__(self, options: TttOptions, needs: frozenset[str], shape: EncoderShape) -> None:
        super().__init__()
        self.options = options
        self.needs = needs
        self.rotated_keys = options.rotated_keys
        self.rank, self.layers = shape.rank, shape.layers
        size = shape.kv_heads * shape.head_dim
        if options.objective != "nll":
            # Rows of unit length in expectation, so that projections keep the scale of what they read.
            self.p_k = nn.Parameter(torch.randn(shape.layers, shape.rank, size) / size**0.5)
            self.p_v = nn.Parameter(torch.randn(shape.layers, shape.rank, size) / size**0.5)
        if options.objective != "ridge":
            self.step = nn.Parameter(torch.zeros(shape.layers))

    def init(self, batch: int) -> State:
        """S = 0, `[L, batch, r, r]`, and with momentum the velocity Z = 0 of the same shape."""
        like = next(self.parameters())
        names = ("S", "Z") if self.options.momentum else ("S",)
        return {name: like.new_zeros(self.layers, batch, self.rank, self.rank) for name in names}

    def absorb(self, state: State, evicted: Evicted) -> State:
        """S (and Z) after learning `evicted`."""
        if self.options.objective == "nll":
            return self._descend(state, lambda _: self._likelihood_step(evicted))
        keys = self._project(evicted.keys, self.p_k)
        # The tiny term keeps the gradient finite where a projection is zero.
        keys = keys / (keys.square().sum(-1, keepdim=True) + TINY).sqrt() * evicted.mask[None, :, :, None]
        values = self._project(evicted.values, self.p_v)
        if self.options.objective == "ridge":
            return {"S": self._ridge(state["S"], keys, values)}
        # Masked keys are zero: they take part in neither the steps nor the bound. Row sums bound the eigenvalues.
        bound = (keys @ keys.mT).abs().sum(-1).amax(-1)[..., None, None].clamp(min=1)
        for _ in range(self.options.steps):
            state = self._descend(state, lambda s: (s @ keys.mT - values.mT) @ keys / bound)
        return state

    def core(self, state: State, layer: int) -> Tensor:
        """M = S of the layer, `[B, r, r]`: what is low-rank input is read as a key."""
        return state["S"][layer]

    def _descend(self, state: State, gradient) -> State:
        """One step of gradient descent, with momentum where that is asked for."""
        change = -torch.sigmoid(self.step)[:, None, None, None] * gradient(state["S"])
        if not self.options.momentum:
            return {"S": state["S"] + change}
        velocity = self.options.momentum * state["Z"] + change
        return {"S": state["S"] + velocity, "Z": velocity}

    def _likelihood_step(self, evicted: Evicted) -> Tensor:
        """The gradient given with `evicted`, at most of norm 1 for each layer and row."""
        gradient = evicted.nll_gradient["S"]
        return gradient / gradient.square().sum((-2, -1), keepdim=True).sqrt().clamp(min=1)

    def _ridge(self, before: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`(sum v~ k~^T + ridge S) (sum k~ k~^T + ridge I)^-1`."""
        identity = torch.eye(self.rank, dtype=keys.dtype, device=keys.device)
        gram = keys.mT @ keys + self.options.ridge * identity
        target = values.mT @ keys + self.options.ridge * before
        # gram is symmetric, so S gram = target is gram S^T = target^T.
        return torch.linalg.solve(gram, target.mT).mT

    def _project(self, cached: Tensor, weight: Tensor) -> Tensor:
        """`[L, b, Hkv, n, D]` by `[L, r, Hkv * D]` to `[L, b, n, r]`."""
        layers, rows, heads, count, size = cached.shape
        flat = cached.to(weight.dtype).transpose(2, 3).reshape(layers, rows * count, heads * size)
        return (flat @ weight.mT).view(layers, rows, count, -1)
