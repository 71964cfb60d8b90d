"""Sizes by arithmetic against published numbers and against models that transformers builds."""

from __future__ import annotations

import pytest
import torch
from helpers import FAMILIES, adapted, causal_lm
from transformers import AutoConfig, AutoModelForCausalLM

from pte_cli.config import load_config
from pte_cli.errors import UsageError
from pte_cli.model.adapter import LINEARS
from pte_cli.model.presets import PRESETS, preset
from pte_cli.model.shapes import base_parameters, kv_bytes_per_token, lora_parameters, model_shape
from pte_cli.profile.sizes import run_sizes

PUBLISHED = {
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "deepseek-r1-distill-llama-8b": 8_030_261_248,
}
"""Parameters as the models' pages on the hub give them (from their safetensors)."""


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_published_number_of_parameters(name):
    shape = model_shape(preset(f"preset:{name}"))
    assert base_parameters(shape) == PUBLISHED[name]
    kind = PRESETS[name]["model_type"]
    config = AutoConfig.for_model(kind, **{k: v for k, v in PRESETS[name].items() if k not in ("model_type", "source")})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_every_family(family):
    model = causal_lm(family)
    assert base_parameters(model_shape(model.config.to_dict())) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "llama3"])
def test_adapter_and_cache_of_a_built_model(family):
    model = adapted("pte", family=family, rank=4)
    shape = model_shape(model.causal.config.to_dict())
    lora = sum(p.numel() for name, p in model.model.named_parameters() if "lora_" in name)
    assert lora_parameters(shape, 4, LINEARS) == lora
    cache = model.new_cache(type("P", (), {"granularity": "uniform"}), 3, 10)
    assert cache.nbytes == 30 * kv_bytes_per_token(shape, "float32")
    sets = ["adapter.rank=4", "encoder.options.global_tokens=4"]
    sizes = run_sizes(load_config(env={}, sets=sets), model.causal.config.to_dict())
    assert sizes["parameters"]["LoRA, trained"] == lora
    assert sizes["parameters"]["encoder pte, trained"] == sum(p.numel() for p in model.encoder.parameters())


def test_kv_bytes_by_hand():
    """Qwen2.5-3B in bfloat16: 36 layers, 2 heads of 128, keys and values of 2 bytes: 36,864, and 8 for the position."""
    assert kv_bytes_per_token(model_shape(preset("preset:qwen2.5-3b")), "bfloat16") == 36_864 + 8


def test_target_modules_that_are_not_there_are_named():
    config = load_config(env={}, sets=["adapter.target_modules=['qproj']"])
    with pytest.raises(UsageError, match="'qproj' is no linear layer; did you mean 'q_proj'"):
        run_sizes(config, preset("preset:qwen2.5-3b"))


def test_an_unknown_preset_is_named():
    with pytest.raises(UsageError, match=r"'preset:qwen2.5-2b': unknown preset; did you mean 'qwen2.5-"):
        preset("preset:qwen2.5-2b")
