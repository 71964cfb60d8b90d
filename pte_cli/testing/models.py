"""Small random models, and what watches them, for checks and tests. Everything is seeded and made in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pte_cli.api import Evicted, State
from pte_cli.model.adapter import LINEARS, add_adapter
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import BoundedCache

VOCAB = 64
WINDOW = 7
"""Tokens that an own-window layer of these models sees, well inside the tests' budgets."""
LLAMA3 = {
    "rope_theta": 5000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_theta": 5000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "llama": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": LLAMA3, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": WINDOW}),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 10,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
            },
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
}
"""Model type and settings of a small model of every family we support, and of what families differ in."""


def causal_lm(
    family: str = "qwen2",
    *,
    layers: int = 3,
    hidden: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **settings: Any,
) -> PreTrainedModel:
    """A random causal LM with grouped queries, weights large enough that attention is not uniform."""
    kind, own = FAMILIES[family]
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "max_position_embeddings": 4096,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    if kind == "qwen2":
        del sizes["head_dim"]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **own, **settings}))
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model.to(dtype).eval()


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
    **sizes: Any,
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
