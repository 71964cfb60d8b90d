"""Scoring traces under exactly the context their rollout had, with gradients at the memory of one round.

`truncated` gradients (arXiv 2602.16839 does not back-propagate through the rollout): cached keys and values carry
none from round to round; encoder states do. Each round's loss is back-propagated at once, down to the state the
round read; at the end those gradients travel last to first through S_0 -> S_1 -> ... into the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pte_cli.api import Evicted, EvictionPolicy, State, pinned_length
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.evict import evict
from pte_cli.rollout.trace import Trace
from pte_cli.train.logprobs import CHUNK, token_log_probs
from pte_cli.train.rounds import Plan, Round
from pte_cli.train.tape import Tape


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


def replay(
    model: BoundedModel,
    traces: Sequence[Trace],
    policy: EvictionPolicy,
    *,
    temperature: float = 1.0,
    vocab: int | None = None,
    loss: Loss | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Log-probabilities `[B, longest completion]` of the traces' tokens, detached, 0 where a row has no token.

    With `loss`, gradients of the sum of its values are accumulated in the trainable parameters.
    Where a trace has no recorded positions, `policy` decides what leaves, from the same cache a rollout would have.
    """
    plan = Plan(traces, model.device)
    length = max(len(trace.completion) for trace in traces)
    dtype = torch.promote_types(model.dtype, torch.float32)
    result = torch.zeros(len(traces), length, dtype=dtype, device=model.device)

    def score(round_: Round, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)[round_.picked]
        logprobs = token_log_probs(flat, model.head, round_.targets, temperature, vocab, chunk)
        result[round_.rows, round_.tokens] = logprobs.detach().to(dtype)
        return logprobs

    with model.session(), Tape(model.device) as tape:
        cache = model.new_cache(policy, len(traces), plan.capacity, observe=plan.asks_policy)
        learns = loss is not None and _learns(model)
        with torch.no_grad():
            state = model.init_state(len(traces))
        evicted: Evicted | None = None
        for j in range(plan.rounds):
            round_ = plan.round(j)
            if j:
                cache.keep_first(round_.batch)
                before = {name: tensor[:, : round_.batch] for name, tensor in state.items()}
                with torch.no_grad():
                    evicted = _evict(cache, plan, round_, policy)
                    evicted = model.readable(evicted, before, lambda: (cache, plan.sequences(round_.batch)))  # noqa: B023
                    state = model.absorb(before, evicted)
            leaf = {name: tensor.detach().requires_grad_(learns) for name, tensor in state.items()}
            cache.begin_append(round_.positions)
            with torch.set_grad_enabled(loss is not None):
                hidden = model.hidden(round_.ids, round_.positions, cache, model.cores(leaf))
                logprobs = score(round_, hidden)
                if loss is not None:
                    loss(Scored(logprobs, round_.rows, round_.tokens)).backward()
            if j + 1 < plan.rounds:
                cache.commit()
            if learns and leaf:
                gradient = {name: t.grad if t.grad is not None else torch.zeros_like(t) for name, t in leaf.items()}
                tape.push(_record(gradient, before if j else {}, evicted))
        if len(tape):
            _through_states(model, tape, len(traces))
    return result


def _evict(cache, plan: Plan, round_: Round, policy: EvictionPolicy) -> Evicted:
    """What leaves each of the round's rows before it."""
    rows = torch.arange(round_.batch, device=cache.keys.device)
    lengths = plan.prompt_lengths[: round_.batch]
    pinned = plan.tensor([pinned_length(policy, n) for n in plan.prompts[: round_.batch]])
    return evict(cache, rows, lengths, pinned, round_.counts, round_.most, policy=policy, recorded=round_.recorded)


def _learns(model: BoundedModel) -> bool:
    return model.encoder is not None and any(p.requires_grad for p in model.encoder.parameters())


def _record(gradient: State, before: State, evicted: Evicted | None) -> State:
    """One round on the tape: the gradient of its state, and what that state was made from."""
    record = {f"grad.{name}": tensor for name, tensor in gradient.items()}
    record |= {f"before.{name}": tensor for name, tensor in before.items()}
    if evicted is not None:
        record |= {name: getattr(evicted, name) for name in ("keys", "values", "positions", "mask")}
        record |= {f"nll.{name}": tensor for name, tensor in (evicted.nll_gradient or {}).items()}
    return record


def _part(record: State, prefix: str) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in record.items() if name.startswith(prefix)}


def _through_states(model: BoundedModel, tape: Tape, batch: int) -> None:
    """Back-propagate the rounds' state gradients through S_j = absorb(S_(j-1), evicted), newest first."""
    carried: State = {}
    while len(tape):
        record = tape.pop()
        gradient = _part(record, "grad.")
        for name, tensor in carried.items():
            gradient[name][:, : tensor.shape[1]] += tensor
        if not len(tape):
            outputs = model.init_state(batch)
            before: State = {}
        else:
            before = {name: tensor.requires_grad_() for name, tensor in _part(record, "before.").items()}
            evicted = Evicted(
                record["keys"], record["values"], record["positions"], record["mask"], _part(record, "nll.") or None
            )
            outputs = model.absorb(before, evicted)
        linked = [name for name, tensor in outputs.items() if tensor.requires_grad]
        if linked:
            torch.autograd.backward([outputs[name] for name in linked], [gradient[name] for name in linked])
        carried = {name: t.grad if t.grad is not None else torch.zeros_like(t) for name, t in before.items()}
