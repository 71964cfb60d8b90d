"""Bytes of live tensors, counted as they come and go: repeatable on any machine, unlike a process's size."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside the block, `current` and `peak` count the storages that operators returned and that still live.

    Tensors made before the block count from the first operator that returns them or a view of them; give those that
    shall count from the start to `watch`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def watch(self, *tensors: torch.Tensor) -> None:
        """Count these tensors' storages from now on."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage not in self._seen:
                self._seen.add(storage)
                size = storage.nbytes()
                self.current += size
                self.peak = max(self.peak, self.current)
                weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.current -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.watch(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)))
        return result
