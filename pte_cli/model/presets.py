"""Published shapes of models people train, for dry runs and memory estimates without their weights.

The values are those of each model's config.json on the hub (`source`). `model.name = "preset:NAME"` uses one.
"""

from __future__ import annotations

from typing import Any

from pte_cli.errors import UsageError, did_you_mean

PREFIX = "preset:"
QWEN = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
}
PRESETS: dict[str, dict[str, Any]] = {
    "qwen2.5-3b": {
        **QWEN,
        "source": "Qwen/Qwen2.5-3B",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "qwen2.5-7b": {
        **QWEN,
        "source": "Qwen/Qwen2.5-7B",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
    "deepseek-r1-distill-llama-8b": {
        "source": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": False,
        "vocab_size": 128256,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
}


def preset(name: str) -> dict[str, Any]:
    """The config.json of the preset `name` (with its `preset:` prefix); UsageError for an unknown one."""
    short = name.removeprefix(PREFIX).lower()
    if short not in PRESETS:
        raise UsageError(f"model.name = {name!r}: unknown preset; {did_you_mean(short, PRESETS)}")
    return PRESETS[short]
