"""`overlong`: a soft punishment for completions near the token limit (DAPO, arXiv 2503.14476, equation 13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pte_cli import hookimpl
from pte_cli.api import RewardSpec


class Options(BaseModel):
    """The limit and how long before it the punishment begins, in tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_length: int = Field(gt=0, description="the length that is punished fully; the token limit")
    buffer: int | None = Field(None, gt=0, description="tokens before it over which punishment grows; a fifth of it")

    @model_validator(mode="after")
    def _fits(self) -> Options:
        if self.buffer is not None and self.buffer > self.max_length:
            raise ValueError(f"buffer = {self.buffer} is more than max_length = {self.max_length}")
        return self


def soft_overlong(length: int, max_length: int, buffer: int) -> float:
    """0 up to max_length - buffer tokens, then falling linearly to -1 at max_length, -1 beyond."""
    return max(-1.0, min(0.0, (max_length - buffer - length) / buffer))


class Overlong:
    """Looks at the number of sampled tokens only; needs no column."""

    def __init__(self, options: Options) -> None:
        self.max_length = options.max_length
        self.buffer = options.buffer or max(1, options.max_length // 5)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **_: Sequence[Any],
    ) -> list[float | None]:
        """-1 to 0 for each."""
        return [soft_overlong(len(ids), self.max_length, self.buffer) for ids in completion_ids]


@hookimpl
def pte_rewards() -> list[RewardSpec]:
    return [RewardSpec("overlong", "0 to -1 for lengths close to the token limit (DAPO)", Overlong, Options)]
