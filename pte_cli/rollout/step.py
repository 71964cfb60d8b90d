"""One decoding step: feed every row's token, sample the next. Everything it needs and changes is on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import EMPTY, BoundedCache
from pte_cli.rollout.sampling import Sampling, choose


@dataclass
class Buffers:
    """The batch on the device: what the next step needs."""

    uniform: Tensor
    """float32 `[B, T]`."""
    current: Tensor
    """int64 `[B, 1]`: the tokens to be fed."""
    positions: Tensor
    """int64 `[B, 1]`: their positions; -1 in idle rows."""
    column: Tensor
    """int64 `[B, 1]`: which of the row's tokens is sampled next."""
    busy: Tensor
    """int64 `[B, 1]`: 1, or 0 in idle rows."""

    @classmethod
    def empty(cls, batch: int, length: int, device: torch.device) -> Buffers:
        def column(fill: int) -> Tensor:
            return torch.full((batch, 1), fill, dtype=torch.int64, device=device)

        return cls(torch.zeros(batch, length, device=device), column(0), column(EMPTY), column(0), column(0))

    def rest(self, slots: Tensor) -> None:
        """These rows are idle."""
        self.positions[slots] = EMPTY
        self.column[slots] = 0
        self.busy[slots] = 0


@dataclass(frozen=True)
class Step:
    """What the decoding steps of one run have in common; calling it makes one, outside of autograd.

    Changes cache and buffers in place, so that the same tensors serve every step.
    """

    model: BoundedModel
    sampling: Sampling
    cache: BoundedCache
    buffers: Buffers

    def __call__(self, cores: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """The sampled tokens and their log-probabilities, each `[B]`."""
        buffers = self.buffers
        self.cache.begin_write(buffers.positions)
        hidden = self.model.hidden(buffers.current, buffers.positions, self.cache, cores)
        uniform = buffers.uniform.gather(1, buffers.column)[:, 0]
        token, logprob = choose(self.model.head(hidden[:, 0]), uniform, self.sampling)
        buffers.current.copy_(token[:, None])
        buffers.positions.add_(buffers.busy)
        buffers.column.add_(buffers.busy)
        return token, logprob
