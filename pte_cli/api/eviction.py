"""What an eviction policy is: one pure method that scores cached tokens; the lowest leave.

The budget, the number that leaves, and ties are the engine's business, never the policy's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from pte_cli.api.options import NoOptions

if TYPE_CHECKING:
    from torch import Tensor


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class EvictionView:
    """What a policy may look at, for the b rows that are full. L layers, C slots, Hkv heads of size D.

    positions: int64 `[1 or L, b, 1 or Hkv, C]`, the token's position in its sequence; -1 is an empty slot.
    prompt_lengths: int64 `[b]`; positions below it are the prompt.
    pinned: int64 `[b]`; positions below it never leave, whatever their score.
    keys, values: `[L, b, Hkv, C, D]`, made on first use; keys carry their RoPE rotation.
    """

    positions: Tensor
    prompt_lengths: Tensor
    pinned: Tensor
    _keys: Callable[[], Tensor]
    _values: Callable[[], Tensor]
    _attention: Callable[[], Tensor | None] = _nothing
    _recent: Callable[[], Tensor | None] = _nothing

    @property
    def keys(self) -> Tensor:
        return self._keys()

    @property
    def values(self) -> Tensor:
        return self._values()

    @property
    def evictable(self) -> Tensor:
        """bool, shaped as `positions`: slots that hold a token which may leave."""
        return self.positions >= self.pinned[None, :, None, None]

    @property
    def attention(self) -> Tensor:
        """`[L, b, Hkv, C]`, float32 at least: the attention weights each token has received since it was cached,
        summed over queries and over the query heads of the group. For policies with `"attention"` in `needs`."""
        return _declared(self._attention(), "attention")

    @property
    def recent_attention(self) -> Tensor:
        """`[L, b, Hkv, w, C]`: the same from each of the last w = `observation_window` queries, in no order.
        For policies with `"recent_attention"` in `needs`."""
        return _declared(self._recent(), "recent_attention")


def _declared(found: Tensor | None, name: str) -> Tensor:
    if found is None:
        raise ValueError(f"the policy reads view.{name}; it must declare needs = frozenset({{{name!r}}})")
    return found


class EvictionPolicy(Protocol):
    """A strategy that decides which cached tokens leave when the budget is full.

    granularity: "uniform" (all layers and heads drop the same tokens), "layer" or "head".
    bounded: False for the policy that never evicts; its cache grows with the sequence.

    Optional, for policies that want more than the default:

    needs: frozenset of "attention" and "recent_attention"; recorded only for policies that ask.
    observation_window: with "recent_attention", how many of the last queries it covers.
    pinned(prompt_length): how many tokens from the start of the sequence never leave. Without it: the whole prompt.
    """

    granularity: str
    bounded: bool

    def score(self, view: EvictionView) -> Tensor:
        """Scores `[1 or L, b, 1 or Hkv, C]` matching the granularity; the n lowest evictable slots leave.

        `+inf` keeps a slot unless too few others are left. Equal scores: the older token leaves first. Must be a pure
        function of `view`.
        """
        ...


def pinned_length(policy: EvictionPolicy, prompt_length: int) -> int:
    """How many tokens from the start of a sequence `policy` never lets go."""
    pinned = getattr(policy, "pinned", None)
    return prompt_length if pinned is None else int(pinned(prompt_length))


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
