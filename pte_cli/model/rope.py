"""Taking RoPE back: cached keys carry the rotation of their position; encoders read them without it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def unrotate(keys: Tensor, positions: Tensor, rotary: nn.Module) -> Tensor:
    """Keys as they were before RoPE (arXiv 2104.09864, "rotate half" layout), in their dtype.

    keys: `[L, b, Hkv, n, D]`; positions: int64 `[1 or L, b, 1 or Hkv, n]`, negative ones count as 0.
    rotary: the model's own `rotary_emb`, which may rotate only the first dimensions and scale them.
    """
    count = positions.shape[-1]
    cos, sin = rotary(keys, positions.clamp(min=0).reshape(-1, count))
    cos, sin = (x.view(*positions.shape, -1) for x in (cos, sin))
    rotated, rest = keys.split([cos.shape[-1], keys.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = rotated.chunk(2, dim=-1)
    back = rotated * cos - torch.cat((-second, first), dim=-1) * sin
    # cos and sin both carry the scale, so the product carries its square.
    scale = getattr(rotary, "attention_scaling", 1.0)
    if scale != 1.0:
        back = back / scale**2
    return torch.cat((back, rest), dim=-1) if rest.shape[-1] else back
