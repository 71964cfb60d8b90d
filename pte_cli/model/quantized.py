"""4-bit bases (QLoRA, arXiv 2305.14314): NF4 weights, unpacked to the model's dtype for every product."""

from __future__ import annotations

from typing import Any

import torch

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
