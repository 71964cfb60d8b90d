"""Rows as token ids, and which of them the budget can hold: known once the tokenizer is there, before any weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pte_cli.api import EvictionPolicy, pinned_length
from pte_cli.budget import MIN_WINDOW, window
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.tasks.data.columns import Columns
from pte_cli.tasks.data.dataset import Dataset, Row
from pte_cli.tasks.prompts import Rendered, render, resolve_style

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 3
MOST_UNKNOWN = 0.01


@dataclass(frozen=True)
class Example:
    """A row and its prompt as the model sees it."""

    row: Row
    prompt: Rendered


@dataclass(frozen=True)
class RenderedDataset:
    """The examples a run trains on and is measured on. dropped: rows that were left out because they are too long."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    columns: Columns
    rewards: tuple[str, ...]
    style: str
    dropped: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(example.prompt.ids) for example in (*self.train, *self.held_out))


def render_dataset(
    dataset: Dataset, config: RunConfig, tokenizer: PreTrainedTokenizerBase, policy: EvictionPolicy
) -> RenderedDataset:
    """Every prompt in the configured style, checked against the budget.

    UsageError for a style or message that does not fit the tokenizer, naming the row; for prompts that leave fewer than
    4 tokens of the budget, naming the first of them, unless `data.too_long` says to drop those; for nothing left.
    """
    style = resolve_style(tokenizer, config.data.style, config.data.system)
    train, held_out = (
        [Example(row, _rendered(tokenizer, row, style, config.data.system)) for row in rows]
        for rows in (dataset.train, dataset.held_out)
    )
    check_known("prompts", [(example.row.place, example.prompt.ids) for example in (*train, *held_out)], tokenizer)
    whole = RenderedDataset(tuple(train), tuple(held_out), dataset.columns, dataset.rewards, style)
    return _fitting(whole, config, policy) if policy.bounded else whole


def _rendered(tokenizer: PreTrainedTokenizerBase, row: Row, style: str, system: str | None) -> Rendered:
    try:
        return render(tokenizer, row.prompt, style, system)
    except UsageError as error:
        raise UsageError(f"{row.place}: {error}") from None


def check_known(what: str, texts: Sequence[tuple[str, Sequence[int]]], tokenizer: PreTrainedTokenizerBase) -> None:
    """UsageError where more than a stray sign is unknown to the tokenizer: the built-in model's knows 40 words.

    what: to call the texts; each is (place, ids).
    """
    unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.pad_token_id
    counts = [sum(token == unknown for token in ids) for _, ids in texts]
    share = sum(counts) / max(1, sum(len(ids) for _, ids in texts))
    if share > MOST_UNKNOWN:
        first = next(place for (place, _), count in zip(texts, counts, strict=True) if count)
        raise UsageError(
            f"model.name: {share:.0%} of the {what}' tokens are unknown to its tokenizer, first at {first}; "
            "use a model that knows this kind of text"
        )


def _fitting(whole: RenderedDataset, config: RunConfig, policy: EvictionPolicy) -> RenderedDataset:
    budget = config.evict.budget
    long = [example for example in (*whole.train, *whole.held_out) if not fits(len(example.prompt.ids), budget, policy)]
    if not long:
        return whole
    if config.data.too_long == "error":
        raise UsageError(_too_long(long, budget, policy))
    places = {example.row.place for example in long}
    train, held_out = (
        tuple(example for example in examples if example.row.place not in places)
        for examples in (whole.train, whole.held_out)
    )
    if not train:
        shortest = min(len(example.prompt.ids) for example in whole.train)
        raise UsageError(
            f"evict.budget = {budget}: not one of {len(whole.train)} prompts fits; the shortest has {shortest} tokens; "
            f"use at least {enough(shortest, policy)}"
        )
    return replace(whole, train=train, held_out=held_out, dropped=len(long))


def fits(length: int, budget: int, policy: EvictionPolicy) -> bool:
    """Whether a prompt of this length leaves room for thinking."""
    try:
        window(budget, length, pinned_length(policy, length))
    except UsageError:
        return False
    return True


def enough(length: int, policy: EvictionPolicy) -> int:
    """The least budget for a prompt of this length."""
    return max(length, pinned_length(policy, length) + MIN_WINDOW)


def _too_long(long: Sequence[Example], budget: int, policy: EvictionPolicy) -> str:
    shown = ", ".join(f"{example.row.place} ({len(example.prompt.ids)} tokens)" for example in long[:SHOWN])
    more = f" and {len(long) - SHOWN} more" if len(long) > SHOWN else ""
    longest = max(len(example.prompt.ids) for example in long)
    return (
        f"evict.budget = {budget}: too long for it with {MIN_WINDOW} tokens for thinking: {shown}{more}; "
        f"use at least {enough(longest, policy)}, or data.too_long = 'drop'"
    )
