"""What both gradients share: one round's eviction, and its forward pass to log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pte_cli.api import Evicted, EvictionPolicy, State, pinned_length
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import BoundedCache
from pte_cli.rollout.evict import evict
from pte_cli.train.logprobs import token_log_probs
from pte_cli.train.rounds import Plan, Round


@dataclass(frozen=True)
class Scored:
    """Some tokens of a replay, N of them, in no order worth relying on.

    logprobs: `[N]` with gradients; rows, tokens: int64 `[N]`, the trace and the token of its completion.
    """

    logprobs: Tensor
    rows: Tensor
    tokens: Tensor


Loss = Callable[[Scored], Tensor]
"""A sum over tokens (so that rounds add up), already divided by whatever the whole batch is divided by."""


@dataclass(frozen=True)
class Forward:
    """A replay's fixed parts. result: `[B, longest completion]`, filled in round by round."""

    model: BoundedModel
    plan: Plan
    policy: EvictionPolicy
    result: Tensor
    temperature: float
    vocab: int | None
    chunk: int

    def new_cache(self) -> BoundedCache:
        """An empty cache for all rows."""
        plan = self.plan
        return self.model.new_cache(self.policy, len(plan.traces), plan.capacity, observe=plan.asks_policy)

    def evict(self, cache: BoundedCache, round_: Round) -> Evicted:
        """What leaves each of the round's rows before it, as it lies in the cache; the slots are freed."""
        plan = self.plan
        rows = torch.arange(round_.batch, device=cache.keys.device)
        lengths = plan.prompt_lengths[: round_.batch]
        pinned = plan.tensor([pinned_length(self.policy, n) for n in plan.prompts[: round_.batch]])
        return evict(
            cache, rows, lengths, pinned, round_.counts, round_.most, policy=self.policy, recorded=round_.recorded
        )

    def readable(self, evicted: Evicted, before: State, cache: BoundedCache, round_: Round) -> Evicted:
        """`evicted` as the encoder wants it."""
        return self.model.readable(evicted, before, lambda: (cache, self.plan.sequences(round_.batch)))

    def hidden(self, cache: BoundedCache, round_: Round, state: State) -> Tensor:
        """The round's last hidden states `[b, T, hidden]`; its tokens stand appended to `cache`."""
        cache.begin_append(round_.positions)
        return self.model.hidden(round_.ids, round_.positions, cache, self.model.cores(state))

    def log_probs(self, cache: BoundedCache, round_: Round, state: State) -> Tensor:
        """The round's log-probabilities `[N]`, which are also written to `result`."""
        flat = self.hidden(cache, round_, state).flatten(0, 1)[round_.picked]
        logprobs = token_log_probs(flat, self.model.head, round_.targets, self.temperature, self.vocab, self.chunk)
        self.result[round_.rows, round_.tokens] = logprobs.detach().to(self.result.dtype)
        return logprobs

    @property
    def encoder_learns(self) -> bool:
        encoder = self.model.encoder
        return encoder is not None and any(p.requires_grad for p in encoder.parameters())


def part(record: State, prefix: str) -> State:
    """The tensors of `record` whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in record.items() if name.startswith(prefix)}


def evicted_record(evicted: Evicted) -> State:
    """`evicted` as named tensors for the tape."""
    record = {name: getattr(evicted, name) for name in ("keys", "values", "positions", "mask")}
    return record | {f"nll.{name}": tensor for name, tensor in (evicted.nll_gradient or {}).items()}


def evicted_of(record: State) -> Evicted:
    """The reverse of `evicted_record`."""
    return Evicted(record["keys"], record["values"], record["positions"], record["mask"], part(record, "nll.") or None)


def gradient_of(leaf: State) -> State:
    """The gradients that arrived at `leaf`, zero where none did."""
    return {name: t.grad if t.grad is not None else torch.zeros_like(t) for name, t in leaf.items()}
