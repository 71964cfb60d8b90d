"""Loading a model and its tokenizer: the built-in one, or a folder with safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from pte_cli.errors import UsageError

BUILT_IN = "tiny"
TINY = Path(__file__).parent.parent / "assets" / "tiny"
FAMILIES = ("llama", "qwen2")
"""Model types whose gap between rollout and replay is tested."""
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


def load_model(name: str, dtype: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal LM and tokenizer called `name`, frozen, on `device`. UsageError when that can't be had."""
    folder = TINY if name == BUILT_IN else Path(name)
    if not (folder / "config.json").is_file():
        raise UsageError(f"model.name = {name!r}: neither {BUILT_IN!r} nor a folder with a model's config.json")
    target = choose_device(device)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.model_type not in FAMILIES:
        raise UsageError(
            f"model.name = {name!r}: its type {config.model_type!r} is not supported; supported: {', '.join(FAMILIES)}"
        )
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"model.name = {name!r}: no *.safetensors in it (pickled weights are not loaded)")
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), use_safetensors=True, local_files_only=True
    )
    model.requires_grad_(False)
    return model.to(target).eval(), load_tokenizer(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer. One that says it is generic is taken at its word.

    AutoTokenizer would rebuild it as the model family's own kind, with that kind's pre-tokenizer and decoder.
    """
    settings = folder / "tokenizer_config.json"
    stated = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class") if settings.is_file() else None
    kind = PreTrainedTokenizerFast if stated in GENERIC else AutoTokenizer
    return kind.from_pretrained(folder, local_files_only=True)


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
        raise UsageError(f"model.device = {device!r}: not available here; available: cpu, {found.type}")
    return wanted
