"""A base model that is shared out: each process keeps a part of every layer, and all have one layer whole at a time.

Processes sample completions of different lengths, so they run different numbers of passes, and some none at all. They
agree, before every gathering, on the layer that most of them want next, and all take part in it.

Not torch's `fully_shard`: its hooks gather whenever a module is called, so that a process would wait for ever, and its
`unshard` gathers into a buffer and copies from there, which is two layers at once. What is left of it for weights that
are frozen, and need no reducing, is `Shard`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Its name since torch 2.13, which warns of the older one.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
RESTING = -1
"""What a process wants that wants no layer."""
ALIGNMENT = 256
"""Bytes; every matrix starts at a multiple of it, as one that an allocator had placed."""


class Shards:
    """The frozen matrices of all decoder layers, shared out evenly over the `count` processes of torch's group.

    A process must `rest` before it starts any other exchange with the others.
    """

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        # On the host, so that agreeing doesn't wait for a device.
        self.group = dist.new_group(backend="gloo")
        self.layers: list[Shard] = []
        self.gathered: int | None = None

    def take(self, layers: Sequence[nn.Module], device: torch.device) -> None:
        """Keep this process's part of `layers`, on `device`."""
        self.layers = [Shard(layer, self.rank, self.count, device) for layer in layers]

    @contextmanager
    def placed(self, index: int) -> Iterator[None]:
        """Inside the block, layer `index` has memory but no content: without, torch makes no views of its matrices."""
        self._free()
        self.layers[index].allocate()
        try:
            yield
        finally:
            self.layers[index].free()

    def around(self, index: int, layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """`layer` as a function whose matrices are whole while it is computed, and again in its backward pass."""

        def whole(*given: Any) -> Tensor:
            self.gather(index)
            out = layer(*given)
            if out.requires_grad:
                # Autograd refers to the matrices, it has no copies: they are back before it reads them.
                out.register_hook(lambda _: self.gather(index))
            return out

        return whole

    def gather(self, index: int) -> None:
        """Return when layer `index` is whole, and no other is."""
        while self.gathered != index:
            self._serve(index)

    def rest(self) -> None:
        """Serve the other processes until none of them wants a layer; then no layer is whole."""
        while self._serve(RESTING):
            pass

    def _serve(self, wish: int) -> bool:
        """Make the layer whole that most processes wish for, the lowest of several; False if all are resting.

        Someone's wish comes true each time, so all of them do in the end.
        """
        self._free()
        wishes = torch.empty(self.count, dtype=torch.int64)
        all_gather(wishes, torch.tensor([wish]), group=self.group)
        wanted = sorted(index for index in wishes.tolist() if index != RESTING)
        if not wanted:
            return False
        # Of several `max` takes the first, so that processes apart in their forward passes meet again.
        self.gathered = max(wanted, key=wanted.count)
        self.layers[self.gathered].gather()
        return True

    def _free(self) -> None:
        if self.gathered is not None:
            self.layers[self.gathered].free()
            self.gathered = None


class Shard:
    """One layer's frozen matrices laid one after the other, of which this process keeps its part.

    part: uint8 `[N]`, always there. whole: uint8 `[count * N]`, whose storage has bytes only between `gather` and
    `free`. The matrices are views of `whole`; vectors (norms, biases) and what learns stay as they are.
    """

    def __init__(self, layer: nn.Module, rank: int, count: int, device: torch.device) -> None:
        matrices = [p for p in layer.parameters() if p.dim() > 1 and not p.requires_grad]
        starts, end = [], 0
        for matrix in matrices:
            starts.append(end)
            end += _aligned(matrix.nbytes)
        size = _aligned(math.ceil(end / count))
        flat = torch.zeros(size * count, dtype=torch.uint8)
        for start, matrix in zip(starts, matrices, strict=True):
            flat[start : start + matrix.nbytes] = matrix.detach().flatten().view(torch.uint8)
        self.part = flat[rank * size : (rank + 1) * size].to(device, copy=True)
        self.whole = torch.empty(size * count, dtype=torch.uint8, device=device)
        for start, matrix in zip(starts, matrices, strict=True):
            matrix.data = self.whole[start : start + matrix.nbytes].view(matrix.dtype).view(matrix.shape)
        self.free()

    def allocate(self) -> None:
        """Give `whole` its bytes, whatever is in them."""
        self.whole.untyped_storage().resize_(self.whole.nbytes)

    def gather(self) -> None:
        """Fill `whole` from the parts of all processes, which must all do so."""
        self.allocate()
        all_gather(self.whole, self.part)

    def free(self) -> None:
        """Give back the bytes of `whole`. Its views stay, and must not be read until it is gathered."""
        self.whole.untyped_storage().resize_(0)


def _aligned(size: int) -> int:
    """`size` bytes, and what is missing to the next multiple of ALIGNMENT."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT
