"""What an eviction policy is: one pure method that scores cached tokens; the lowest leave.

The budget, pinning the prompt, the number that leaves and ties are the engine's business, never the policy's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from pte_cli.api.options import NoOptions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class EvictionView:
    """What a policy may look at, for the b rows that are full. L layers, C slots, Hkv heads of size D.

    positions: int64 `[1 or L, b, 1 or Hkv, C]`, the token's position in its sequence; -1 is an empty slot.
    prompt_lengths: int64 `[b]`; positions below it are the prompt, which the engine pins.
    keys, values: `[L, b, Hkv, C, D]`, made on first use; keys carry their RoPE rotation.
    """

    positions: Tensor
    prompt_lengths: Tensor
    _keys: Callable[[], Tensor]
    _values: Callable[[], Tensor]

    @property
    def keys(self) -> Tensor:
        return self._keys()

    @property
    def values(self) -> Tensor:
        return self._values()


class EvictionPolicy(Protocol):
    """A strategy that decides which cached thinking tokens leave when the budget is full.

    granularity: "uniform" (all layers and heads drop the same tokens), "layer" or "head".
    bounded: False for the policy that never evicts; its cache grows with the sequence.
    """

    granularity: str
    bounded: bool

    def score(self, view: EvictionView) -> Tensor:
        """Scores `[1 or L, b, 1 or Hkv, C]` matching the granularity; the n lowest evictable slots leave.

        `+inf` keeps a slot. Equal scores: the older token leaves first. Must be a pure function of `view`.
        """
        ...


@dataclass(frozen=True)
class EvictionSpec:
    """How a plugin announces a policy. `build(options)` makes it; import anything heavy in there.

    `options` is the pydantic model of its options, `api` the version of the contract it was written for.
    """

    name: str
    summary: str
    build: Callable[[Any], EvictionPolicy]
    options: type[BaseModel] = NoOptions
    api: int = 1
