"""From settings to the objects that work: the model with its adapter, the policy, the task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel

from pte_cli.api import EvictionPolicy, Task
from pte_cli.config import RunConfig
from pte_cli.model.adapter import add_adapter
from pte_cli.model.load import load_model
from pte_cli.registry import build, load_registry
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.tasks.codec import Codec, end_ids


@dataclass(frozen=True)
class Loaded:
    """What generating from text needs: no task, and no adapter but a trained one."""

    model: BoundedModel
    policy: EvictionPolicy
    codec: Codec


@dataclass(frozen=True)
class Prepared:
    """What training and evaluation work with."""

    model: BoundedModel
    policy: EvictionPolicy
    task: Task
    codec: Codec


def prepare(config: RunConfig, adapter: Path | None = None) -> Prepared:
    """Load and build everything `config` names; with `adapter`, a saved adapter instead of a fresh one."""
    base, tokenizer = load_model(config.model.name, config.model.dtype, config.model.device)
    task = build(load_registry().task(config.task.name), config.task.options)
    codec = Codec(tokenizer, end_ids(base, tokenizer), task.words)
    torch.manual_seed(config.seed)
    if adapter is not None:
        model = PeftModel.from_pretrained(base, adapter)
    else:
        model = add_adapter(
            base,
            encoder=config.encoder.name,
            encoder_options=config.encoder.options,
            rank=config.adapter.rank,
            alpha=config.adapter.alpha,
            target_modules=config.adapter.target_modules,
        )
    return Prepared(BoundedModel(model), build_policy(config), task, codec)


def load(config: RunConfig, adapter: Path | None = None) -> Loaded:
    """The model `config` names with a saved adapter, or bare where there is none; for any text."""
    base, tokenizer = load_model(config.model.name, config.model.dtype, config.model.device)
    codec = Codec(tokenizer, end_ids(base, tokenizer))
    model = PeftModel.from_pretrained(base, adapter) if adapter is not None else base
    return Loaded(BoundedModel(model), build_policy(config), codec)


def build_policy(config: RunConfig) -> EvictionPolicy:
    """The eviction policy with its options."""
    return build(load_registry().eviction(config.evict.policy), config.evict.options)
