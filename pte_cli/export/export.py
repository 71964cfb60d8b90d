"""Exporting a run: weights merged into the model's where that is possible, else the adapter."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.export.card import model_card
from pte_cli.runs import RunDir, check_writable

MERGEABLE = "none"
"""The encoder whose adapter is plain LoRA: one set of weights, whatever is read."""
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
SETTINGS = "pte_config.json"


@dataclass(frozen=True)
class Exported:
    """What was written. reason: why the weights aren't merged; None where they are."""

    out: str
    kind: Literal["merged", "adapter"]
    files: tuple[str, ...]
    reason: str | None


def check_out(out: Path) -> None:
    """UsageError when `out` is there already or could not be made."""
    if os.path.lexists(out):
        raise UsageError(f"{str(out)!r}: is there already; choose a new folder")
    check_writable("OUT", out.absolute())


def export(config: RunConfig, run: RunDir, out: Path) -> Exported:
    """Write the export of `run` to the new folder `out`, which is there whole or not at all."""
    check_out(out)
    reason = why_not_merged(config, run)
    scratch = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        if reason is None:
            tokenizer = save_merged(config, run.adapter, scratch)
        else:
            tokenizer = ""
            for name in ADAPTER_FILES:
                shutil.copyfile(run.adapter / name, scratch / name)
            settings = config.model_dump(mode="json", exclude={"out"})
            (scratch / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        card = model_card(config, read_status(run), out.name, reason, settings=SETTINGS, tokenizer=tokenizer)
        (scratch / "README.md").write_text(card, encoding="utf-8")
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    files = tuple(sorted(file.name for file in out.iterdir()))
    return Exported(str(out), "merged" if reason is None else "adapter", files, reason)


def why_not_merged(config: RunConfig, run: RunDir) -> str | None:
    """Why no ordinary weights equal the trained model; None where they do."""
    name = trained_encoder(run)
    if name.rpartition(":")[2] == MERGEABLE:
        return None
    return (
        f"The encoder {name!r} can't be merged: it puts a core M between the two LoRA factors of "
        f"{', '.join(config.adapter.target_modules)} in every layer (W + scale B (I + M) A), and M follows from what "
        "was evicted, for each sequence anew. No fixed weights equal that, so this is the adapter."
    )


def trained_encoder(run: RunDir) -> str:
    """The encoder the adapter itself says it has."""
    file = run.adapter / "adapter_config.json"
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["encoder"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file}: is no adapter of ours ({error})") from None


def save_merged(config: RunConfig, adapter: Path, folder: Path) -> str:
    """The model with the adapter's LoRA added to its weights, and its tokenizer; returns the class that loads that."""
    from transformers import PreTrainedTokenizerFast

    from pte_cli.model.adapter import load_adapter
    from pte_cli.model.load import load_model

    base, tokenizer = load_model(config.model)
    if getattr(base, "is_quantized", False):
        raise UsageError(
            f"model.name = {config.model.name!r}: its weights are quantised, and merging would round the adapter away; "
            "export with --model and the same model in full precision"
        )
    merged: Any = load_adapter(base, adapter).merge_and_unload(safe_merge=True)
    merged.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    # AutoTokenizer would take a generic one for the model family's own, and decode it otherwise.
    return "PreTrainedTokenizerFast" if type(tokenizer) is PreTrainedTokenizerFast else "AutoTokenizer"


def read_status(run: RunDir) -> dict[str, Any]:
    """The run's status.json; empty where there is none to read."""
    try:
        status = json.loads((run.path / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
