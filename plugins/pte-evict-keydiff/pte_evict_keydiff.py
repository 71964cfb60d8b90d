"""`keydiff`: keys that resemble the others leave (KeyDiff, Park et al. 2025, arXiv 2504.15364).

Each KV head decides for itself. With unit keys k_i / |k_i| and their mean a, the anchor, over all cached tokens, a
token is worth -cos(a, k_i): a key that points where most keys point adds little, a distinctive one is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import EvictionSpec, EvictionView

if TYPE_CHECKING:
    from torch import Tensor


class KeyDiffOptions(BaseModel):
    """Options of `keydiff` (`--set evict.NAME=VALUE`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recent: int = Field(1, ge=1, description="newest tokens that stay whatever their keys are")


class KeyDiff:
    """Keep the tokens whose keys are least like the mean key."""

    granularity = "head"
    bounded = True

    def __init__(self, options: KeyDiffOptions) -> None:
        self.options = options

    def score(self, view: EvictionView) -> Tensor:
        """-cos(anchor, key) per token, `[L, b, Hkv, C]`; the most typical keys, with the lowest scores, leave."""
        cached = view.positions >= 0
        # In float32 at least: a mean of many unit vectors is small, and bfloat16 would decide by rounding.
        keys = view.keys.float() if view.keys.element_size() < 4 else view.keys
        # Empty slots count nowhere, whatever is left in them.
        units = (keys / keys.norm(dim=-1, keepdim=True).clamp(min=1e-12)).masked_fill(~cached.unsqueeze(-1), 0)
        anchor = units.sum(-2, keepdim=True)
        scores = -(units * anchor).sum(-1) / anchor.norm(dim=-1).clamp(min=1e-12)
        newest = view.positions.amax(dim=-1, keepdim=True)
        return scores.masked_fill(view.positions > newest - self.options.recent, float("inf"))


@hookimpl
def pte_eviction_policies() -> list[EvictionSpec]:
    return [EvictionSpec("keydiff", "keys that resemble the others leave (arXiv 2504.15364)", KeyDiff, KeyDiffOptions)]
