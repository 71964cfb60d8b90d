"""Small models and prompts that several tests share. Everything is seeded and made in memory."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from pte_cli.model.adapter import LINEARS, add_adapter
from pte_cli.registry import check_options, load_registry
from pte_cli.rollout.bounded_model import BoundedModel

VOCAB = 64


def causal_lm(
    family: str = "qwen2", *, layers: int = 3, hidden: int = 32, dtype=torch.float32, seed: int = 0
) -> PreTrainedModel:
    """A random causal LM with grouped queries, weights large enough that attention is not uniform."""
    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[family]
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


def policy(name: str, **options):
    """An eviction policy by name, through the registry."""
    spec = load_registry().eviction(name)
    return spec.build(check_options("evict", spec, options))


def adapted(
    encoder: str = "pte",
    *,
    family: str = "qwen2",
    dtype=torch.float32,
    rank: int = 8,
    seed: int = 0,
    zero: bool = False,
    options=None,
    target_modules=LINEARS,
    **sizes,
) -> BoundedModel:
    """An adapted random model. Unless `zero`, LoRA's B is random too, so that adapter and core really act."""
    base = causal_lm(family, dtype=dtype, seed=seed, **sizes)
    if encoder == "pte":
        options = {"global_tokens": rank, **(options or {})}
    torch.manual_seed(seed + 1)
    model = add_adapter(base, encoder=encoder, encoder_options=options or {}, rank=rank, target_modules=target_modules)
    for name, parameter in model.named_parameters():
        if "lora_B" in name and not zero:
            torch.nn.init.normal_(parameter, std=0.1)
    return BoundedModel(model.to(dtype))


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths, without end tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, VOCAB, (n,), generator=generator).tolist() for n in lengths]
