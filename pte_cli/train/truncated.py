"""The `truncated` gradient: cached keys and values carry none from round to round, encoder states do.

As in the paper (arXiv 2602.16839), nothing is back-propagated through the rollout. Each round's loss is back-propagated
at once, down to the state the round read; at the end those gradients travel last to first through S_0 -> S_1 -> ...
into the encoder.
"""

from __future__ import annotations

import torch

from pte_cli.api import Evicted, State
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.train.forward import Forward, Loss, Scored, evicted_of, evicted_record, gradient_of, part
from pte_cli.train.tape import Tape


def truncated(forward: Forward, loss: Loss | None) -> State:
    """Fill in the log-probabilities; with `loss`, accumulate gradients in the trainable parameters.

    Returns the encoder state of the last round, of the rows that reach it.
    """
    model, plan = forward.model, forward.plan
    learns = loss is not None and forward.encoder_learns
    with Tape(model.device) as tape:
        cache = forward.new_cache()
        with torch.no_grad():
            state = model.init_state(len(plan.traces))
        before: State = {}
        evicted: Evicted | None = None
        for j in range(plan.rounds):
            round_ = plan.round(j)
            if j:
                cache = cache.first(round_.batch)
                before = {name: tensor[:, : round_.batch] for name, tensor in state.items()}
                with torch.no_grad():
                    evicted = forward.readable(forward.evict(cache, round_), before, cache, round_)
                    state = model.absorb(before, evicted)
            leaf = {name: tensor.detach().requires_grad_(learns) for name, tensor in state.items()}
            with torch.set_grad_enabled(loss is not None):
                logprobs = forward.log_probs(cache, round_, leaf)
                if loss is not None:
                    loss(Scored(logprobs, round_.rows, round_.tokens)).backward()
            if j + 1 < plan.rounds:
                cache.commit()
            if learns and leaf:
                record = {f"grad.{name}": tensor for name, tensor in gradient_of(leaf).items()}
                record |= {f"before.{name}": tensor for name, tensor in before.items()}
                tape.push(record if evicted is None else record | evicted_record(evicted))
        if len(tape):
            _through_states(model, tape, len(plan.traces))
    return {name: tensor.detach() for name, tensor in state.items()}


def _through_states(model: BoundedModel, tape: Tape, batch: int) -> None:
    """Back-propagate the rounds' state gradients through S_j = absorb(S_(j-1), evicted), newest first."""
    carried: State = {}
    while len(tape):
        record = tape.pop()
        gradient = part(record, "grad.")
        for name, tensor in carried.items():
            gradient[name][:, : tensor.shape[1]] += tensor
        before = {name: tensor.requires_grad_() for name, tensor in part(record, "before.").items()}
        outputs = model.absorb(before, evicted_of(record)) if len(tape) else model.init_state(batch)
        backward_linked(outputs, gradient)
        carried = gradient_of(before)


def backward_linked(outputs: State, gradient: State) -> None:
    """Back-propagate `gradient` from those `outputs` that depend on something that learns."""
    linked = [name for name, tensor in outputs.items() if tensor.requires_grad]
    if linked:
        torch.autograd.backward([outputs[name] for name in linked], [gradient[name] for name in linked])
