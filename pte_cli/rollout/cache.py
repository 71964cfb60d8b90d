"""The bounded KV cache: C slots per row, evicting is freeing slots, nothing is ever moved.

Keys carry the RoPE rotation of their true position and attention does not care about the order of slots, so a
new token goes into any free one. Which slots a query sees is read from the positions stored beside the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from pte_cli.api import EvictionView
from pte_cli.rollout.observed import Observed, Wanted

EMPTY = -1


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a cache: L layers, Hkv KV heads of size D; one table of positions per layer / per head or shared."""

    layers: int
    kv_heads: int
    head_dim: int
    per_layer: bool = False
    per_head: bool = False


class BoundedCache(Cache):
    """Keys and values of B rows in C slots each; a `transformers` cache that models use as any other.

    keys, values: `[L, B, Hkv, C, D]`, allocated once.
    positions: int64 `[1 or L, B, 1 or Hkv, C]`, the position of the token in each slot, -1 where it is free.

    A forward pass is announced with its position ids: `begin_write` stores its tokens in free slots at once
    (rollout), `begin_append` lets them stand after the cached ones, with gradients, until `commit` stores them
    (replay). Position -1 marks padding: it is never stored and what it computes is never used.
    """

    def __init__(
        self,
        shape: CacheShape,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        wanted: Wanted = Wanted(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(layers=[])
        self.shape = shape
        size = (shape.layers, batch, shape.kv_heads, capacity, shape.head_dim)
        # Zeros, not empty: padding may attend to free slots, and what is there must be finite.
        self.keys = torch.zeros(size, dtype=dtype, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)
        tables = (
            shape.layers if shape.per_layer else 1,
            batch,
            shape.kv_heads if shape.per_head else 1,
            capacity,
        )
        self.positions = torch.full(tables, EMPTY, dtype=torch.int64, device=device)
        self.observed = Observed(wanted, self.keys) if wanted else None
        self._queries = self._stored = self._visible = None
        self._biases: dict[tuple[int, int | None], Tensor] = {}
        self._layers: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._appended: list[tuple[Tensor, Tensor]] | None = None
        self.recording = True

    @property
    def batch(self) -> int:
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values, positions and what is observed for the policy."""
        own = sum(t.numel() * t.element_size() for t in (self.keys, self.values, self.positions))
        return own + (self.observed.nbytes if self.observed else 0)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens stored in the fullest row. Positions are always passed explicitly, so models don't rely on it."""
        return int((self.positions != EMPTY).sum(-1).max())

    # ---- a forward pass -------------------------------------------------------------------------------------

    def begin_write(self, position_ids: Tensor) -> None:
        """The next pass feeds one token per row `[B, 1]`, or fills empty rows with `[B, T]`, T <= C."""
        tokens = position_ids.shape[1]
        new = position_ids[None, :, None, :]
        if tokens == 1:
            slots = self.positions.argmin(-1, keepdim=True)  # a free one: no position is below EMPTY
            self.positions.scatter_(-1, slots, new.expand_as(slots))
            index = slots.unsqueeze(-1).expand(-1, *self.keys.shape[1:3], -1, self.keys.shape[4]).unbind(0)
            if self.observed:
                self.observed.forget(slots)
            stored = self.positions
        else:
            self.positions[..., :tokens] = new
            index = (None,)
            stored = self.positions[..., :tokens]
        self._appended = None
        each = index if self.shape.per_layer and tokens == 1 else index * self.shape.layers
        self._layers = list(zip(self.keys.unbind(0), self.values.unbind(0), each, strict=True))
        if self.observed:
            self.observed.begin(position_ids, append=False)
        self._see(position_ids, stored)

    def begin_append(self, position_ids: Tensor) -> None:
        """The next pass feeds `[B, T]` tokens that see the cached ones and, causally, each other."""
        new = position_ids[None, :, None, :].expand(*self.positions.shape[:-1], -1)
        self._appended = []
        if self.observed:
            self.observed.begin(position_ids, append=True)
        self._see(position_ids, torch.cat((self.positions, new), dim=-1))

    def _see(self, queries: Tensor, stored: Tensor) -> None:
        self._queries, self._stored = queries[None, :, None, :, None], stored.unsqueeze(-2)
        # Padding (query -1) sees everything, so that its softmax has something to sum over.
        self._visible = ((self._stored >= 0) & (self._stored <= self._queries)) | (self._queries < 0)
        self._biases = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object):
        """Called by the model's attention: keys and values `[B, Hkv, T, D]` in, those to attend to out."""
        if self._appended is not None:
            if self.recording:
                self._appended.append((key_states, value_states))
            keys, values = self.keys[layer_idx], self.values[layer_idx]
            return torch.cat((keys, key_states), dim=2), torch.cat((values, value_states), dim=2)
        keys, values, index = self._layers[layer_idx]
        if index is not None:
            return keys.scatter_(2, index, key_states), values.scatter_(2, index, value_states)
        keys, values = keys[:, :, : key_states.shape[2]], values[:, :, : key_states.shape[2]]
        return keys.copy_(key_states), values.copy_(value_states)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Inside the block, layers of the appended pass are computed once more and nothing of it is noted."""
        self.recording = False
        try:
            yield
        finally:
            self.recording = True

    def visible(self, layer_idx: int, window: int | None = None) -> Tensor:
        """Which keys each query of this pass sees, bool `[B, 1 or Hkv, T, K]`; `window`: the layer's own limit."""
        table = layer_idx if self.shape.per_layer else 0
        seen = self._visible[table]
        if window is not None:
            near = self._queries[0] - self._stored[table] < window
            seen = seen & (near | (self._queries[0] < 0))
        return seen

    def bias(self, layer_idx: int, window: int | None, kv_heads: int, group: int, dtype: torch.dtype) -> Tensor:
        """`visible` as a summand of scores, 0 or -inf: `[B * Hkv, group * T, K]`, or `[B * Hkv, 1, K]` where T = 1.

        Made once a pass for all layers that see the same.
        """
        key = (layer_idx if self.shape.per_layer else 0, window)
        if key not in self._biases:
            seen = self.visible(layer_idx, window)
            rows, _, tokens, slots = seen.shape
            bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            repeated = bias.unsqueeze(2).expand(-1, kv_heads, group if tokens > 1 else 1, -1, -1)
            self._biases[key] = repeated.reshape(rows * kv_heads, -1, slots)
        return self._biases[key]

    @torch.no_grad()
    def commit(self) -> None:
        """Store the tokens of the last appended pass, detached, in free slots."""
        slots, real = self.take(self._queries[:, :, :, :, 0].expand(*self.positions.shape[:-1], -1))
        for layer, (keys, values) in enumerate(self._appended or ()):
            table = layer if self.shape.per_layer else 0
            index = slots[table].unsqueeze(-1).expand_as(keys)
            mask = real[table].unsqueeze(-1)
            for cached, fresh in ((self.keys[layer], keys), (self.values[layer], values)):
                cached.scatter_(2, index, torch.where(mask, fresh, cached.gather(2, index)))
        self._appended = None
        if self.observed:
            self.observed.commit(slots, real)

    @property
    def appended(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values `[B, Hkv, T, D]` of each layer in the last appended pass, with gradients."""
        return self._appended or []

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Give free slots to new `positions` `[1 or L, B, 1 or Hkv, T]`: the slots, and which are no padding."""
        # Free slots first, in a fixed order. Padding gets what is left and writes back what was there.
        order = (self.positions != EMPTY).to(torch.uint8).argsort(dim=-1, stable=True)
        slots, real = order[..., : positions.shape[-1]], positions != EMPTY
        self.positions.scatter_(-1, slots, torch.where(real, positions, self.positions.gather(-1, slots)))
        return slots, real

    # ---- eviction -------------------------------------------------------------------------------------------

    def view(self, rows: Tensor, prompt_lengths: Tensor, pinned: Tensor) -> EvictionView:
        """What a policy sees of `rows` (int64 `[b]`); prompt_lengths and pinned as in `EvictionView`."""
        observed = self.observed
        return EvictionView(
            positions=self.positions[:, rows],
            prompt_lengths=prompt_lengths,
            pinned=pinned,
            _keys=lambda: self.keys[:, rows],
            _values=lambda: self.values[:, rows],
            _attention=lambda: None if observed is None or observed.mass is None else observed.mass[:, rows],
            _recent=lambda: None if observed is None or observed.recent is None else observed.recent[:, rows],
        )

    def gather(self, rows: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values `[L, b, Hkv, n, D]` and positions of `slots` `[1 or L, b, 1 or Hkv, n]` of `rows`."""
        device = self.keys.device
        layers = torch.arange(self.shape.layers, device=device).view(-1, 1, 1, 1)
        heads = torch.arange(self.shape.kv_heads, device=device).view(1, 1, -1, 1)
        index = (layers, rows.view(1, -1, 1, 1), heads, slots)
        return self.keys[index], self.values[index], self.positions[:, rows].gather(-1, slots)

    def free(self, rows: Tensor, slots: Tensor, mask: Tensor) -> None:
        """Free `slots` of `rows` where `mask` (bool `[b, n]`) says that the entry is real."""
        positions = self.positions[:, rows]
        kept = torch.where(mask[None, :, None, :], EMPTY, positions.gather(-1, slots))
        self.positions[:, rows] = positions.scatter(-1, slots, kept)

    def load_rows(self, rows: Tensor, other: BoundedCache, which: Tensor) -> None:
        """Put the rows `which` of `other`, of the same or a smaller capacity, in the place of `rows`."""
        slots = other.capacity
        self.keys[:, rows, :, :slots] = other.keys[:, which]
        self.values[:, rows, :, :slots] = other.values[:, which]
        self.positions[:, rows] = EMPTY
        self.positions[:, rows, :, :slots] = other.positions[:, which]
        if self.observed:
            self.observed.load_rows(rows, other.observed, which)

    def select(self, rows: Tensor) -> BoundedCache:
        """A copy of `rows` for one pass beside this cache; nothing is observed in it."""
        part = copy(self)
        part.observed = None
        part.keys, part.values, part.positions = self.keys[:, rows], self.values[:, rows], self.positions[:, rows]
        return part

    def clear(self, rows: Tensor) -> None:
        """Free every slot of `rows`."""
        self.positions[:, rows] = EMPTY

    def first(self, batch: int) -> BoundedCache:
        """The first `batch` rows as a cache of their own that shares this one's memory."""
        part = copy(self)
        part.keys, part.values = self.keys[:, :batch], self.values[:, :batch]
        part.positions = self.positions[:, :batch]
        part.observed = self.observed.first(batch) if self.observed else None
        return part
