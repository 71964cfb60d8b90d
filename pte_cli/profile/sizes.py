"""What a run on a model would hold: parameters by group, bytes of weights and cache. Nothing of it is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from pte_cli.api import Encoder, EncoderShape
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError, did_you_mean
from pte_cli.model.shapes import (
    ModelShape,
    base_parameters,
    kv_bytes_per_token,
    linears,
    lora_parameters,
    model_shape,
    weight_bytes,
)
from pte_cli.registry import check_options, load_registry


def run_sizes(config: RunConfig, model: Mapping[str, Any]) -> dict[str, Any]:
    """`parameters` by group and `bytes` of what `config` would train on a model with the config.json `model`.

    Bytes of the cache are of one sequence. UsageError for target modules that the model does not have.
    """
    shape = full_shape(model)
    unknown = set(config.adapter.target_modules) - set(linears(shape))
    if unknown:
        name = sorted(unknown)[0]
        raise UsageError(f"adapter.target_modules: {name!r} is no linear layer; {did_you_mean(name, linears(shape))}")
    lora = lora_parameters(shape, config.adapter.rank, config.adapter.target_modules)
    encoder = encoder_parameters(config, shape)
    per_token = kv_bytes_per_token(shape, config.model.dtype)
    return {
        "parameters": {
            "base, frozen": base_parameters(shape),
            "LoRA, trained": lora,
            f"encoder {config.encoder.name}, trained": encoder,
        },
        "bytes": {
            f"base in {config.model.dtype}": weight_bytes(shape, config.model.dtype),
            "trained, with gradient and AdamW's moments in float32": 16 * (lora + encoder),
            "cache per token": per_token,
            f"cache per sequence at budget {config.evict.budget}": per_token * config.evict.budget,
        },
    }


def full_config(model: Mapping[str, Any]) -> PretrainedConfig:
    """The configuration a config.json describes; it may leave out what its class has as a default."""
    stated = {name: value for name, value in model.items() if name not in ("model_type", "source")}
    return AutoConfig.for_model(model["model_type"], **stated)


def full_shape(model: Mapping[str, Any]) -> ModelShape:
    """The sizes a config.json describes."""
    return model_shape(full_config(model).to_dict())


def encoder_parameters(config: RunConfig, shape: ModelShape) -> int:
    """Parameters of the encoder that `config` names for a model of this shape, counted without their storage."""
    return sum(parameter.numel() for parameter in bare_encoder(config, shape).parameters())


def bare_encoder(config: RunConfig, shape: ModelShape) -> Encoder:
    """The encoder that `config` names for a model of this shape, on the meta device: without storage."""
    spec = load_registry().encoder(config.encoder.name)
    options = check_options("encoder.options", spec, config.encoder.options)
    sizes = EncoderShape(shape.layers, shape.hidden, shape.kv_heads, shape.head_dim, config.adapter.rank)
    with torch.device("meta"):
        return spec.build(options, sizes)
