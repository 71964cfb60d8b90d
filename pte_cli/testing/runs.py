"""Short rollouts and replays of small models, as the checks use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from pte_cli.api import EvictionPolicy
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.rollout.trace import Trace
from pte_cli.testing.contract import require
from pte_cli.testing.models import VOCAB, prompts
from pte_cli.train.replay import replay

BUDGET, FRAC = 24, 0.25
LENGTHS = (5, 12, 9, 3)
"""Prompts of different lengths: rows are full at different times and lose different numbers of tokens."""
NOISE = 5e-5
"""Largest difference of a token's log-probability, in float32, that is rounding and not another context.

Processors round differently: over three instruction sets the built-in strategies reached 1.2e-5, and one eviction
shifted by a token makes more than 1e-4. What has to be exact is checked in float64."""


class Oldest:
    """The oldest tokens leave: the policy that encoders are checked under."""

    granularity = "uniform"
    bounded = True

    def score(self, view):
        return view.positions


def rollout(
    model: BoundedModel,
    policy: EvictionPolicy,
    *,
    lengths: Sequence[int] = LENGTHS,
    tokens: int = 40,
    rows: int = 3,
    temperature: float = 1.0,
    budget: int = BUDGET,
) -> list[Trace]:
    """Completions of random prompts, `rows` at a time, cut off at an end token or at `tokens`."""
    sampling = Sampling(temperature=temperature, max_new_tokens=tokens, end_ids=(1,), vocab=VOCAB)
    engine = RolloutEngine(model, policy, Budget(budget, FRAC), sampling, batch=rows)
    return engine.generate(prompts(lengths), seed=3)


def asked_again(traces: Sequence[Trace]) -> list[Trace]:
    """The traces without what left at their evictions: a replay asks the policy again, as for worked examples."""
    return [replace(t, evictions=tuple(replace(e, positions=None) for e in t.evictions)) for t in traces]


def scored(model: BoundedModel, traces: Sequence[Trace], policy: EvictionPolicy) -> torch.Tensor:
    """The replay's log-probabilities `[B, T]` at temperature 1."""
    return replay(model, traces, policy, vocab=VOCAB)


def largest_gap(model: BoundedModel, traces: Sequence[Trace], policy: EvictionPolicy) -> float:
    """Largest difference between the log-probability a token had in the rollout and has in the replay."""
    found = scored(model, traces, policy)
    gaps = [(found[i, : len(t.completion)] - t.logprobs.to(found.dtype)).abs().max() for i, t in enumerate(traces)]
    return torch.stack(gaps).max().item()  # NaN where one is, which is no gap that is small enough


def require_same(first: Sequence[Trace], second: Sequence[Trace], what: str, tolerance: float = 1e-9) -> None:
    """CheckFailed unless both lists have the same tokens, log-probabilities and evictions. `what` names the two."""
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        steps = [(e.step, e.count) for e in a.evictions] == [(e.step, e.count) for e in b.evictions]
        same = steps and all(
            torch.equal(x.positions.sort(-1).values, y.positions.sort(-1).values)
            for x, y in zip(a.evictions, b.evictions, strict=True)
        )
        require(same or a.completion != b.completion, f"{what}: sequence {i} lost other tokens")
        require(a.completion == b.completion, f"{what}: sequence {i} has other tokens")
        gap = (a.logprobs - b.logprobs).abs().max().item()
        require(gap <= tolerance, f"{what}: log-probabilities of sequence {i} differ by {gap:.1e}")
