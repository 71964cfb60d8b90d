"""`sink`: the first tokens of the sequence stay for ever, of the others the oldest leave (StreamingLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import EvictionSpec, EvictionView

if TYPE_CHECKING:
    from torch import Tensor


class SinkOptions(BaseModel):
    """Options of the `sink` policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_sink: int = Field(4, ge=0, description="first tokens of the sequence that never leave")
    evict_prompt: bool = Field(False, description="let the prompt's other tokens leave too, as StreamingLLM does")


@dataclass(frozen=True)
class Sink:
    """Attention sinks and the newest tokens (Xiao et al. 2024, "Efficient Streaming Language Models with Attention
    Sinks", arXiv 2309.17453).

    With a pinned prompt of at least `n_sink` tokens the sinks are pinned already, and this is `sliding`.
    """

    n_sink: int = 4
    evict_prompt: bool = False
    granularity = "uniform"
    bounded = True

    def pinned(self, prompt_length: int) -> int:
        return self.n_sink if self.evict_prompt else max(self.n_sink, prompt_length)

    def score(self, view: EvictionView) -> Tensor:
        """The position, `[1, b, 1, C]`: the oldest leave."""
        return view.positions


def build(options: SinkOptions) -> Sink:
    return Sink(options.n_sink, options.evict_prompt)


@hookimpl
def pte_eviction_policies() -> list[EvictionSpec]:
    return [EvictionSpec("sink", "the first tokens stay, the oldest others leave (StreamingLLM)", build, SinkOptions)]
