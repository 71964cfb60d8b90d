"""A stack of tensors that stays small in memory: what does not fit waits in a temporary file.

The replay writes one record per round and reads them last to first, so a rollout of any length costs the memory
of a few rounds.
"""

from __future__ import annotations

import math
import tempfile
from types import TracebackType

import torch
from torch import Tensor

Record = dict[str, Tensor]

CPU_LIMIT = 2**20
"""Bytes kept in memory when the model itself lives there."""


class Tape:
    """Last in, first out. Records of a model on an accelerator go to host memory; on a CPU, past `limit`, to disk.

    A context manager: the file is gone when the block ends.
    """

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self.device = device
        self.limit = limit if limit is not None else (CPU_LIMIT if device.type == "cpu" else math.inf)
        self.in_memory = 0
        self._records: list[Record | _OnDisk] = []
        self._file = None

    def __enter__(self) -> Tape:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._records.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def __len__(self) -> int:
        return len(self._records)

    def push(self, record: Record) -> None:
        """Remember the tensors of `record` (copied off the device where that is an accelerator)."""
        host = {name: tensor.detach().to("cpu") for name, tensor in record.items()}
        size = _nbytes(host)
        if self.in_memory + size <= self.limit:
            self.in_memory += size
            self._records.append(host)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="pte-tape-")  # noqa: SIM115 (closed by __exit__)
        self._file.seek(0, 2)
        layout = []
        for name, tensor in host.items():
            layout.append((name, tensor.dtype, tuple(tensor.shape), self._file.tell()))
            self._file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self._records.append(_OnDisk(layout))

    def pop(self) -> Record:
        """The newest record, on the tape's device; it is forgotten."""
        record = self._records.pop()
        if isinstance(record, _OnDisk):
            record = {name: self._read(dtype, shape, at) for name, dtype, shape, at in record.layout}
        else:
            self.in_memory -= _nbytes(record)
        return {name: tensor.to(self.device) for name, tensor in record.items()}

    def _read(self, dtype: torch.dtype, shape: tuple[int, ...], at: int) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        self._file.seek(at)
        self._file.readinto(tensor.view(-1).view(torch.uint8).numpy().data)
        return tensor


class _OnDisk:
    """Where a record lies in the file: (name, dtype, shape, offset) of each tensor."""

    def __init__(self, layout: list[tuple[str, torch.dtype, tuple[int, ...], int]]) -> None:
        self.layout = layout


def _nbytes(record: Record) -> int:
    return sum(t.numel() * t.element_size() for t in record.values())
