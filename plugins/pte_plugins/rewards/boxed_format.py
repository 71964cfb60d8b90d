"""`boxed-format`: 1 where a completion ends in a whole boxed answer outside its reasoning, right or not, else 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import RewardSpec


class Options(BaseModel):
    """What else the format asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    think: bool = Field(False, description="also ask for reasoning closed by </think>")


class BoxedFormat:
    """Looks at the text only; needs no column."""

    def __init__(self, options: Options) -> None:
        self.think = options.think

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **_: Sequence[Any],
    ) -> list[float | None]:
        """1 or 0 for each."""
        from pte_cli.tasks.rewards import text_of

        return [self.score(text_of(completion)) for completion in completions]

    def score(self, text: str) -> float:
        """1 for a text of the wanted form."""
        from pte_cli.tasks.grading.extract import extract

        boxed = isinstance(extract(text), str)
        return float(boxed and (not self.think or "</think>" in text))


@hookimpl
def pte_rewards() -> list[RewardSpec]:
    return [RewardSpec("boxed-format", "1 for a whole boxed answer outside the reasoning", BoxedFormat, Options)]
