"""A batch of traces as rounds: round j holds what each row was fed between its evictions j - 1 and j."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pte_cli.rollout.cache import EMPTY
from pte_cli.rollout.trace import Trace


@dataclass(frozen=True)
class Round:
    """The b rows that have a round j, padded to its T tokens; rows are a prefix of the plan's order.

    ids, positions: int64 `[b, T]`; position -1 is padding.
    picked: int64 `[N]`, indices into the flattened `[b * T]` of fed tokens whose successor is part of a completion.
    targets: int64 `[N]`, those successors. rows, tokens: int64 `[N]`, which trace and which of its tokens they are.
    counts: int64 `[b]`, tokens that leave before this round; most: the largest. Empty and 0 for round 0.
    recorded: int64 `[1 or L, b, 1 or Hkv, most]`, their positions (-1: padding), or None to ask the policy.
    """

    ids: Tensor
    positions: Tensor
    picked: Tensor
    targets: Tensor
    rows: Tensor
    tokens: Tensor
    counts: Tensor
    most: int
    recorded: Tensor | None

    @property
    def batch(self) -> int:
        return len(self.ids)


class Plan:
    """Traces sorted by their number of rounds, most first, so that each round's rows are a prefix."""

    def __init__(self, traces: Sequence[Trace], device: torch.device) -> None:
        self.traces = traces
        self.device = device
        self.order = sorted(range(len(traces)), key=lambda i: -len(traces[i].evictions))
        self.rounds = 1 + max(len(trace.evictions) for trace in traces)
        self.prompts = [len(traces[i].prompt) for i in self.order]
        self.prompt_lengths = self.tensor(self.prompts)

    def sequences(self, batch: int) -> Tensor:
        """Token ids of the first `batch` rows, int64 `[batch, longest]`, padded with 0."""
        rows = [[*trace.prompt, *trace.completion] for trace in (self.traces[i] for i in self.order[:batch])]
        longest = max(len(row) for row in rows)
        return self.tensor([row + [0] * (longest - len(row)) for row in rows])

    @property
    def asks_policy(self) -> bool:
        """Whether some eviction has no recorded positions, so that the policy must choose again."""
        return any(e.positions is None for trace in self.traces for e in trace.evictions)

    @property
    def capacity(self) -> int:
        """Slots the replay's cache needs: the budget, or none where everything is one round."""
        return max(trace.budget or 0 for trace in self.traces) if self.rounds > 1 else 0

    def round(self, j: int) -> Round:
        """Round j's tensors, made when asked for."""
        members = [i for i in self.order if len(self.traces[i].evictions) >= j]
        spans = [_span(self.traces[i], j) for i in members]
        width = max(stop - start for start, stop in spans)
        ids, positions, picked, targets, rows, tokens = [], [], [], [], [], []
        for line, (i, (start, stop)) in enumerate(zip(members, spans, strict=True)):
            trace, padding = self.traces[i], width - (stop - start)
            ids += [*trace.fed[start:stop], *[0] * padding]
            positions += [*range(start, stop), *[EMPTY] * padding]
            first = max(start, len(trace.prompt) - 1)
            picked += range(line * width + first - start, line * width + stop - start)
            answered = range(first - len(trace.prompt) + 1, stop - len(trace.prompt) + 1)
            targets += trace.completion[answered.start : answered.stop]
            rows += [i] * len(answered)
            tokens += answered
        evictions = [self.traces[i].evictions[j - 1] for i in members] if j else []
        most = max((e.count for e in evictions), default=0)
        shape = (len(members), width)
        return Round(
            self.tensor(ids).view(shape),
            self.tensor(positions).view(shape),
            self.tensor(picked),
            self.tensor(targets),
            self.tensor(rows),
            self.tensor(tokens),
            self.tensor([e.count for e in evictions]),
            most,
            self._recorded([e.positions for e in evictions], most),
        )

    def _recorded(self, positions: list[Tensor | None], most: int) -> Tensor | None:
        if not positions or any(p is None for p in positions):
            return None
        layers, heads, _ = positions[0].shape
        recorded = torch.full((layers, len(positions), heads, most), EMPTY, dtype=torch.int64)
        for line, gone in enumerate(positions):
            recorded[:, line, :, : gone.shape[-1]] = gone
        return recorded.to(self.device)

    def tensor(self, values: list[int]) -> Tensor:
        """int64 on the plan's device."""
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def _span(trace: Trace, j: int) -> tuple[int, int]:
    """First and one past the last of the fed tokens (prompt included) of round j."""
    start = len(trace.prompt) + trace.evictions[j - 1].step if j else 0
    stop = len(trace.prompt) + trace.evictions[j].step if j < len(trace.evictions) else len(trace.fed)
    return start, stop
