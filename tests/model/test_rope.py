"""RoPE taken back gives the keys the model had before it."""

from __future__ import annotations

import pytest
import torch
from helpers import FAMILIES, causal_lm, policy, prompts
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from pte_cli.model.rope import SHARED, UNROTATED, layer_rotations, unrotate
from pte_cli.rollout.bounded_model import BoundedModel


def test_unrotate_gives_back_what_the_model_rotated():
    rotary = causal_lm().model.rotary_emb
    keys = torch.randn(4, 2, 2, 7, 8, dtype=torch.float64)
    positions = torch.randint(0, 4000, (1, 2, 1, 7))
    rotated = torch.empty_like(keys)
    for layer in range(4):
        cos, sin = rotary(keys[layer], positions[0, :, 0])
        rotated[layer] = apply_rotary_pos_emb(keys[layer], keys[layer], cos, sin)[1]
    # The model computes cosines in float32, so their squares sum to 1 only to its precision.
    assert (unrotate(rotated, positions, rotary, [SHARED] * 4) - keys).abs().max() < 1e-6


def test_positions_that_differ_between_layers_and_heads():
    rotary = causal_lm().model.rotary_emb
    keys = torch.randn(3, 2, 2, 5, 8)
    positions = torch.randint(0, 4000, (3, 2, 2, 5))
    together = unrotate(keys, positions, rotary, [SHARED] * 3)
    one = unrotate(keys[1:2, :1, 1:2], positions[1:2, :1, 1:2], rotary, [SHARED])
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
    back = unrotate(torch.cat([turned, rest], -1), positions, Half(), [SHARED])
    assert (back - keys).abs().max() < 1e-12


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_of_every_family_come_back_as_they_were_projected(family):
    """What the cache holds, un-rotated layer by layer, is what each layer's key projection (and norm) gave."""
    model = BoundedModel(causal_lm(family, dtype=torch.float64))
    [prompt] = prompts([20])
    projected = []
    for layer in model.backbone.layers:
        last = getattr(layer.self_attn, "k_norm", layer.self_attn.k_proj)
        last.register_forward_hook(lambda module, inputs, output: projected.append(output.detach()))
    cache = model.new_cache(policy("sliding"), 1, len(prompt))
    positions = torch.arange(20)[None] + 31
    with model.session(), torch.no_grad():
        cache.begin_write(positions)
        model.hidden(torch.tensor([prompt]), positions, cache, [None] * 3)
    size = cache.keys.shape[-1]
    # [1, 20, heads * size] or [1, 20, heads, size]; Gemma 3 norms after the transpose.
    expected = torch.stack([k if family == "gemma3" else k.view(1, 20, -1, size).transpose(1, 2) for k in projected])
    back = unrotate(cache.keys, cache.positions, model.backbone.rotary_emb, model.rotations)
    assert back.shape == expected.shape
    # The models compute cosines in float32.
    assert (back - expected).abs().max() < 1e-5
    assert ((cache.keys - expected).abs().amax((1, 2, 3, 4)) > 0.1).tolist() == [
        r != UNROTATED for r in model.rotations
    ]


def test_which_layer_turns_its_keys_how():
    assert layer_rotations(causal_lm("qwen2").config) == (SHARED, SHARED, SHARED)
    assert layer_rotations(causal_lm("smollm3").config) == (SHARED, UNROTATED, SHARED)
    local, everywhere = "sliding_attention", "full_attention"
    assert layer_rotations(causal_lm("gemma3").config) == (local, everywhere, local)
    assert layer_rotations(causal_lm("mistral-window").config) == (SHARED, SHARED, SHARED)


def test_layers_of_one_kind_with_positions_of_their_own():
    """A position table per layer is picked together with the layers of each kind."""
    model = causal_lm("gemma3").model
    keys = torch.randn(3, 2, 2, 5, 16)
    positions = torch.randint(0, 4000, (3, 2, 1, 5))
    kinds = layer_rotations(model.config)
    together = unrotate(keys, positions, model.rotary_emb, kinds)
    for i, kind in enumerate(kinds):
        one = unrotate(keys[i : i + 1], positions[i : i + 1], model.rotary_emb, [kind])
        assert torch.equal(together[i : i + 1], one)
