"""Sizes of a model by arithmetic: parameters, adapter, cache. Imports no torch and allocates nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
POSITION_BYTES = 8
"""A cached token's position, int64, one table for all layers and heads."""


@dataclass(frozen=True)
class ModelShape:
    """What the sizes of a decoder follow from.

    layers L, hidden H, intermediate I, heads, kv_heads Hkv, head_dim D, vocab V; tied: the head is the embedding.
    qkv_bias, o_bias: attention's biases; mlp_bias: the MLP's; norms: weights of RMSNorm per layer.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norms: int = 0


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape a config.json of one of our families describes."""
    kind, hidden, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    bias = bool(config.get("attention_bias", False))
    per_layer = 4 if kind == "gemma3_text" else 2
    normed_heads = kind in ("gemma3_text", "qwen3")
    return ModelShape(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", kind in ("gemma3_text", "smollm3"))),
        qkv_bias=bias or kind == "qwen2",
        o_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        norms=per_layer * hidden + (2 * head_dim if normed_heads else 0),
    )


def linears(shape: ModelShape) -> dict[str, tuple[int, int, bool]]:
    """(in, out, bias) of each linear layer of one decoder layer."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "q_proj": (shape.hidden, queries, shape.qkv_bias),
        "k_proj": (shape.hidden, keys, shape.qkv_bias),
        "v_proj": (shape.hidden, keys, shape.qkv_bias),
        "o_proj": (queries, shape.hidden, shape.o_bias),
        "gate_proj": (shape.hidden, shape.intermediate, shape.mlp_bias),
        "up_proj": (shape.hidden, shape.intermediate, shape.mlp_bias),
        "down_proj": (shape.intermediate, shape.hidden, shape.mlp_bias),
    }


def base_parameters(shape: ModelShape) -> int:
    """Parameters of the model without adapter; a tied head counts once."""
    layer = sum(wide * high + high * bias for wide, high, bias in linears(shape).values()) + shape.norms
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return embeddings + shape.layers * layer + shape.hidden


def lora_parameters(shape: ModelShape, rank: int, targets: Iterable[str]) -> int:
    """Parameters of LoRA's two factors on the `targets` of every layer."""
    sizes = linears(shape)
    return shape.layers * sum(rank * (sizes[name][0] + sizes[name][1]) for name in targets)


def kv_bytes_per_token(shape: ModelShape, dtype: str) -> int:
    """Bytes a cached token takes in all layers: keys, values and its position."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * BYTES[dtype] + POSITION_BYTES


def weight_bytes(shape: ModelShape, dtype: str) -> int:
    """Bytes of the frozen weights in `dtype`."""
    return base_parameters(shape) * BYTES[dtype]
