"""4-bit bases (QLoRA, arXiv 2305.14314): NF4 weights, unpacked to the model's dtype for every product."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

FOUR_BIT = "4bit"


def quantization_arguments(kind: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` needs for a base quantised as `model.quantization` says.

    The weights are quantised on their way to `device`; a quantised model can't be moved by dtype afterwards.
    """
    if kind != FOUR_BIT:
        return {}
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": config, "device_map": {"": device}}


def make_differentiable(model: nn.Module) -> None:
    """Keep 4-bit layers on the kernels that have a backward pass.

    On CPUs with AVX512-BF16, bitsandbytes repacks a layer's weights at its first use without gradients, for an
    inference kernel that computes in bfloat16 and through which gradients are silently lost.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
