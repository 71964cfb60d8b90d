"""`sliding`: the oldest thinking tokens leave. The paper's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pte_cli import hookimpl
from pte_cli.api import EvictionSpec, EvictionView, NoOptions

if TYPE_CHECKING:
    from torch import Tensor


class Sliding:
    """Keep the pinned prompt and the newest thinking tokens."""

    granularity = "uniform"
    bounded = True

    def score(self, view: EvictionView) -> Tensor:
        """The position itself, `[1, b, 1, C]`: the smallest, hence oldest, leave."""
        return view.positions


def build(_options: NoOptions) -> Sliding:
    return Sliding()


@hookimpl
def pte_eviction_policies() -> list[EvictionSpec]:
    return [EvictionSpec("sliding", "the oldest thinking tokens leave (prompt pinned)", build)]
