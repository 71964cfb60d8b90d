"""The decoder stack as plain tensor operations, for the layer classes we know.

A decoding step of a small model costs more Python in transformers' modules than it costs arithmetic. What is written
here is the same arithmetic on the same weights, and rollout and replay both go through it. A model that is not known in
every part (`Decoder.of` gives None) goes through its own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pte_cli.model.adapter import PteLinear
from pte_cli.model.projections import Projections, mixer
from pte_cli.model.rope import UNROTATED, Rotation, turned
from pte_cli.model.shards import Shards
from pte_cli.rollout.attention import attend
from pte_cli.rollout.cache import BoundedCache

FAMILIES = ("Gemma3", "Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")
LAYERS = {f"{family}DecoderLayer" for family in FAMILIES}
"""Layer classes of transformers that compute what `Layer` does."""
NORMS = {f"{family}RMSNorm" for family in FAMILIES}
SHIFTED = {"Gemma3RMSNorm"}
"""Norms whose weight is the difference to 1."""
WINDOW_IN_CONFIG = {"MistralDecoderLayer"}

Turn = tuple[Tensor, Tensor]
"""Cosine and sine `[B, T, 1, D]` of a pass's positions."""
Norm = Callable[[Tensor], Tensor]


class Decoder:
    """A model's decoder layers under a bounded cache. Reads the weights as they are now; for evaluation mode.

    shards: of the layers, where they are shared out over processes.
    """

    def __init__(self, backbone: nn.Module, rotations: Sequence[str], shards: Shards | None = None) -> None:
        self.embed = backbone.embed_tokens
        self.rotations = {kind: Rotation.of(backbone.rotary_emb, kind) for kind in set(rotations) - {UNROTATED}}
        self.layers: list[Layer] = []
        for i, (layer, kind) in enumerate(zip(backbone.layers, rotations, strict=True)):
            with nullcontext() if shards is None else shards.placed(i):
                self.layers.append(Layer(layer, kind))
        self.norm = norm_of(backbone.norm)
        self.shards = shards
        self._mixed: tuple[Sequence[Tensor | None], list[Tensor | None]] = ((), [])

    @classmethod
    def of(cls, backbone: nn.Module, rotations: Sequence[str], shards: Shards | None = None) -> Decoder | None:
        """The decoder of a `backbone`; None unless its layers are of known classes and nothing is hooked into it."""
        known = all(type(layer).__name__ in LAYERS for layer in backbone.layers)
        own = type(backbone).__module__.startswith("transformers.models.")
        if known and own and not any(_hooked(module) or _several(module) for module in backbone.modules()):
            return cls(backbone, rotations, shards)
        return None

    def __call__(
        self,
        ids: Tensor,
        position_ids: Tensor,
        cache: BoundedCache,
        cores: Sequence[Tensor | None],
        *,
        checkpointed: bool = False,
    ) -> Tensor:
        """Last hidden states `[B, T, hidden]`, as `BoundedModel.hidden`.

        `cores` must not be changed once they were used. checkpointed: keep of each layer only what goes into it.
        """
        shape = ids.shape
        x = self.embed(ids).flatten(0, 1)
        where = position_ids.clamp(min=0)[:, :, None, None]
        turns: dict[str, Turn | None] = {kind: turn.at(where, x.dtype) for kind, turn in self.rotations.items()}
        for layer, mix in zip(self.layers, self.mixers(cores, x.dtype), strict=True):
            given = (x, shape, cache, turns.get(layer.rotation), mix)
            compute = layer if self.shards is None else self.shards.around(layer.index, layer)
            x = _checkpointed(compute, cache, *given) if checkpointed else compute(*given)
        return self.norm(x).view(*shape, -1)

    def mixers(self, cores: Sequence[Tensor | None], dtype: torch.dtype) -> list[Tensor | None]:
        """I + M^T of each layer; between two evictions those of the step before."""
        if self._mixed[0] is not cores or torch.is_grad_enabled():
            wide = torch.promote_types(dtype, torch.float32)
            self._mixed = (cores, [mixer(core, wide) for core in cores])
        return self._mixed[1]


class Layer:
    """One pre-norm decoder layer: attention and a gated MLP with their adapters, each added to its input."""

    def __init__(self, layer: nn.Module, rotation: str) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index: int = attention.layer_idx
        self.rotation = rotation
        self.size: int = attention.head_dim
        self.scaling: float = attention.scaling
        own = attention.config if type(layer).__name__ in WINDOW_IN_CONFIG else attention
        self.window: int | None = getattr(own, "sliding_window", None)
        self.qkv = Projections([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = Projections([attention.o_proj])
        self.gate_up = Projections([mlp.gate_proj, mlp.up_proj])
        self.down = Projections([mlp.down_proj])
        self.activation = F.silu if type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation") else mlp.act_fn
        # Gemma norms what is added as well, and calls what others have before the MLP by another name.
        both = hasattr(layer, "pre_feedforward_layernorm")
        self.before_attention = norm_of(layer.input_layernorm)
        self.after_attention = norm_of(layer.post_attention_layernorm) if both else None
        self.before_mlp = norm_of(layer.pre_feedforward_layernorm if both else layer.post_attention_layernorm)
        self.after_mlp = norm_of(layer.post_feedforward_layernorm) if both else None
        normed = hasattr(attention, "q_norm")
        self.head_norms = (norm_of(attention.q_norm), norm_of(attention.k_norm)) if normed else None

    def __call__(
        self, x: Tensor, shape: tuple[int, int], cache: BoundedCache, turn: Turn | None, mix: Tensor | None
    ) -> Tensor:
        """x `[B * T, hidden]` to the same. shape: (B, T); mix: `mixer` of the layer's core, or None."""
        added = self.attend(self.before_attention(x), shape, cache, turn, mix)
        x = x + (added if self.after_attention is None else self.after_attention(added))
        gate, up = self.gate_up(self.before_mlp(x), mix)
        [added] = self.down(self.activation(gate) * up, mix)
        return x + (added if self.after_mlp is None else self.after_mlp(added))

    def attend(
        self, x: Tensor, shape: tuple[int, int], cache: BoundedCache, turn: Turn | None, mix: Tensor | None
    ) -> Tensor:
        """The attention block's output `[B * T, hidden]`; the tokens' keys and values go into the cache."""
        query, key, value = self.qkv(x, mix)
        if self.head_norms is not None:
            query, key = (
                norm(part.view(x.shape[0], -1, self.size)).view(x.shape[0], -1)
                for norm, part in zip(self.head_norms, (query, key), strict=True)
            )
        # Queries and keys are turned together.
        heads = torch.cat((query, key), dim=1).view(*shape, -1, self.size)
        if turn is not None:
            heads = turned(heads, *turn)
        query, key = heads.transpose(1, 2).split_with_sizes((query.shape[1] // self.size, key.shape[1] // self.size), 1)
        value = value.view(*shape, -1, self.size).transpose(1, 2)
        keys, values = cache.update(key, value, self.index)
        found = attend(cache, self.index, query, keys, values, self.scaling, self.window)
        [out] = self.out(found.transpose(1, 2).reshape(x.shape[0], -1), mix)
        return out


def _checkpointed(layer: Callable[..., Tensor], cache: BoundedCache, *given: object) -> Tensor:
    """`layer(*given)`, computed again for its gradients; the cache takes no notice of the second time."""
    return checkpoint(
        layer,
        *given,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), cache.unrecorded()),
    )


def norm_of(module: nn.Module) -> Norm:
    """`module` itself, or `rms_norm` where that is what it computes: in float32 and with frozen weights."""
    weight = getattr(module, "weight", None)
    if type(module).__name__ not in NORMS or weight.dtype != torch.float32 or weight.requires_grad:
        return module
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    scale = weight.detach() + 1 if type(module).__name__ in SHIFTED else weight.detach()
    return partial(rms_norm, weight=scale, eps=torch.full((1,), eps, device=weight.device))


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """x / sqrt(mean of squares + eps) * weight over the last dimension (arXiv 1910.07467), float32."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_() * weight


def _hooked(module: nn.Module) -> bool:
    """Whether calling `module` does more than its own forward."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or "forward" in module.__dict__
    )


def _several(module: nn.Module) -> bool:
    """Whether `module` has more or fewer than one adapter at work."""
    return isinstance(module, PteLinear) and not module.disable_adapters and len(module.active_adapters) != 1
