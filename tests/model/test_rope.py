"""RoPE taken back gives the keys the model had before it."""

from __future__ import annotations

import torch
from helpers import causal_lm
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from pte_cli.model.rope import unrotate


def test_unrotate_gives_back_what_the_model_rotated():
    rotary = causal_lm().model.rotary_emb
    keys = torch.randn(4, 2, 2, 7, 8, dtype=torch.float64)
    positions = torch.randint(0, 4000, (1, 2, 1, 7))
    rotated = torch.empty_like(keys)
    for layer in range(4):
        cos, sin = rotary(keys[layer], positions[0, :, 0])
        rotated[layer] = apply_rotary_pos_emb(keys[layer], keys[layer], cos, sin)[1]
    # The model computes cosines in float32, so their squares sum to 1 only to its precision.
    assert (unrotate(rotated, positions, rotary) - keys).abs().max() < 1e-6


def test_positions_that_differ_between_layers_and_heads():
    rotary = causal_lm().model.rotary_emb
    keys = torch.randn(3, 2, 2, 5, 8)
    positions = torch.randint(0, 4000, (3, 2, 2, 5))
    together = unrotate(keys, positions, rotary)
    one = unrotate(keys[1:2, :1, 1:2], positions[1:2, :1, 1:2], rotary)
    assert torch.equal(together[1:2, :1, 1:2], one)


def test_scaled_and_partial_rotation():
    class Half(torch.nn.Module):
        """Rotates the first half of the head and scales by 1.5, as YaRN and partial RoPE do."""

        attention_scaling = 1.5

        def forward(self, x, position_ids):
            angle = position_ids[..., None].to(x.dtype) * torch.tensor([1.0, 0.1], dtype=x.dtype)
            angle = torch.cat([angle, angle], -1)
            return angle.cos() * 1.5, angle.sin() * 1.5

    keys = torch.randn(1, 1, 1, 3, 8, dtype=torch.float64)
    positions = torch.tensor([[[[0, 5, 9]]]])
    cos, sin = Half()(keys, positions[0, 0])
    front, rest = keys.split(4, -1)
    turned = front * cos + torch.cat([-front[..., 2:], front[..., :2]], -1) * sin
    back = unrotate(torch.cat([turned, rest], -1), positions, Half())
    assert (back - keys).abs().max() < 1e-12
