"""Small random models, and what watches them, for checks and tests. Everything is seeded and made in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from pte_cli.api import Evicted, State
from pte_cli.model.adapter import LINEARS, add_adapter
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import BoundedCache

VOCAB = 64
FAMILIES = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def causal_lm(
    family: str = "qwen2",
    *,
    layers: int = 3,
    hidden: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> PreTrainedModel:
    """A random causal LM with grouped queries, weights large enough that attention is not uniform."""
    config_class, model_class = FAMILIES[family]
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    return model_class(config).to(dtype).eval()


def adapted(
    encoder: str,
    *,
    encoder_options: dict[str, Any] | None = None,
    family: str = "qwen2",
    dtype: torch.dtype = torch.float32,
    rank: int = 8,
    seed: int = 0,
    zero: bool = False,
    target_modules: Sequence[str] = LINEARS,
    **sizes: int,
) -> BoundedModel:
    """An adapted random model. Unless `zero`, LoRA's B is random too, so that adapter and core really act."""
    base = causal_lm(family, dtype=dtype, seed=seed, **sizes)
    torch.manual_seed(seed + 1)
    model = add_adapter(
        base, encoder=encoder, encoder_options=encoder_options or {}, rank=rank, target_modules=target_modules
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name and not zero:
            torch.nn.init.normal_(parameter, std=0.1)
    return BoundedModel(model.to(dtype))


def prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths, without end tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, VOCAB, (n,), generator=generator).tolist() for n in lengths]


class PreciseNorm(nn.Module):
    """RMSNorm in the dtype of its input. Models normalise in float32 whatever their dtype is."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def in_double(model: BoundedModel) -> BoundedModel:
    """`model` with precise norms, so that differences of 1e-5 can be seen in its float64 results."""
    modules = dict(model.causal.named_modules())
    for name, module in modules.items():
        if type(module).__name__.endswith("RMSNorm"):
            parent, _, child = name.rpartition(".")
            setattr(modules[parent], child, PreciseNorm(module.weight))
    return model


class WatchedModel(BoundedModel):
    """A bounded model that remembers how full its caches were, what was evicted and what the encoder made of it.

    cached: the largest number of tokens cached and new in each pass. evicted: what each eviction of a replay took.
    absorbed: (state, evicted, next state) of each call of the encoder.
    """

    def __init__(self, bounded: BoundedModel) -> None:
        super().__init__(bounded.model)
        self.replaying = False
        self.cached: list[int] = []
        self.evicted: list[Evicted] = []
        self.absorbed: list[tuple[State, Evicted, State]] = []

    def hidden(self, ids: Tensor, position_ids: Tensor, cache: BoundedCache, cores: Sequence[Tensor | None]) -> Tensor:
        stored = (cache.positions >= 0).sum(-1)
        # A rollout stores its tokens before the pass, a replay after it.
        new = (position_ids >= 0).sum(-1)[None, :, None] if self.replaying else 0
        self.cached.append(int((stored + new).max()))
        return super().hidden(ids, position_ids, cache, cores)

    def readable(self, evicted: Evicted, *more: Any) -> Evicted:
        self.evicted.append(evicted)
        return super().readable(evicted, *more)

    def absorb(self, state: State, evicted: Evicted) -> State:
        after = super().absorb(state, evicted)
        self.absorbed.append((state, evicted, after))
        return after
