"""From settings to the objects that work: the model with its adapter, the policy, the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from pte_cli.api import EvictionPolicy
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.model.adapter import add_adapter, load_adapter
from pte_cli.model.load import load_model, load_tokenizer
from pte_cli.model.shards import Shards
from pte_cli.registry import build, load_registry
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.compiled import CompiledSteps, check_compilable
from pte_cli.tasks.codec import Codec, end_ids
from pte_cli.tasks.data.dataset import Dataset, load_dataset
from pte_cli.tasks.data.examples import DataExamples, build_rewards
from pte_cli.tasks.data.rendered import RenderedDataset, render_dataset
from pte_cli.tasks.examples import Examples, TaskExamples


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
    examples: Examples

    @property
    def codec(self) -> Codec:
        """Between text and token ids."""
        return self.examples.codec


def prepare(
    config: RunConfig,
    adapter: Path | None = None,
    dataset: RenderedDataset | None = None,
    shards: Shards | None = None,
) -> Prepared:
    """Load and build everything `config` names; with `adapter`, a saved adapter instead of a fresh one.

    dataset: the data of `config`, where it has been read already. shards: what the model's layers are given to, where
    processes share them out.
    """
    if shards is not None and config.sampling.compile:
        raise UsageError("sampling.compile: not with FSDP; leave it off, or start without --use_fsdp")
    if config.data.source is not None and dataset is None:
        dataset = read_data(config)
    base, tokenizer = load_model(config.model, shards)
    ends = end_ids(base, tokenizer)
    examples = (
        task_examples(config, tokenizer, ends) if dataset is None else data_examples(config, dataset, tokenizer, ends)
    )
    torch.manual_seed(config.seed)
    if adapter is not None:
        model = load_adapter(base, adapter)
    else:
        model = add_adapter(
            base,
            encoder=config.encoder.name,
            encoder_options=config.encoder.options,
            rank=config.adapter.rank,
            alpha=config.adapter.alpha,
            target_modules=config.adapter.target_modules,
        )
    bounded = BoundedModel(
        model,
        gradient_checkpointing=config.train.gradient_checkpointing,
        compiled=CompiledSteps() if config.sampling.compile else None,
        shards=shards,
    )
    if bounded.compiled is not None:
        check_compilable(bounded)
    return Prepared(bounded, build_policy(config), examples)


def read_data(config: RunConfig, rows: Dataset | None = None) -> RenderedDataset:
    """The data of `config` as token ids, checked against the budget; loads the tokenizer but no weights.

    rows: the data as it was read, where it was. UsageError for whatever is wrong with data, prompts or their lengths.
    """
    return render_dataset(rows or load_dataset(config), config, load_tokenizer(config.model), build_policy(config))


def task_examples(config: RunConfig, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int]) -> TaskExamples:
    """Examples of the procedural task."""
    task = build(load_registry().task(config.task.name), config.task.options)
    return TaskExamples(task, config.task.name, Codec(tokenizer, ends, task.words), config.seed)


def data_examples(
    config: RunConfig, dataset: RenderedDataset, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int]
) -> DataExamples:
    """Examples of the user's data."""
    return DataExamples(
        dataset,
        build_rewards(dataset.rewards, config.reward),
        Codec(tokenizer, ends),
        seed=config.seed,
        imitates="sft" in config.train.objective,
    )


def load(config: RunConfig, adapter: Path | None = None) -> Loaded:
    """The model `config` names with a saved adapter, or bare where there is none; for any text."""
    base, tokenizer = load_model(config.model)
    codec = Codec(tokenizer, end_ids(base, tokenizer))
    model = load_adapter(base, adapter) if adapter is not None else base
    return Loaded(BoundedModel(model), build_policy(config), codec)


def build_policy(config: RunConfig) -> EvictionPolicy:
    """The eviction policy with its options."""
    return build(load_registry().eviction(config.evict.policy), config.evict.options)
