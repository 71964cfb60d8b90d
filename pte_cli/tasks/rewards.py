"""Several rewards as one: called, checked and added up.

A reward has TRL's signature (`pte_cli.api.reward`). `None` means that it has nothing to say about a sample; that
sample's total is the weighted sum of the others (as TRL's nansum), and NaN where there are no others: never a silent 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pte_cli.api.reward import Reward
from pte_cli.errors import PteError


@dataclass(frozen=True)
class NamedReward:
    """A reward function, the name it is logged and blamed under, and its weight in the sum."""

    name: str
    function: Reward
    weight: float = 1.0


@dataclass(frozen=True)
class Batch:
    """What rewards are called with: n prompts, completions, their token ids, and the other columns of the data.

    rows: what to call each sample in a message; by default its `id` column or its place in the batch.
    """

    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Sequence[int]]
    columns: Mapping[str, Sequence[Any]]
    rows: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.completions)

    def row(self, i: int) -> str:
        """How a message names sample i."""
        if self.rows is not None:
            return self.rows[i]
        return f"{self.columns['id'][i]!r} (number {i} of the batch)" if "id" in self.columns else f"{i} of the batch"

    def only(self, i: int) -> Batch:
        """Sample i as a batch of its own."""
        columns = {name: values[i : i + 1] for name, values in self.columns.items()}
        one = slice(i, i + 1)
        return Batch(self.prompts[one], self.completions[one], self.completion_ids[one], columns, [self.row(i)])


@dataclass(frozen=True)
class Rewards:
    """totals: n weighted sums, NaN for the samples in `missing`, about which no reward had anything to say.

    by_name: each reward's own n values before weighting, None where it had none.
    """

    totals: list[float]
    by_name: dict[str, list[float | None]]
    missing: tuple[int, ...]


def combine(rewards: Sequence[NamedReward], batch: Batch) -> Rewards:
    """Call every reward on the batch. PteError, naming the reward and the row, where one raises or returns nonsense."""
    by_name = {reward.name: values(reward, batch) for reward in rewards}
    totals = [weighted_sum([(reward.weight, by_name[reward.name][i]) for reward in rewards]) for i in range(len(batch))]
    return Rewards(totals, by_name, tuple(i for i, total in enumerate(totals) if math.isnan(total)))


def weighted_sum(terms: Sequence[tuple[float, float | None]]) -> float:
    """Sum of weight * value over the values that are there; NaN where none is."""
    found = [weight * value for weight, value in terms if value is not None]
    return math.fsum(found) if found else math.nan


def values(reward: NamedReward, batch: Batch) -> list[float | None]:
    """The n values of one reward, each a finite number or None."""
    try:
        returned = list(_call(reward, batch))
    except Exception as error:
        row, cause = _blame(reward, batch, error)
        raise PteError(f"reward {reward.name!r} failed at {row}: {type(cause).__name__}: {cause}") from error
    if len(returned) != len(batch):
        raise PteError(f"reward {reward.name!r} returned {len(returned)} values for {len(batch)} completions")
    return [_number(reward, value, batch, i) for i, value in enumerate(returned)]


def _call(reward: NamedReward, batch: Batch) -> Sequence[Any]:
    return reward.function(batch.prompts, batch.completions, batch.completion_ids, **batch.columns)


def _blame(reward: NamedReward, batch: Batch, error: Exception) -> tuple[str, Exception]:
    """The first row that fails alone, and how; the whole batch where every row alone is fine."""
    for i in range(len(batch)):
        try:
            list(_call(reward, batch.only(i)))
        except Exception as alone:
            return f"row {batch.row(i)}", alone
    return f"a batch of {len(batch)} (each row alone is fine)", error


def _number(reward: NamedReward, value: Any, batch: Batch, i: int) -> float | None:
    if value is None:
        return None
    if not hasattr(value, "__float__"):
        raise PteError(
            f"reward {reward.name!r} returned {value!r} for row {batch.row(i)}; a number or None is expected"
        )
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise PteError(f"reward {reward.name!r}, row {batch.row(i)}: {error}; a number or None is expected") from error
    if not math.isfinite(number):
        raise PteError(
            f"reward {reward.name!r} returned {number} for row {batch.row(i)}; return None for no reward, or a number"
        )
    return number


def text_of(completion: Any) -> str:
    """The text of a completion: itself, or the content of the last of its chat messages."""
    return completion if isinstance(completion, str) else completion[-1]["content"]
