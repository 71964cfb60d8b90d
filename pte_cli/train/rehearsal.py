"""How long a run will take: the parts of a step are tried before the first, and their times added up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pte_cli.config import GrpoConfig
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import RolloutEngine
from pte_cli.train.clock import Clock
from pte_cli.train.replay import Scored
from pte_cli.train.sft import likelihood_loss, token_weights, worked_traces

if TYPE_CHECKING:
    from pte_cli.train.loop import Trainer

TOKENS = 32
"""New tokens of a rehearsed completion, at most."""
FEW = 2
"""Sequences of a first replay that isn't timed: what has never run before takes longer."""
FORWARD = 1 / 3
"""What a replay without gradients costs, as a share of one with them."""


def rehearse(trainer: Trainer, length: float) -> float:
    """Seconds that the steps which are left will take, without checkpoints and measurements.

    length: new tokens of a sampled completion, as far as is known. For GRPO it is assumed that every completion
    teaches something. Leaves no trace: the same examples, weights and random numbers follow.
    """
    left, before = 0.0, 0
    position = trainer.examples.position()
    for phase, steps in trainer.config.phases():
        remaining = min(steps, before + steps - trainer.step)
        before += steps
        if remaining > 0:
            left += remaining * (_sft_step(trainer) if phase == "sft" else _grpo_step(trainer, length))
    trainer.examples.go_to(position)
    trainer.passes.last_state = {}
    for parameter in trainer.trained.values():
        parameter.grad = None
    return left


def grpo_seconds(
    rollout: float, replay: float, *, rows: int, replayed: int, longer: float, batch: int, grpo: GrpoConfig
) -> float:
    """Seconds of one GRPO step, all optimizer steps on a rollout shared out.

    rollout: of `rows` completions; replay: of `replayed` of them, with gradients. longer: how often as long a real
    completion is; batch: completions of a step.
    """
    replays = FORWARD * ((grpo.beta > 0) + (grpo.importance_sampling != "none")) + grpo.num_iterations * (
        1 + FORWARD * (grpo.loss_type == "gspo")
    )
    sampled = rollout * longer * math.ceil(batch / rows)
    return (sampled + replays * replay * longer * batch / replayed) / grpo.num_iterations


def _sft_step(trainer: Trainer) -> float:
    config = trainer.config
    mine = len(trainer.processes.share(config.sft.batch))
    examples = trainer.examples.worked(max(1, min(mine, config.train.micro_batch)))
    weights = token_weights(examples, config.sft.answer_weight).to(trainer.model.device)
    traces = worked_traces(examples, trainer.policy, trainer.budget.tokens, trainer.budget.frac)

    def replay(count: int) -> None:
        trainer.passes.backward(traces[:count], lambda rows: likelihood_loss(weights[rows]))

    replay(FEW)
    return _timed(trainer, lambda: replay(len(traces)))[0] * mine / len(examples)


def _grpo_step(trainer: Trainer, length: float) -> float:
    grpo, limit = trainer.config.grpo, trainer.sampling.max_new_tokens
    batch = max(1, len(trainer.processes.share(grpo.prompts))) * grpo.group_size
    rows, tokens = min(batch, trainer.engine.batch), min(limit, TOKENS)
    asked = trainer.examples.questions(math.ceil(rows / grpo.group_size))
    prompts = [asked[i // grpo.group_size].prompt for i in range(rows)]
    sampling = replace(trainer.sampling, max_new_tokens=tokens, end_ids=())
    # As it is without sampling.compile: compiling a step for these sizes is nothing the training will do.
    model = BoundedModel(trainer.model.model, shards=trainer.model.shards)
    engine = RolloutEngine(model, trainer.policy, trainer.budget, sampling, batch=rows)
    rollout, traces = _timed(trainer, lambda: engine.generate(prompts))
    part = traces[: trainer.config.train.micro_batch]
    trainer.passes.backward(part[:FEW], lambda _: _nothing)
    replay, _ = _timed(trainer, lambda: trainer.passes.backward(part, lambda _: _nothing))
    longer = min(length, limit) / tokens
    return grpo_seconds(rollout, replay, rows=rows, replayed=len(part), longer=longer, batch=batch, grpo=grpo)


def _nothing(scored: Scored) -> Tensor:
    """A loss whose gradients are zero and take as long as others."""
    return scored.logprobs.sum() * 0


def _timed(trainer: Trainer, work: Callable[[], Any]) -> tuple[float, Any]:
    clock = Clock(trainer.model.device)
    with clock("work"):
        done = work()
    return clock.seconds["work"], done
