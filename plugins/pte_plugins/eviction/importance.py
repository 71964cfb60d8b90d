"""`importance`: what the model attends to least leaves; how that is judged is an option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import EvictionSpec, EvictionView
from pte_plugins.eviction.importance_scores import SCORES

if TYPE_CHECKING:
    from torch import Tensor


class ImportanceOptions(BaseModel):
    """Options of the `importance` policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    score: Literal["attention", "window", "attention-value", "key-norm", "key-diversity"] = Field(
        "attention", description="what a token is worth: see the functions of importance_scores.py"
    )
    granularity: Literal["uniform", "layer", "head"] = Field(
        "layer", description="who decides: all layers together, each layer, or each KV head"
    )
    recent: float = Field(0.5, ge=0, lt=1, description="share of the tokens that may leave that is kept for its youth")
    grace: int = Field(4, ge=0, description="tokens that fewer queries than this have seen are kept")
    window: int = Field(8, ge=1, description="queries that `window` and `key-diversity` look back on")
    mix: float = Field(
        0.1, ge=0, le=1, description="`key-diversity`: weight of attention against redundancy (R-KV's lambda)"
    )


@dataclass(frozen=True)
class Importance:
    """Evicts the tokens of the lowest `score`, youngest excepted.

    `recent` follows H2O, which splits the cache evenly between heavy hitters and recent tokens. It is a share of what
    may leave, so it scales with the budget; `grace` is a number of tokens. Where both together would protect so many
    that too few are left, the oldest of the protected leave.
    """

    options: ImportanceOptions
    bounded = True

    @property
    def granularity(self) -> str:
        return self.options.granularity

    @property
    def needs(self) -> frozenset[str]:
        return SCORES[self.options.score].needs

    @property
    def observation_window(self) -> int:
        return self.options.window

    def score(self, view: EvictionView) -> Tensor:
        """`[1 or L, b, 1 or Hkv, C]`: each token's score, averaged over the heads (and layers) that decide together."""
        score = SCORES[self.options.score].function(view, self.options.mix)
        together = {"uniform": (0, 2), "layer": (2,), "head": ()}[self.granularity]
        if together:
            score = score.mean(together, keepdim=True)
        return score.masked_fill(self.young(view), float("inf"))

    def young(self, view: EvictionView) -> Tensor:
        """Which slots the recency guard or the grace period protects, bool, shaped as `view.positions`."""
        evictable = view.evictable
        age = view.positions.amax(-1, keepdim=True) - view.positions
        # Rank by age: with gaps in the positions, the newest share is not the newest range.
        rank = view.positions.argsort(-1, descending=True).argsort(-1)
        guarded = (evictable.sum(-1, keepdim=True) * self.options.recent).long()
        return evictable & ((rank < guarded) | (age < self.options.grace))


@hookimpl
def pte_eviction_policies() -> list[EvictionSpec]:
    return [
        EvictionSpec(
            "importance", "the least attended tokens leave (H2O, SnapKV, R-KV, ...)", Importance, ImportanceOptions
        )
    ]
