"""Replays of a batch in micro-batches: with gradients, without, and of the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pte_cli.api import EvictionPolicy, State
from pte_cli.config import TrainConfig
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.trace import Trace
from pte_cli.train.replay import Loss, Scored, replay


class Passes:
    """Replays traces of any number, `settings.micro_batch` at a time, under the contexts they had.

    A loss is divided by what the whole batch is divided by, so that micro-batches add up to its gradient.
    last_state: the encoder state of the last round of the last replay, for those rows that reached it.
    """

    def __init__(
        self, model: BoundedModel, policy: EvictionPolicy, settings: TrainConfig, temperature: float, vocab: int
    ) -> None:
        self.model, self.policy, self.settings = model, policy, settings
        self.temperature, self.vocab = temperature, vocab
        self.last_state: State = {}

    def backward(self, traces: Sequence[Trace], loss_for: Callable[[slice], Loss]) -> tuple[float, Tensor]:
        """Accumulate gradients of the whole batch; its loss, and the log-probabilities `[B, T]` of its tokens.

        loss_for: the loss of the traces in a slice, whose `rows` count from the slice's start.
        """
        total = torch.zeros((), device=self.model.device, dtype=torch.float64)

        def part_of(part: Sequence[Trace], rows: slice) -> Tensor:
            inner = loss_for(rows)

            def loss(scored: Scored) -> Tensor:
                value = inner(scored)
                total.add_(value.detach())
                return value

            return self._replay(self.model, part, loss)

        logprobs = self._in_parts(traces, part_of)
        return total.item(), logprobs

    @torch.no_grad()
    def logprobs(self, traces: Sequence[Trace]) -> Tensor:
        """Log-probabilities `[B, T]` under the weights as they are."""
        return self._in_parts(traces, lambda part, _: self._replay(self.model, part, None))

    @torch.no_grad()
    def reference(self, traces: Sequence[Trace]) -> Tensor:
        """Log-probabilities `[B, T]` of the model without adapter, under the same traces."""
        with self.model.adapter_off() as plain:
            return self._in_parts(traces, lambda part, _: self._replay(plain, part, None))

    def _replay(self, model: BoundedModel, traces: Sequence[Trace], loss: Loss | None) -> Tensor:
        """One replay. Worked examples have no sampling temperature: they are scored at 1."""
        return replay(
            model,
            traces,
            self.policy,
            temperature=self.temperature if traces[0].logprobs is not None else 1.0,
            vocab=self.vocab,
            loss=loss,
            gradient=self.settings.gradient,
            on_last_state=self._remember if loss is not None else None,
        )

    def _remember(self, state: State) -> None:
        self.last_state = state

    def _in_parts(self, traces: Sequence[Trace], work: Callable[[Sequence[Trace], slice], Tensor]) -> Tensor:
        """`work` on micro-batches, its `[b, t]` results put together as `[B, T]`."""
        size = self.settings.micro_batch
        slices = [slice(i, min(i + size, len(traces))) for i in range(0, len(traces), size)]
        return pad([row for rows in slices for row in work(traces[rows], rows)])


def pad(rows: Sequence[Tensor]) -> Tensor:
    """Rows of different lengths as one `[B, longest]` tensor, filled up with zeros."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
