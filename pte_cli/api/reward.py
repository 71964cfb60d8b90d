"""What a reward is: a function that scores completions, with the signature TRL's reward functions have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from pte_cli.api.options import NoOptions


class Reward(Protocol):
    """Scores a batch of n completions."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **columns: Sequence[Any],
    ) -> Sequence[float | None]:
        """n scores. prompts, completions: text, or chat messages where the data has them.

        completion_ids: the sampled token ids of each. columns: every other column of the data, n values each; a
        function takes those it needs and ignores the rest with `**_`. None: no reward for that sample.
        """
        ...


@dataclass(frozen=True)
class RewardSpec:
    """How a plugin announces a reward. `build(options)` makes it; import anything heavy in there."""

    name: str
    summary: str
    build: Callable[[Any], Reward]
    options: type[BaseModel] = NoOptions
    api: int = 1
