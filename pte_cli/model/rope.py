"""RoPE and taking it back: cached keys carry the rotation of their position; encoders read them without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

UNROTATED = "none"
SHARED = "shared"


def layer_rotations(config: PretrainedConfig) -> tuple[str, ...]:
    """How each layer turns its keys: `shared` (the model's one RoPE), `none`, or a layer type that has its own.

    SmolLM3 leaves some layers without RoPE (`no_rope_layers`, where 0 means without); Gemma 3 has one base for its
    local and one for its global layers (`rope_parameters` by layer type).
    """
    text = config.get_text_config()
    layers = text.num_hidden_layers
    kinds = getattr(text, "layer_types", None) or ()
    by_kind = getattr(text, "rope_parameters", None) or {}
    rotations = [kind if kind in by_kind else SHARED for kind in kinds] or [SHARED] * layers
    with_rope = getattr(text, "no_rope_layers", None) or [1] * layers
    return tuple(rotation if turned else UNROTATED for rotation, turned in zip(rotations, with_rope, strict=True))


@dataclass(frozen=True)
class Rotation:
    """One RoPE (arXiv 2104.09864, "rotate half" layout) of a model, whose angles depend on nothing but the position.

    frequencies: float32 `[D]`, both halves alike. signs: float32 `[D]`, the scale, negative in the first half.
    """

    frequencies: Tensor
    signs: Tensor
    scale: float

    @classmethod
    def of(cls, rotary: nn.Module, kind: str) -> Rotation:
        """From the model's `rotary_emb`; kind: `shared`, or a layer type that has its own."""
        own = () if kind == SHARED else (kind,)
        half = getattr(rotary, "_".join((*own, "inv_freq"))).float()
        scale = getattr(rotary, "_".join((*own, "attention_scaling")), 1.0)
        return cls(torch.cat((half, half)), torch.cat((-torch.ones_like(half), torch.ones_like(half))) * scale, scale)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What `turned` needs for keys and queries of `dtype` at int64 positions `[..., 1]`: two `[..., D]`."""
        angles = positions * self.frequencies
        cos = angles.cos()
        return (cos if self.scale == 1 else cos * self.scale).to(dtype), (angles.sin_() * self.signs).to(dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys `[..., D]`, rotated by what `Rotation.at` gave."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def unrotate(keys: Tensor, positions: Tensor, rotary: nn.Module, rotations: Sequence[str]) -> Tensor:
    """Keys as they were before RoPE (arXiv 2104.09864, "rotate half" layout), in their dtype.

    keys: `[L, b, Hkv, n, D]`; positions: int64 `[1 or L, b, 1 or Hkv, n]`, negative ones count as 0.
    rotary: the model's own `rotary_emb`, which may rotate only the first dimensions and scale them.
    rotations: one per layer, as `layer_rotations` gives them.
    """
    kinds = set(rotations)
    if kinds == {SHARED}:
        return _turn_back(keys, positions, rotary, SHARED)
    result = keys.clone()
    for kind in kinds - {UNROTATED}:
        layers = torch.tensor([i for i, own in enumerate(rotations) if own == kind], device=keys.device)
        tables = positions if positions.shape[0] == 1 else positions[layers]
        result[layers] = _turn_back(keys[layers], tables, rotary, kind)
    return result


def _turn_back(keys: Tensor, positions: Tensor, rotary: nn.Module, kind: str) -> Tensor:
    own = () if kind == SHARED else (kind,)
    cos, sin = rotary(keys, positions.clamp(min=0).reshape(-1, positions.shape[-1]), *own)
    cos, sin = (x.view(*positions.shape, -1) for x in (cos, sin))
    rotated, rest = keys.split([cos.shape[-1], keys.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = rotated.chunk(2, dim=-1)
    back = rotated * cos - torch.cat((-second, first), dim=-1) * sin
    # cos and sin both carry the scale, so the product carries its square.
    scale = getattr(rotary, "_".join((*own, "attention_scaling")), 1.0)
    if scale != 1.0:
        back = back / scale**2
    return torch.cat((back, rest), dim=-1) if rest.shape[-1] else back
