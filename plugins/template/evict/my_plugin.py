"""`my-plugin`: the tokens with the smallest values leave. Say here where your idea comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import EvictionSpec, EvictionView

if TYPE_CHECKING:
    from torch import Tensor


class Options(BaseModel):
    """Options, set by `--set evict.NAME=VALUE`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recent: int = Field(1, ge=1, description="newest tokens that stay whatever their values are")


class MyPlugin:
    """One decision per layer: a token is worth the norm of its value, mean over the layer's KV heads."""

    granularity = "layer"  # or "uniform" (all layers and heads alike), or "head"
    bounded = True

    def __init__(self, options: Options) -> None:
        self.options = options

    def score(self, view: EvictionView) -> Tensor:
        """Scores `[L, b, 1, C]`; the lowest leave. Must depend on the view only, each row on itself only."""
        sizes = view.values.norm(dim=-1).mean(dim=2, keepdim=True)
        newest = view.positions.amax(dim=-1, keepdim=True)
        return sizes.masked_fill(view.positions > newest - self.options.recent, float("inf"))


@hookimpl
def pte_eviction_policies() -> list[EvictionSpec]:
    return [EvictionSpec("my-plugin", "evict the tokens with the smallest values", MyPlugin, Options)]
