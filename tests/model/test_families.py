"""What is refused from the configuration alone, and why."""

from __future__ import annotations

import pytest
import transformers
from helpers import FAMILIES, causal_lm

from pte_cli.errors import UsageError
from pte_cli.model import families
from pte_cli.model.families import check_family

REFUSED = {
    "DeepseekV2Config": "compressed latents",
    "DeepseekV3Config": "compressed latents",
    "Gemma2Config": "soft-caps",
    "Gemma3Config": "reads images too",
    "Gemma3nTextConfig": "keys and values of other layers",
    "GptOssConfig": "sink logits",
    "MambaConfig": "recurrent state",
    "Mamba2Config": "recurrent state",
    "JambaConfig": "recurrent state",
    "BambaConfig": "recurrent state",
    "FalconH1Config": "recurrent state",
    "Qwen3NextConfig": "recurrent state",
    "Lfm2Config": "recurrent state",
    "MiniMaxConfig": "recurrent state",
    "Llama4TextConfig": "attends in chunks|recurrent state",
    "T5Config": "encoder-decoder",
    "WhisperConfig": "encoder-decoder",
    "MllamaTextConfig": "cross-attention",
    "GPT2Config": "is not supported; supported: gemma3_text",
    "Phi3Config": "is not supported; supported: gemma3_text",
    "MixtralConfig": "is not supported; supported: gemma3_text",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_bounded_cache_can_not_serve_is_refused_with_the_reason(name):
    """transformers' own configurations of those families, with their defaults."""
    config = getattr(transformers, name)()
    with pytest.raises(UsageError) as caught:
        check_family("some/model", config.to_dict())
    message = str(caught.value)
    assert any(part in message for part in REFUSED[name].split("|")), message
    assert message.startswith("model.name = 'some/model': ")
    assert repr(config.model_type) in message


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("final_logit_softcapping", 30.0, "soft-caps"),
        ("attn_logit_softcapping", 50.0, "soft-caps"),
        ("use_bidirectional_attention", True, "attend to later ones"),
        ("num_kv_shared_layers", 4, "other layers"),
        ("layer_types", ["full_attention", "linear_attention"], "recurrent state"),
        ("attention_chunk_size", 64, "chunks"),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}, "changes with the length"),
        ("rope_parameters", {"full_attention": {"rope_type": "longrope"}}, "changes with the length"),
    ],
)
def test_a_setting_can_rule_out_a_supported_family(setting, value, reason):
    check_family("m", {"model_type": "llama", setting: None})
    with pytest.raises(UsageError, match=reason):
        check_family("m", {"model_type": "llama", setting: value})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tested_family_passes(family):
    check_family("m", causal_lm(family).config.to_dict())
    assert causal_lm(family).config.model_type in families.FAMILIES


def test_every_supported_family_is_tested():
    assert {kind for kind, _ in FAMILIES.values()} == set(families.FAMILIES)


def test_code_of_its_own_needs_an_explicit_word():
    config = {"model_type": "unheard-of", "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    with pytest.raises(UsageError, match="--trust-remote-code"):
        check_family("m", config)
    check_family("m", config, trusted_code=True)
    with pytest.raises(UsageError, match="compressed latents"):
        check_family("m", {**config, "kv_lora_rank": 512}, trusted_code=True)
