"""`full`: nothing is ever evicted; the cache grows with the sequence. The paper's Baseline and LoRA arms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pte_cli import hookimpl
from pte_cli.api import EvictionSpec, EvictionView, NoOptions

if TYPE_CHECKING:
    from torch import Tensor


class Full:
    """Keep everything. The budget does not apply."""

    granularity = "uniform"
    bounded = False

    def score(self, view: EvictionView) -> Tensor:
        """Every token is worth the same, `[1, b, 1, C]`; never asked for, since nothing has to leave."""
        return view.positions * 0


def build(_options: NoOptions) -> Full:
    return Full()


@hookimpl
def pte_eviction_policies() -> list[EvictionSpec]:
    return [EvictionSpec("full", "never evict; memory grows with the sequence", build)]
