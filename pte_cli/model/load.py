"""Loading a model and its tokenizer, whatever `model.name` points to. What can be refused early, `source` refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from pte_cli.config import ModelConfig
from pte_cli.errors import UsageError, first_lines
from pte_cli.model.families import check_family
from pte_cli.model.quantized import make_differentiable, quantization_arguments
from pte_cli.model.shards import Shards
from pte_cli.model.source import Source, check_trainable, describe_model, locate

GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


def load_model(settings: ModelConfig, shards: Shards | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal LM and tokenizer that `settings` name, frozen, in evaluation mode, on the device.

    shards: takes the decoder layers on their way to the device, so that it never holds them all.
    Raises UsageError, before weights are loaded, for whatever is not there, not supported or not installed.
    """
    check_trainable(settings)
    describe_model(settings)
    source, target = locate(settings.name), choose_device(settings.device)
    dtype = getattr(torch, settings.dtype)
    where = _where(settings, source)
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(source.location, **where)
        # Again, now that defaults which the file leaves out are filled in.
        check_family(settings.name, config.to_dict(), trusted_code=settings.trust_remote_code)
        _check_class(settings, config)
        more = quantization_arguments(settings.quantization, dtype, target)
        if getattr(config, "quantization_config", None):
            more = {"device_map": {"": target}}
        if shards is not None:
            check_shardable(settings, config, more)
        if source.file is not None:
            # Packed weights would make it a quantised model, which can be neither trained nor saved.
            more = {"quantization_config": GgufConfig(dequantize=True)}
        model, found = AutoModelForCausalLM.from_pretrained(
            source.location,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            **where,
            **more,
        )
        tokenizer = _tokenizer(source, where)
    except (OSError, ValueError, SafetensorError, StrictDataclassError) as error:
        raise UsageError(f"model.name = {settings.name!r}: {first_lines(error)}") from error
    if found["missing_keys"]:
        # transformers would go on with random numbers in their place.
        raise UsageError(
            f"model.name = {settings.name!r}: its files lack weights, for example {min(found['missing_keys'])!r}"
        )
    model.requires_grad_(False)
    make_differentiable(model)
    if shards is not None:
        shards.take(model.get_decoder().layers, target)
    if "device_map" not in more:
        model = model.to(target)
    return model.eval(), tokenizer


def load_tokenizer(settings: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of the model that `settings` name. UsageError when there is none that can be read."""
    source = locate(settings.name)
    try:
        return _tokenizer(source, _where(settings, source))
    except (OSError, ValueError) as error:
        raise UsageError(f"model.name = {settings.name!r}: {first_lines(error)}") from error


def choose_device(device: str) -> torch.device:
    """`auto` is the first accelerator there is, else the CPU. UsageError for one that is not there."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    if device == "auto":
        return found
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise UsageError(f"model.device = {device!r}: not a device; use auto, cpu, cuda, cuda:N or mps") from None
    if wanted.type not in ("cpu", found.type):
        here = ", ".join(dict.fromkeys(["cpu", found.type]))
        raise UsageError(f"model.device = {device!r}: not available here; available: {here}")
    return wanted


def _tokenizer(source: Source, where: dict[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer; one that says it is generic is taken at its word.

    AutoTokenizer would rebuild it as the model family's own kind, with that kind's pre-tokenizer and decoder.
    """
    settings = Path(source.location) / "tokenizer_config.json"
    stated = None
    if source.kind == "folder" and source.file is None and settings.is_file():
        stated = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class")
    kind = PreTrainedTokenizerFast if stated in GENERIC else AutoTokenizer
    return kind.from_pretrained(source.location, **where)


def _where(settings: ModelConfig, source: Source) -> dict[str, Any]:
    """Arguments that configuration, weights and tokenizer are all found with."""
    where: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code, "local_files_only": source.local}
    if settings.revision is not None and not source.local:
        where["revision"] = settings.revision
    if source.file is not None:
        where["gguf_file"] = source.file
    return where


def check_shardable(settings: ModelConfig, config: PretrainedConfig, more: dict[str, Any]) -> None:
    """UsageError for a model whose layers processes can't share out. `more`: what it would be loaded with."""
    if "device_map" in more:
        raise UsageError(
            f"model.quantization = {settings.quantization!r}, model.name = {settings.name!r}: FSDP can't share out "
            "quantised weights; use a model without quantization, or start without --use_fsdp"
        )
    if settings.trust_remote_code and "AutoModelForCausalLM" in getattr(config, "auto_map", {}):
        raise UsageError(
            f"model.name = {settings.name!r}: FSDP can't share out layers of a model's own code; start without "
            "--use_fsdp"
        )


def _check_class(settings: ModelConfig, config: PretrainedConfig) -> None:
    """UsageError for a model class of its own code that doesn't let others compute its attention. Loads no weights."""
    if not settings.trust_remote_code or "AutoModelForCausalLM" not in getattr(config, "auto_map", {}):
        return
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    if not getattr(skeleton, "_supports_attention_backend", False):
        raise UsageError(
            f"model.name = {settings.name!r}: {type(skeleton).__name__} computes its attention itself "
            "(_supports_attention_backend is not set), so its cache can't be bounded"
        )
