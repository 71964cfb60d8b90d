"""Which models the bounded cache can serve, decided from the configuration alone. Imports no torch.

A model fits when every layer attends over cached keys and values with a plain softmax, whichever its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pte_cli.errors import UsageError

FAMILIES = {
    "gemma3_text": "Gemma 3 (text only)",
    "llama": "Llama 2 and 3, SmolLM2, R1-Distill-Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2, Qwen2.5, R1-Distill-Qwen",
    "qwen3": "Qwen3",
    "smollm3": "SmolLM3",
}
"""Model types whose rollout, replay and agreement with transformers are tested."""

LATENT = "it caches compressed latents instead of keys and values (multi-head latent attention)"
RECURRENT = "some of its layers keep a recurrent state instead of cached keys and values"
ENCODER_DECODER = "it is an encoder-decoder; only decoder-only models are supported"
SHARED = "some of its layers read the keys and values of other layers"
CAPPED = "it soft-caps attention or output logits, which the bounded attention does not do"

BY_TYPE = {
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "gemma2": CAPPED,
    "gemma3": "it reads images too; use a text-only Gemma 3 (model type 'gemma3_text')",
    "gemma3n": SHARED,
    "gemma3n_text": SHARED,
    "gpt_oss": "its attention has learned sink logits, which the bounded attention does not add",
    "jamba": RECURRENT,
    "mamba": RECURRENT,
    "mamba2": RECURRENT,
    "rwkv": RECURRENT,
    "t5": ENCODER_DECODER,
}
"""Reasons that a configuration need not spell out: its class implies them."""


@dataclass(frozen=True)
class Obstacle:
    """A setting, in a model's config.json, with a value the bounded cache can't serve."""

    setting: str
    stands: Callable[[Any], bool]
    reason: str


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def _stated(value: Any) -> bool:
    return value is not None


def _not_attention(kinds: Any) -> bool:
    return not set(kinds or ()) <= {"full_attention", "sliding_attention", "attention"}


def _rope_changes_with_length(rope: Any) -> bool:
    """Dynamic kinds turn the same position by another angle later on, so a cached key has no one rotation."""
    if not isinstance(rope, Mapping):
        return False
    kind = rope.get("rope_type", rope.get("type"))
    return kind in ("dynamic", "longrope") or any(_rope_changes_with_length(inner) for inner in rope.values())


ROPE = "its RoPE changes with the length of the sequence (dynamic or longrope), so cached keys would go stale"
OBSTACLES = (
    Obstacle("is_encoder_decoder", bool, ENCODER_DECODER),
    Obstacle("cross_attention_layers", bool, "it has cross-attention layers"),
    Obstacle("add_cross_attention", bool, "it has cross-attention layers"),
    Obstacle("kv_lora_rank", _positive, LATENT),
    Obstacle("layer_types", _not_attention, RECURRENT),
    Obstacle("layers_block_type", _not_attention, RECURRENT),
    Obstacle("mamba_d_state", _positive, RECURRENT),
    Obstacle("linear_num_key_heads", _positive, RECURRENT),
    Obstacle("conv_L_cache", _positive, RECURRENT),
    Obstacle("attn_logit_softcapping", _stated, CAPPED),
    Obstacle("final_logit_softcapping", _stated, CAPPED),
    Obstacle("num_kv_shared_layers", _positive, SHARED),
    Obstacle("attention_chunk_size", _positive, "it attends in chunks"),
    Obstacle("use_bidirectional_attention", bool, "its tokens attend to later ones too"),
    Obstacle("alibi", bool, "its positions are ALiBi biases, which the bounded attention does not add"),
    Obstacle("rope_scaling", _rope_changes_with_length, ROPE),
    Obstacle("rope_parameters", _rope_changes_with_length, ROPE),
)


def check_family(name: str, config: Mapping[str, Any], *, trusted_code: bool = False) -> None:
    """UsageError, with the reason, when a model with this config.json can't be served.

    A type outside `FAMILIES` that brings its own code (`auto_map`) passes with `trusted_code`, obstacles apart.
    """
    kind = config.get("model_type")
    text = config.get("text_config") or config
    reason = BY_TYPE.get(str(kind)) or next(
        (o.reason for o in OBSTACLES if o.stands(text.get(o.setting, config.get(o.setting)))), None
    )
    if reason is not None:
        raise UsageError(f"model.name = {name!r}: {kind!r} models are not supported: {reason}")
    if kind in FAMILIES:
        return
    if "auto_map" in config:
        if trusted_code:
            return
        raise UsageError(
            f"model.name = {name!r}: its type {kind!r} runs code from its own repository; "
            "if you trust it, allow that with --trust-remote-code"
        )
    raise UsageError(f"model.name = {name!r}: its type {kind!r} is not supported; supported: {', '.join(FAMILIES)}")
