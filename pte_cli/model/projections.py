"""Adapted linear layers that read the same input, computed together.

Their low-rank inputs are one product, the core of the layer is applied to all of them in another, and each result goes
straight into the output of its base layer. What is computed is what `PteLinear` computes one layer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
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


class Projections:
    """`modules` as one function of their common input.

    Reads the weights as they are now: make a new one after they have changed. Only for evaluation mode (no dropout).
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.bases = [m.get_base_layer() if isinstance(m, PteLinear) else m for m in modules]
        found = [Factors.of(module) for module in modules]
        self.factors = [factors for factors in found if factors is not None]
        self.adapted = [i for i, factors in enumerate(found) if factors is not None]
        with torch.no_grad():
            self.down = self._stacked() if self.factors else None
            self.ups = [factors.up.t() for factors in self.factors]

    def __call__(self, x: Tensor, mixer: Tensor | None) -> list[Tensor]:
        """x `[B * T, in]` to one `[B * T, out]` for each layer; mixer: I + M^T of each row, `[B, r, r]`, or None."""
        outs = [F.linear(x, base.weight, base.bias) if type(base) is nn.Linear else base(x) for base in self.bases]
        if self.down is None:
            return outs
        learns = torch.is_grad_enabled()
        down = self._stacked() if learns else self.down
        ups = [factors.up.t() for factors in self.factors] if learns else self.ups
        low = F.linear(x if x.dtype == down.dtype else x.to(down.dtype), down)
        rank = self.factors[0].down.shape[0]
        if mixer is not None:
            low = torch.bmm(low.view(len(mixer), -1, rank), mixer if mixer.dtype == low.dtype else mixer.to(low.dtype))
        low = low.view(len(x), -1, rank)
        for line, (i, factors, up) in enumerate(zip(self.adapted, self.factors, ups, strict=True)):
            mine, out = low[:, line], outs[i]
            if out.dtype == mine.dtype:
                outs[i] = out.addmm_(mine, up, alpha=factors.scale)
            else:
                outs[i] = out + torch.mm(mine * factors.scale, up).to(out.dtype)
        return outs

    def _stacked(self) -> Tensor:
        """The A of all layers, one below the other; a single one as it is."""
        downs = [factors.down for factors in self.factors]
        return downs[0] if len(downs) == 1 else torch.cat(downs)


def mixer(core: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """I + M^T `[B, r, r]` of a core M: what a low-rank row vector is multiplied with from the right."""
    if core is None:
        return None
    return core.mT.to(dtype) + torch.eye(core.shape[-1], dtype=dtype, device=core.device)
