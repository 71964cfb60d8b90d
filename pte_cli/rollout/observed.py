"""What the attention function saw, for policies that ask: attention mass per slot, in all and from the last queries.

Both come from the weights attention computes anyway. A slot's record starts at zero with the token in it, and is the
same whether the tokens were fed one by one (rollout) or a round at a time (replay of worked examples).
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from pte_cli.api import EvictionPolicy

ATTENTION, RECENT = "attention", "recent_attention"


@dataclass(frozen=True)
class Wanted:
    """What to record. window: how many of the last queries `recent` covers, 0 for none."""

    attention: bool = False
    window: int = 0

    @classmethod
    def by(cls, policy: EvictionPolicy) -> Wanted:
        """What `policy` declares that it needs."""
        needs = getattr(policy, "needs", frozenset())
        return cls(ATTENTION in needs, policy.observation_window if RECENT in needs else 0)

    def __bool__(self) -> bool:
        return self.attention or self.window > 0


@dataclass(frozen=True)
class Part:
    """Attention weights of the queries `tokens` of a pass: `[B, Hkv, group, t, K]`."""

    tokens: slice
    weights: Tensor


class Observed:
    """The records of one cache.

    mass: `[L, B, Hkv, C]`, the weights each slot's token has received, summed over queries and the group's heads.
    recent: `[L, B, Hkv, w, C]`, the same for each of the last w queries; query at position p is entry p mod w.
    """

    def __init__(self, wanted: Wanted, like: Tensor) -> None:
        """`like` is the cache's keys, `[L, B, Hkv, C, D]`."""
        self.wanted = wanted
        layers, rows, heads, slots, _ = like.shape
        dtype = torch.promote_types(like.dtype, torch.float32)

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=like.device)

        self.mass = zeros(layers, rows, heads, slots) if wanted.attention else None
        self.recent = zeros(layers, rows, heads, wanted.window, slots) if wanted.window else None
        self._queries = self._entries = None
        self._appended: dict[int, tuple[Tensor | None, Tensor | None]] | None = None

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.mass, self.recent) if t is not None)

    # ---- a forward pass -------------------------------------------------------------------------------------

    def begin(self, queries: Tensor, append: bool) -> None:
        """The next pass has queries at these positions, `[B, T]`, ascending from the first column; -1 is padding."""
        self._queries = queries
        self._appended = {} if append else None
        if self.recent is not None:
            # Entry j is for the newest query at a position congruent to j.
            last = queries.amax(1, keepdim=True)
            entry = torch.arange(self.wanted.window, device=queries.device)
            self._entries = last - (last - entry) % self.wanted.window

    def forget(self, slots: Tensor) -> None:
        """New tokens are being written to `slots` `[1 or L, B, 1 or Hkv, 1]`."""
        if self.mass is not None:
            self.mass.scatter_(-1, slots.expand(*self.mass.shape[:-1], -1), 0)
        if self.recent is not None:
            self.recent.scatter_(-1, slots.unsqueeze(-2).expand(*self.recent.shape[:-1], -1), 0)

    @torch.no_grad()
    def record(self, layer: int, parts: Iterable[Part]) -> None:
        """Called by the attention function of `layer` with the weights of all queries, in one or several parts."""
        mass = recent = None
        for part in parts:
            if self.mass is not None:
                real = (self._queries[:, part.tokens] >= 0).to(part.weights.dtype)
                new = (part.weights.sum(2) * real[:, None, :, None]).sum(2)
                mass = new if mass is None else mass + new
            if self.recent is not None:
                recent = self._pick(part, recent)
        if self._appended is not None:
            # By layer, not added: a pass that is computed again for its gradients says the same again.
            self._appended[layer] = (mass, recent)
        else:
            self._add(layer, mass, recent)

    def _pick(self, part: Part, before: Tensor | None) -> Tensor:
        """`[B, Hkv, w, K]`: the weights of the queries that are the newest of their entry."""
        column = self._entries - self._queries[:, :1] - part.tokens.start
        _, heads, _, tokens, keys = part.weights.shape
        inside = ((column >= 0) & (column < tokens))[:, None, :, None]
        index = column.clamp(0, tokens - 1)[:, None, :, None].expand(-1, heads, -1, keys)
        chosen = part.weights.sum(2).gather(2, index)
        return torch.where(inside, chosen, 0 if before is None else before)

    @property
    def _fresh(self) -> Tensor:
        """Which entries this pass has a query for, bool `[B, 1, w, 1]`."""
        return (self._entries >= self._queries[:, :1])[:, None, :, None]

    def _add(self, layer: int, mass: Tensor | None, recent: Tensor | None) -> None:
        """Add what the first K slots received."""
        if mass is not None:
            self.mass[layer, :, :, : mass.shape[-1]] += mass
        if recent is not None:
            seen = self.recent[layer, ..., : recent.shape[-1]]
            seen.copy_(torch.where(self._fresh, recent, seen))
            # Entries that now stand for another query say nothing about the slots it could not see.
            self.recent[layer, ..., recent.shape[-1] :].masked_fill_(self._fresh, 0)

    def commit(self, slots: Tensor, real: Tensor) -> None:
        """The appended tokens go to `slots` `[1 or L, B, 1 or Hkv, T]` where `real`, bool of the same shape."""
        for layer, (mass, recent) in (self._appended or {}).items():
            table = layer if len(slots) > 1 else 0
            where, mask = slots[table], real[table]
            if mass is not None:
                cached = self.mass.shape[-1]
                self._add(layer, mass[..., :cached], None)
                _put(self.mass[layer], where, mask, mass[..., cached:])
            if recent is not None:
                cached = self.recent.shape[-1]
                self._add(layer, None, recent[..., :cached])
                own = torch.where(self._fresh, recent[..., cached:], 0)
                _put(self.recent[layer], where.unsqueeze(-2), mask.unsqueeze(-2), own)
        self._appended = None

    # ---- rows -----------------------------------------------------------------------------------------------

    def load_rows(self, rows: Tensor, other: Observed, which: Tensor) -> None:
        """Put the rows `which` of `other`, of the same or a smaller capacity, in the place of `rows`."""
        for mine, theirs in ((self.mass, other.mass), (self.recent, other.recent)):
            if mine is not None:
                mine[:, rows] = 0
                mine[:, rows, ..., : theirs.shape[-1]] = theirs[:, which]

    def first(self, batch: int) -> Observed:
        """The records of the first `batch` rows, in the same memory."""
        part = copy(self)
        part.mass = self.mass[:, :batch] if self.mass is not None else None
        part.recent = self.recent[:, :batch] if self.recent is not None else None
        return part


def _put(target: Tensor, slots: Tensor, real: Tensor, new: Tensor) -> None:
    """`target[..., slots] = new` where `real`; padding writes back what was there."""
    index = slots.expand_as(new)
    target.scatter_(-1, index, torch.where(real, new, target.gather(-1, index)))
