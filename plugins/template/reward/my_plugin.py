"""`my-plugin`: whether a completion ends with the answer. Say here what your reward is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import RewardSpec


class Options(BaseModel):
    """Options of the reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    right: float = Field(1.0, description="value of a completion that ends with the answer; others have 0")


class MyPlugin:
    """Needs the column `answer`; a sample without one has no reward."""

    def __init__(self, options: Options) -> None:
        self.right = options.right

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        *,
        answer: Sequence[str],
        **_: Any,
    ) -> list[float | None]:
        """One value per completion. `**_` takes the columns it has no use for."""
        return [self._one(completion, wanted) for completion, wanted in zip(completions, answer, strict=True)]

    def _one(self, completion: str, wanted: str) -> float | None:
        if not wanted:
            return None
        return self.right if completion.split()[-1:] == [wanted] else 0.0


@hookimpl
def pte_rewards() -> list[RewardSpec]:
    return [RewardSpec("my-plugin", "whether a completion ends with the answer", MyPlugin, Options)]
