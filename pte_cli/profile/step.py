"""What one training step keeps alive: rollout, replay with gradients, optimizer update."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from pte_cli.api import EvictionPolicy
from pte_cli.profile.live import LiveBytes, Peak
from pte_cli.profile.profiled import OPTIMIZER, ProfiledModel
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.rollout.trace import Trace
from pte_cli.train.replay import replay

Gradient = Literal["truncated", "exact"]
PHASES = ("rollout", "replay", "update")


@dataclass(frozen=True)
class Setting:
    """A training step: `rows` prompts of `prompt` tokens, `length` sampled for each, replayed `micro_batch` at a time.

    budget: as the engine takes it. foreach: as AdamW takes it; None leaves the choice to torch.
    """

    rows: int
    prompt: int
    length: int
    budget: Budget
    gradient: Gradient = "exact"
    micro_batch: int = 128
    foreach: bool | None = None

    def prompts(self, vocab: int) -> list[list[int]]:
        """Random ones, always the same."""
        draw = random.Random(0)
        return [[draw.randrange(vocab) for _ in range(self.prompt)] for _ in range(self.rows)]


Rollout = Callable[[RolloutEngine, list[list[int]]], Sequence[Trace]]


def step_peaks(
    model: ProfiledModel, policy: EvictionPolicy, setting: Setting, *, trained_before: bool, rollout: Rollout
) -> dict[str, Peak]:
    """The most bytes alive in each of `PHASES`, weights included. Call it inside the model's `live` block.

    trained_before: as in every step but the first, the optimizer has its moments already. rollout: how the engine is
    run; it returns traces of `setting.length` tokens. The model is trained one step; give a copy if that matters.
    """
    live, peaks = model.live, {}
    optimizer = torch.optim.AdamW(model.trained, lr=1e-4, weight_decay=0.0, foreach=setting.foreach)
    if trained_before:
        make_moments(model, optimizer)
    live.restart()
    sampling = Sampling(max_new_tokens=setting.length)
    engine = RolloutEngine(model, policy, setting.budget, sampling, batch=setting.rows)
    traces = rollout(engine, setting.prompts(model.head.weight.shape[0]))
    peaks["rollout"] = live.highest

    del engine
    live.restart()
    with model.gradients_told():
        replay_all(model, traces, policy, setting)
    peaks["replay"] = live.highest

    live.restart()
    with live.label(OPTIMIZER):
        torch.nn.utils.clip_grad_norm_(model.trained, 1.0, foreach=setting.foreach)
        optimizer.step()
    peaks["update"] = live.highest
    return peaks


def replay_all(model: BoundedModel, traces: Sequence[Trace], policy: EvictionPolicy, setting: Setting) -> None:
    """Gradients of the mean negative log-likelihood of all traces; as for memory and time, one loss is like another."""
    total = sum(len(trace.completion) for trace in traces)
    for start in range(0, len(traces), setting.micro_batch):
        replay(
            model,
            traces[start : start + setting.micro_batch],
            policy,
            loss=lambda scored: -scored.logprobs.sum() / total,
            gradient=setting.gradient,
        )


def make_moments(model: ProfiledModel, optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer its moments by a step with zero gradients, which changes no weight."""
    with model.live.label(OPTIMIZER):
        for parameter in model.trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def generate(engine: RolloutEngine, prompts: list[list[int]]) -> list[Trace]:
    """The rollout as it is."""
    return engine.generate(prompts)


def train_step_peak(
    model: BoundedModel,
    policy: EvictionPolicy,
    budget: Budget,
    *,
    rows: int,
    prompt: int,
    tokens: int,
    gradient: Gradient = "exact",
) -> dict[str, int]:
    """Peak bytes of live tensors (weights included) after each phase of a first step: `rollout`, `replay`, `update`.

    `rows` random prompts of `prompt` tokens, `tokens` sampled for each (nothing ends a row early). The model is
    trained one step; give a copy if that matters. Each figure is the peak since the start of the step.
    """
    setting = Setting(rows, prompt, tokens, budget, gradient, micro_batch=rows)
    with LiveBytes() as live:
        profiled = ProfiledModel(model.model, live, gradient_checkpointing=model.gradient_checkpointing)
        peaks = step_peaks(profiled, policy, setting, trained_before=False, rollout=generate)
    so_far = 0
    return {phase: (so_far := max(so_far, peaks[phase].total)) for phase in PHASES}
