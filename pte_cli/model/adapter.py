"""The adapter as a PEFT method: LoRA with the encoder's core between its two factors.

`PteConfig` goes into `adapter_config.json`; `PeftModel.from_pretrained` rebuilds everything from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from aenum import extend_enum
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.utils import PeftType, register_peft_method
from peft.utils.error import NoMatchingPeftModuleError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from pte_cli.api import EncoderShape
from pte_cli.errors import UsageError, first_lines
from pte_cli.registry import build, load_registry

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LAYER = re.compile(r"\.layers\.(\d+)\.")


class Cores:
    """One core per decoder layer, `[B, r, r]` or None, read by every adapted linear of that layer."""

    def __init__(self, layers: int) -> None:
        self.layers: list[Tensor | None] = [None] * layers


@dataclass
class PteConfig(LoraConfig):
    """LoRA's configuration and which encoder sits between the factors."""

    encoder: str = field(default="pte", metadata={"help": "Name of the encoder plugin."})
    encoder_options: dict[str, Any] = field(default_factory=dict, metadata={"help": "The encoder's own options."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType.PTE


class PteLinear(LoraLinear):
    """`y = W x + scale * B (I + M) A x`, with M `[batch, r, r]` of this layer or nothing (plain LoRA)."""

    def __init__(self, base_layer: nn.Module, adapter_name: str, *, cores: Cores, layer: int, **kwargs: Any) -> None:
        super().__init__(base_layer, adapter_name, **kwargs)
        self.cores = cores
        self.layer = layer
        # PEFT makes the factors float32 at least; a float64 model gets them in float64.
        weight = self.get_base_layer().weight
        if weight.dtype == torch.float64:
            self.lora_A[adapter_name].to(weight.dtype)
            self.lora_B[adapter_name].to(weight.dtype)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x `[batch, tokens, in]` to `[batch, tokens, out]`, in the dtype of the base layer's output."""
        core = self.cores.layers[self.layer]
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            if core is not None and not self.disable_adapters:
                raise ValueError("an encoder's core needs exactly one active, unmerged adapter")
            return super().forward(x, *args, **kwargs)
        name = self.active_adapters[0]
        if name not in self.lora_A:
            return self.base_layer(x, *args, **kwargs)
        down, up = self.lora_A[name].weight, self.lora_B[name].weight
        result = self.base_layer(x, *args, **kwargs)
        low = F.linear(self.lora_dropout[name](x.to(down.dtype)), down)
        if core is not None:
            low = torch.baddbmm(low, low, core.mT.to(low.dtype))
        scale = self.scaling[name]
        return result + F.linear(low if scale == 1 else low * scale, up).to(result.dtype)


class PteModel(LoraModel):
    """Puts `PteLinear` layers into a model and owns the encoder of each adapter."""

    prefix = "lora_"

    def __init__(self, model: nn.Module, config: Any, adapter_name: str, **kwargs: Any) -> None:
        # Set before nn.Module's own initialiser runs, hence around its attribute protection.
        object.__setattr__(self, "cores", Cores(_layers(model)))
        super().__init__(model, config, adapter_name, **kwargs)

    def _pre_injection_hook(self, model: nn.Module, config: PteConfig, adapter_name: str) -> None:
        if "pte_encoder" not in self._modules:
            self.pte_encoder = nn.ModuleDict()
        dtype = torch.promote_types(model.dtype, torch.float32)
        self.pte_encoder[adapter_name] = build_encoder(config, model.config).to(model.device, dtype)

    def _create_new_module(self, lora_config: PteConfig, adapter_name: str, target: nn.Module, **kwargs: Any) -> Any:
        base = target.get_base_layer() if hasattr(target, "get_base_layer") else target
        match = LAYER.search(f".{kwargs.get('target_name', '')}.")
        if match is None or not isinstance(base, nn.Linear):
            raise UsageError(
                f"adapter.target_modules: {kwargs.get('target_name')!r} is not a linear layer of a decoder layer"
            )
        return PteLinear(target, adapter_name, cores=self.cores, layer=int(match[1]), config=lora_config, **kwargs)

    def _check_merge_allowed(self) -> None:
        super()._check_merge_allowed()
        for name, config in self.peft_config.items():
            if config.encoder != "none":
                raise ValueError(
                    f"adapter {name!r} can't be merged: with encoder {config.encoder!r} its weights depend on what was "
                    "evicted, for each sequence anew"
                )

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        marker = f"pte_encoder.{adapter_name}."
        if marker in key:
            return key.replace(marker, "pte_encoder.", 1)
        return super()._remove_adapter_name_from_key(key, adapter_name)


def register() -> None:
    """Tell PEFT about the method `pte`. Safe to call again."""
    if not hasattr(PeftType, "PTE"):
        extend_enum(PeftType, "PTE", "PTE")
        register_peft_method(name="pte", config_cls=PteConfig, model_cls=PteModel, prefix="lora_")


def build_encoder(config: PteConfig, model_config: PretrainedConfig) -> nn.Module:
    """The encoder plugin `config` names, built for the model's sizes. UsageError for an unknown name or option."""
    spec = load_registry().encoder(config.encoder)
    return build(spec, config.encoder_options, encoder_shape(model_config, config.r))


def encoder_shape(config: PretrainedConfig, rank: int) -> EncoderShape:
    """The sizes an encoder needs, from a model's configuration."""
    text = config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return EncoderShape(text.num_hidden_layers, text.hidden_size, kv_heads, head_dim, rank)


def add_adapter(
    model: PreTrainedModel,
    *,
    encoder: str,
    encoder_options: dict[str, Any] | None = None,
    rank: int = 32,
    alpha: float | None = None,
    target_modules: Sequence[str] = LINEARS,
) -> PeftModel:
    """A PEFT model whose only trainable parameters are the LoRA factors and the encoder. scale = alpha / rank."""
    config = PteConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=rank if alpha is None else alpha,
        target_modules=list(target_modules),
        encoder=encoder,
        encoder_options=encoder_options or {},
    )
    try:
        return get_peft_model(model, config)
    except NoMatchingPeftModuleError:
        known = sorted({name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear)})
        raise UsageError(
            f"adapter.target_modules = {list(target_modules)!r}: the model has no layers of these names; "
            f"its linear layers: {', '.join(known)}"
        ) from None


def load_adapter(model: PreTrainedModel, folder: Path) -> PeftModel:
    """`model` with the adapter in `folder`. UsageError where that is not one of ours, damaged, or of another model."""
    here = f"the adapter in {str(folder)!r}"
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        if settings["peft_type"] != "PTE":
            raise UsageError(f"{here}: is of PEFT's kind {settings['peft_type']!r}; one that pte train wrote is needed")
        if not (folder / "adapter_model.safetensors").is_file():
            raise FileNotFoundError("it has no adapter_model.safetensors")  # PEFT would go on to pickles and the hub
        return PeftModel.from_pretrained(model, str(folder))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UsageError(
            f"{here}: can't be read ({first_lines(error, 2)}); use another copy of it, or train again"
        ) from None
    except RuntimeError as error:  # what torch says of tensors whose sizes differ
        raise UsageError(
            f"{here}: does not fit the model ({first_lines(error, 2)}); use the model it was trained on"
        ) from None


@contextmanager
def cores_set(model: PeftModel, cores: Sequence[Tensor | None]) -> Iterator[None]:
    """Use these cores, one per layer, inside the block; plain LoRA again after it."""
    holder: Cores = model.base_model.cores
    holder.layers = list(cores)
    try:
        yield
    finally:
        holder.layers = [None] * len(holder.layers)


def active_encoder(model: PeftModel) -> Any:
    """The encoder of the active adapter."""
    return model.base_model.pte_encoder[model.active_adapter]


def _layers(model: nn.Module) -> int:
    return model.config.get_text_config().num_hidden_layers


register()


def adapted_layers(model: nn.Module) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(decoder layer, A `[r, in]`, B `[out, r]`) of each adapted linear layer with one active adapter."""
    for module in model.modules():
        if isinstance(module, PteLinear) and len(module.active_adapters) == 1:
            [name] = module.active_adapters
            if name in module.lora_A:
                yield module.layer, module.lora_A[name].weight, module.lora_B[name].weight
