"""Adapted linear layers that read the same input, computed together.

Their low-rank inputs are one product, the core of the layer is applied to all of them in another, and each result goes
straight into the output of its base layer. What is computed is what `PteLinear` computes one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pte_cli.model.adapter import PteLinear


@dataclass(frozen=True)
class Factors:
    """One layer's LoRA: A `[r, in]`, B `[out, r]`, and the scale of their product."""

    down: nn.Parameter
    up: nn.Parameter
    scale: float

    @classmethod
    def of(cls, module: nn.Module) -> Factors | None:
        """The active adapter of `module`; None where it has none or it is switched off or merged."""
        if not isinstance(module, PteLinear) or module.disable_adapters or module.merged:
            return None
        [name] = module.active_adapters
        if name not in module.lora_A:
            return None
        return cls(module.lora_A[name].weight, module.lora_B[name].weight, module.scaling[name])


class Base:
    """A frozen `nn.Linear` without the way through its module."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.t(), bias

    @classmethod
    def of(cls, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """`module` as a function of `[N, in]`: itself where it is another kind of layer, or learns."""
        if type(module) is not nn.Linear or module.weight.requires_grad:
            return module
        return cls(module.weight, module.bias)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)


class Projections:
    """`modules` as one function of their common input.

    Reads the weights as they are now: make a new one after they have changed. Only for evaluation mode (no dropout).
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.bases = [Base.of(m.get_base_layer() if isinstance(m, PteLinear) else m) for m in modules]
        found = [Factors.of(module) for module in modules]
        self.factors = [factors for factors in found if factors is not None]
        self.adapted = [i for i, factors in enumerate(found) if factors is not None]
        if self.factors:
            self.rank = self.factors[0].down.shape[0]
            with torch.no_grad():
                self.down = self._stacked()
                self.ups = [factors.up.t() for factors in self.factors]

    def __call__(self, x: Tensor, mixer: Tensor | None) -> list[Tensor]:
        """x `[B * T, in]` to one `[B * T, out]` for each layer; mixer: I + M^T of each row, `[B, r, r]`, or None."""
        outs = [base(x) for base in self.bases]
        if not self.factors:
            return outs
        down, ups = self.down, self.ups
        if torch.is_grad_enabled():
            down, ups = self._stacked(), [factors.up.t() for factors in self.factors]
        low = torch.mm(x if x.dtype == down.dtype else x.to(down.dtype), down)
        if mixer is not None:
            mixer = mixer if mixer.dtype == low.dtype else mixer.to(low.dtype)
            low = torch.bmm(low.view(mixer.shape[0], -1, self.rank), mixer)
        lows = low.view(-1, len(ups), self.rank).unbind(1)
        for i, factors, mine, up in zip(self.adapted, self.factors, lows, ups, strict=True):
            out = outs[i]
            if out.dtype == mine.dtype:
                out.addmm_(mine, up, alpha=factors.scale)
            else:
                outs[i] = out + torch.mm(mine * factors.scale, up).to(out.dtype)
        return outs

    def _stacked(self) -> Tensor:
        """The transposed A of all layers beside each other, `[in, layers * r]`; of a single one without a copy."""
        downs = [factors.down for factors in self.factors]
        return (downs[0] if len(downs) == 1 else torch.cat(downs)).t()


def mixer(core: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """I + M^T `[B, r, r]` of a core M: what a low-rank row vector is multiplied with from the right."""
    if core is None:
        return None
    return core.mT.to(dtype) + torch.eye(core.shape[-1], dtype=dtype, device=core.device)
