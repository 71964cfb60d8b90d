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

SMALL = 2**18
"""Weights of layers that are copied beside each other: where a call costs more than the product. 1 MiB in float32."""


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
        self.small = _small(self.bases, self.factors)
        self.one: Base | None = None
        self.widths: list[int] = []
        if self.factors:
            self.rank = self.factors[0].down.shape[0]
            with torch.no_grad():
                self.down = self._stacked()
                self.ups = [factors.up.t() for factors in self.factors]

    def __call__(self, x: Tensor, mixer: Tensor | None) -> list[Tensor]:
        """x `[B * T, in]` to one `[B * T, out]` for each layer; mixer: I + M^T of each row, `[B, r, r]`, or None."""
        learns = torch.is_grad_enabled()
        outs, low = self._apart(x, learns) if learns or not self.small else self._at_once(x)
        if low is None:
            return outs
        ups = [factors.up.t() for factors in self.factors] if learns else self.ups
        if mixer is not None:
            mixer = mixer if mixer.dtype == low.dtype else mixer.to(low.dtype)
            low = torch.bmm(low.reshape(mixer.shape[0], -1, self.rank), mixer)
        lows = low.view(-1, len(ups), self.rank).unbind(1)
        for i, factors, mine, up in zip(self.adapted, self.factors, lows, ups, strict=True):
            out = outs[i]
            if out.dtype == mine.dtype:
                out.addmm_(mine, up, alpha=factors.scale)
            else:
                outs[i] = out + torch.mm(mine * factors.scale, up).to(out.dtype)
        return outs

    def _apart(self, x: Tensor, learns: bool) -> tuple[list[Tensor], Tensor | None]:
        """Outputs of the base layers, and the low-rank inputs `[B * T, layers * r]`."""
        outs = [base(x) for base in self.bases]
        if not self.factors:
            return outs, None
        down = self._stacked() if learns else self.down
        return outs, torch.mm(x if x.dtype == down.dtype else x.to(down.dtype), down)

    def _at_once(self, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """The same from one product. The weights are copied for it the first time."""
        if self.one is None:
            weights = [base.weight for base in self.bases]
            downs = [self.down] if self.factors else []
            self.widths = [weight.shape[1] for weight in weights + downs]
            biases = [
                x.new_zeros(width) if base is None or base.bias is None else base.bias
                for base, width in zip([*self.bases, *(None for _ in downs)], self.widths, strict=True)
            ]
            given = any(base.bias is not None for base in self.bases)
            self.one = Base(torch.cat(weights + downs, dim=1).t(), torch.cat(biases) if given else None)
        outs = list(self.one(x).split_with_sizes(self.widths, 1))
        return outs, outs.pop() if self.factors else None

    def _stacked(self) -> Tensor:
        """The transposed A of all layers beside each other, `[in, layers * r]`; of a single one without a copy."""
        downs = [factors.down for factors in self.factors]
        return (downs[0] if len(downs) == 1 else torch.cat(downs)).t()


def _small(bases: Sequence[Callable[[Tensor], Tensor]], factors: Sequence[Factors]) -> bool:
    """Whether one product for all is possible and worth it."""
    if len(bases) + len(factors) < 2 or not all(isinstance(base, Base) for base in bases):
        return False
    weights = [base.weight for base in bases] + [part.down for part in factors]
    return sum(weight.numel() for weight in weights) <= SMALL and len({weight.dtype for weight in weights}) == 1


def mixer(core: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """I + M^T `[B, r, r]` of a core M: what a low-rank row vector is multiplied with from the right."""
    if core is None:
        return None
    return core.mT.to(dtype) + torch.eye(core.shape[-1], dtype=dtype, device=core.device)
