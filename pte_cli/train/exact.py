"""The `exact` gradient of the cache-aware objective, through evicted tokens, cache and encoder, at one round's memory.

A first pass without gradients puts on a tape what every eviction took and the state before it. Then the rounds are
replayed last to first. Going backwards, the cache is brought back to what it was: the tokens of a round are taken out,
what was evicted before it is put back. A second cache of the same layout holds, for each cached token, the gradient
that later rounds and evictions sent to its key and value; when the round that made the token is replayed, its loss is
extended by <K, gradient of K> + <V, gradient of V>.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pte_cli.api import Evicted, State
from pte_cli.rollout.cache import EMPTY, BoundedCache
from pte_cli.rollout.evict import find_slots
from pte_cli.train.forward import Forward, Loss, Scored, evicted_of, evicted_record, gradient_of, part
from pte_cli.train.rounds import Round
from pte_cli.train.tape import Tape
from pte_cli.train.truncated import backward_linked


def exact(forward: Forward, loss: Loss) -> State:
    """Fill in the log-probabilities and accumulate the gradients of `loss` in the trainable parameters.

    Returns the encoder state of the last round, of the rows that reach it.
    """
    model, plan = forward.model, forward.plan
    with Tape(model.device) as tape:
        cache = forward.new_cache()
        last = state = _to_the_last_round(forward, cache, tape)
        cache.observed = None
        gradients = Gradients.zeros(cache)
        carried: State = {}
        for j in reversed(range(plan.rounds)):
            round_ = plan.round(j)
            rows, sent = cache.first(round_.batch), gradients.first(round_.batch)
            # The last round's tokens never went into the cache, and nothing came after them.
            own = sent.take_out(rows, round_) if j + 1 < plan.rounds else None
            leaf = {name: tensor.detach().requires_grad_() for name, tensor in state.items()}
            _backward(forward, loss, rows, round_, leaf, sent, own)
            gradient = gradient_of(leaf)
            for name, tensor in carried.items():
                gradient[name][:, : tensor.shape[1]] += tensor
            if j == 0:
                backward_linked(model.init_state(round_.batch), gradient)
                break
            record = tape.pop()
            state = part(record, "state.")
            before = {name: tensor[:, : round_.batch].detach().requires_grad_() for name, tensor in state.items()}
            evicted = evicted_of(record)
            evicted.keys.requires_grad_()
            evicted.values.requires_grad_()
            backward_linked(model.absorb(before, forward.readable(evicted, before, rows, round_)), gradient)
            sent.put_back(rows, evicted)
            carried = gradient_of(before)
    return last


def _to_the_last_round(forward: Forward, cache: BoundedCache, tape: Tape) -> State:
    """The pass without gradients. Leaves `cache` as it is when the last round begins, with the evictions and the states
    before them on the tape; returns the last round's state."""
    model, plan = forward.model, forward.plan
    with torch.no_grad():
        state = model.init_state(len(plan.traces))
        for j in range(plan.rounds):
            round_ = plan.round(j)
            rows = cache.first(round_.batch)
            if j:
                record = {f"state.{name}": tensor for name, tensor in state.items()}
                before = {name: tensor[:, : round_.batch] for name, tensor in state.items()}
                evicted = forward.evict(rows, round_)
                state = model.absorb(before, forward.readable(evicted, before, rows, round_))
                tape.push(record | evicted_record(evicted))
            if j + 1 < plan.rounds:
                forward.hidden(rows, round_, state)
                rows.commit()
    return state


def _backward(
    forward: Forward, loss: Loss, rows: BoundedCache, round_: Round, state: State, sent: Gradients, own: Own | None
) -> None:
    """Back-propagate one round: its loss, and what later rounds `own` sent to its tokens."""
    rows.keys, rows.values = rows.keys.detach().requires_grad_(), rows.values.detach().requires_grad_()
    logprobs = forward.log_probs(rows, round_, state)
    total = loss(Scored(logprobs, round_.rows, round_.tokens))
    if own is not None:
        for layer, (keys, values) in enumerate(rows.appended):
            total = (
                total + (keys * own[0][layer].to(keys.dtype)).sum() + (values * own[1][layer].to(values.dtype)).sum()
            )
    total.backward()
    sent.keys.add_(rows.keys.grad)
    sent.values.add_(rows.values.grad)


Own = tuple[Tensor, Tensor]
"""Gradients with respect to the keys and values of a round's tokens, `[L, b, Hkv, T, D]` each."""


@dataclass(frozen=True)
class Gradients:
    """For each slot of a cache, the gradient that reached its key and value so far; zero in empty slots.

    keys, values: `[L, B, Hkv, C, D]`, float32 at least.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def zeros(cls, cache: BoundedCache) -> Gradients:
        dtype = torch.promote_types(cache.keys.dtype, torch.float32)
        return cls(torch.zeros_like(cache.keys, dtype=dtype), torch.zeros_like(cache.values, dtype=dtype))

    def first(self, batch: int) -> Gradients:
        """Those of the first `batch` rows, in the same memory."""
        return Gradients(self.keys[:, :batch], self.values[:, :batch])

    def take_out(self, cache: BoundedCache, round_: Round) -> Own:
        """The gradients of the round's own tokens; their slots in `cache` become free."""
        wanted = round_.positions[None, :, None, :].expand(*cache.positions.shape[:-1], -1)
        index = self._index(find_slots(cache.positions, wanted))
        real = (round_.positions != EMPTY)[None, :, None, :, None]
        own = tuple(torch.where(real, sent.gather(3, index), 0) for sent in (self.keys, self.values))
        first = round_.positions[:, :1, None][None]
        last = round_.positions.amax(1)[None, :, None, None]
        mine = (cache.positions >= first) & (cache.positions <= last)
        cache.positions.masked_fill_(mine, EMPTY)
        for sent in (self.keys, self.values):
            sent.masked_fill_(mine.unsqueeze(-1), 0)
        return own

    def put_back(self, cache: BoundedCache, evicted: Evicted) -> None:
        """Store what an eviction took in `cache` again, with the gradients that the encoder sent it."""
        slots, real = cache.take(evicted.positions)
        index, real = self._index(slots), real.unsqueeze(-1)
        with torch.no_grad():
            for target, new in (
                (cache.keys, evicted.keys),
                (cache.values, evicted.values),
                (self.keys, evicted.keys.grad),
                (self.values, evicted.values.grad),
            ):
                fresh = (
                    torch.zeros((), dtype=target.dtype, device=target.device) if new is None else new.to(target.dtype)
                )
                target.scatter_(3, index, torch.where(real, fresh, target.gather(3, index)))

    def _index(self, slots: Tensor) -> Tensor:
        """`slots` `[1 or L, b, 1 or Hkv, n]` as an index into `[L, b, Hkv, C, D]`."""
        layers, rows, heads, _, size = self.keys.shape
        return slots.expand(layers, rows, heads, -1).unsqueeze(-1).expand(-1, -1, -1, -1, size)
