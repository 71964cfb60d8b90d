"""Bytes of live tensors, counted as they come and go: repeatable on any machine, unlike a process's size.

Counts real tensors and fake ones alike. What an operator needs inside itself (a kernel's workspace) is not seen.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ACTIVATIONS, LOGITS = "activations", "logits"


@dataclass
class Peak:
    """The most bytes that were live at once, and whose they were then."""

    total: int = 0
    parts: dict[str, int] = field(default_factory=dict)


class LiveBytes(TorchDispatchMode):
    """Inside the block, `current` and `peak` count the storages that operators returned and that still live.

    Tensors made before the block count from the first operator that returns them or a view of them; give those that
    shall count from the start to `watch`. Each storage belongs to a part: the one given to `watch` or of the `label`
    block it was made in; else logits where its last dimension is `vocab`, and activations where it is not.
    """

    def __init__(self, vocab: int | None = None) -> None:
        super().__init__()
        self.vocab = vocab
        self.current = 0
        self.parts: Counter[str] = Counter()
        self.highest = Peak()
        self._label: str | None = None
        self._known: dict[weakref.ref[torch.UntypedStorage], tuple[int, str]] = {}

    @property
    def peak(self) -> int:
        """The most bytes since the start, or since the last `restart`."""
        return self.highest.total

    def watch(self, *tensors: torch.Tensor, part: str | None = None) -> None:
        """Count these tensors' storages from now on."""
        for tensor in tensors:
            key = weakref.ref(tensor.untyped_storage(), self._gone)
            if key not in self._known:
                size, own = key().nbytes(), part or self._label or self._kind(tensor)
                self._known[key] = size, own
                self.current += size
                self.parts[own] += size
                if self.current > self.highest.total:
                    self.highest = Peak(self.current, dict(self.parts))

    def relabel(self, tensor: torch.Tensor, part: str) -> None:
        """From now on this tensor's storage belongs to `part`."""
        key = weakref.ref(tensor.untyped_storage())
        if key in self._known:
            # The same key object has to stay: it carries the callback.
            size, before = self._known[key]
            self._known[key] = size, part
            self.parts[before] -= size
            self.parts[part] += size

    @contextmanager
    def label(self, part: str) -> Iterator[None]:
        """What is made inside the block belongs to `part`."""
        before, self._label = self._label, part
        try:
            yield
        finally:
            self._label = before

    def restart(self) -> None:
        """From here on `peak` is that of a new phase."""
        self.highest = Peak(self.current, dict(self.parts))

    @contextmanager
    def span(self) -> Iterator[Counter[str]]:
        """Yields a counter which, after the block, holds how far the block rose above its start, by part."""
        outer, start, rise = self.highest, self.parts.copy(), Counter()
        self.restart()
        yield rise
        rise.update(self.highest.parts)
        rise.subtract(start)
        if outer.total > self.highest.total:
            self.highest = outer

    def rise(self, by: Counter[str]) -> None:
        """As if what `span` saw had happened again now."""
        total = self.current + by.total()
        if total > self.highest.total:
            self.highest = Peak(total, {part: self.parts[part] + by[part] for part in self.parts | by})

    def _kind(self, tensor: torch.Tensor) -> str:
        wide = tensor.dim() and tensor.shape[-1] == self.vocab and tensor.is_floating_point()
        return LOGITS if wide else ACTIVATIONS

    def _gone(self, key: weakref.ref[torch.UntypedStorage]) -> None:
        size, part = self._known.pop(key)
        self.current -= size
        self.parts[part] -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.watch(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)))
        return result
