"""What one training step keeps alive: rollout, replay with gradients, optimizer update."""

from __future__ import annotations

from typing import Literal

import torch

from pte_cli.api import EvictionPolicy
from pte_cli.profile.live import LiveBytes
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay


def train_step_peak(
    model: BoundedModel,
    policy: EvictionPolicy,
    budget: Budget,
    *,
    rows: int,
    prompt: int,
    tokens: int,
    gradient: Literal["truncated", "exact"] = "truncated",
) -> dict[str, int]:
    """Peak bytes of live tensors (weights included) after each phase of one step: `rollout`, `replay`, `update`.

    `rows` random prompts of `prompt` tokens, `tokens` sampled for each (nothing ends a row early). The model is
    trained one step; give a copy if that matters. Each figure is the peak since the start of the step.
    """
    vocab = model.head.weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(vocab, (rows, prompt), generator=generator).tolist()
    trained = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    peaks = {}
    with LiveBytes() as live:
        live.watch(*model.model.parameters(), *model.model.buffers())
        sampling = Sampling(max_new_tokens=tokens)
        traces = RolloutEngine(model, policy, budget, sampling, batch=rows).generate(prompts)
        peaks["rollout"] = live.peak
        total = sum(len(trace.completion) for trace in traces)
        replay(model, traces, policy, loss=lambda scored: -scored.logprobs.sum() / total, gradient=gradient)
        peaks["replay"] = live.peak
        optimizer.step()
        peaks["update"] = live.peak
    return peaks
