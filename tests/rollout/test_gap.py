"""The promise: replay sees exactly the context the rollout had."""

from __future__ import annotations

import pytest
import torch
from helpers import FAMILIES, NOISE, adapted, policy, prompts

from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay

LENGTHS = [5, 9, 12, 3, 14, 7, 6, 4, 8, 10, 11, 13, 5, 9]


class ByHead:
    """A policy whose choice differs between layers and heads: the largest first key coordinate stays."""

    granularity = "head"
    bounded = True

    def score(self, view):
        return view.keys[..., 0]


class ByLayer(ByHead):
    """One choice per layer."""

    granularity = "layer"

    def score(self, view):
        return view.keys[..., 0].mean(2, keepdim=True)


def rollout(model, rule, budget, frac=0.25, rows=3, tokens=90, temperature=1.0, **more):
    sampling = Sampling(temperature=temperature, max_new_tokens=tokens, end_ids=(1, 3), vocab=60, **more)
    return RolloutEngine(model, rule, Budget(budget, frac), sampling, batch=rows).generate(prompts(LENGTHS), seed=3)


def largest_gap(model, rule, traces, temperature=1.0):
    scored = replay(model, traces, rule, temperature=temperature, vocab=60)
    return max(
        (scored[i, : len(t.completion)] - t.logprobs.to(scored.dtype)).abs().max().item() for i, t in enumerate(traces)
    )


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("encoder", ["pte", "none"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, NOISE), (torch.float64, 1e-10)])
def test_gap_over_no_to_twenty_evictions(family, encoder, dtype, bound):
    model = adapted(encoder, family=family, dtype=dtype)
    traces = rollout(model, policy("sliding"), budget=24) + rollout(model, policy("sliding"), budget=24, tokens=30)
    evictions = {len(trace.evictions) for trace in traces}
    assert min(evictions) == 0
    assert max(evictions) >= 15
    assert len({len(trace.completion) for trace in traces}) > 3
    assert {trace.finish for trace in traces} == {"stop", "length"}
    assert largest_gap(model, policy("sliding"), traces) <= bound


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen2", "llama"}))
@pytest.mark.parametrize("encoder", ["pte", "none"])
def test_gap_of_every_family(family, encoder):
    """Own windows, several RoPE bases, layers without RoPE, scaled RoPE, normed heads, one KV head."""
    model = adapted(encoder, family=family)
    traces = rollout(model, policy("sliding"), budget=24)
    assert max(len(trace.evictions) for trace in traces) >= 15
    assert largest_gap(model, policy("sliding"), traces) <= NOISE
    precise = adapted(encoder, family=family, dtype=torch.float64)
    traces = rollout(precise, ByHead(), budget=24, tokens=50)
    assert largest_gap(precise, ByHead(), traces) <= 1e-10


@pytest.mark.parametrize("limit", [0, 3000])
def test_gap_when_the_fused_kernel_takes_over(monkeypatch, limit):
    """Always, or only for the prompts and long rounds."""
    monkeypatch.setattr("pte_cli.rollout.attention.EXPLICIT", limit)
    model = adapted("pte", dtype=torch.float64)
    traces = rollout(model, policy("sliding"), budget=24)
    assert largest_gap(model, policy("sliding"), traces) <= 1e-10


@pytest.mark.parametrize(
    "rule", [ByHead(), ByLayer(), policy("full"), policy("sliding")], ids=lambda r: type(r).__name__
)
@pytest.mark.parametrize("frac", [0.05, 0.5, 1.0])
def test_gap_for_every_granularity_and_share(rule, frac):
    model = adapted("pte", dtype=torch.float64)
    traces = rollout(model, rule, budget=24, frac=frac)
    assert largest_gap(model, rule, traces) <= 1e-10


@pytest.mark.parametrize(
    "options",
    [
        {"initial": "global"},
        {"normalize": "row"},
        {"normalize": "frobenius"},
        {"read": "value"},
        {"rotated_keys": True},
        {"global_tokens": 5},
    ],
    ids=str,
)
def test_gap_for_every_encoder_option(options):
    model = adapted("pte", dtype=torch.float64, options=options)
    traces = rollout(model, policy("sliding"), budget=24)
    assert largest_gap(model, policy("sliding"), traces) <= 1e-10


def test_gap_at_another_temperature_and_with_a_nucleus():
    model = adapted("pte", dtype=torch.float64)
    traces = rollout(model, policy("sliding"), budget=24, temperature=0.7, top_p=0.9, top_k=20)
    assert largest_gap(model, policy("sliding"), traces, temperature=0.7) <= 1e-10


def test_forgetting_one_eviction_would_show():
    """The gap is not small by itself: replaying with one eviction shifted by a token is seen at once."""
    model = adapted("none", dtype=torch.float64)
    traces = rollout(model, policy("sliding"), budget=24)
    victim = next(i for i, trace in enumerate(traces) if len(trace.evictions) > 2)
    object.__setattr__(traces[victim].evictions[1], "positions", traces[victim].evictions[1].positions + 2)
    assert largest_gap(model, policy("sliding"), traces) > 1e-4


def test_worked_traces_evict_as_a_rollout_would():
    """SFT on the tokens of a rollout, with the policy asked again, sees the rollout's own evictions."""
    from pte_cli.rollout.trace import worked_trace

    model = adapted("pte", dtype=torch.float64)
    for rule in (policy("sliding"), ByHead()):
        traces = rollout(model, rule, budget=24)
        worked = [worked_trace(t.prompt, t.completion, 24, 0.25) for t in traces]
        assert [[e.step for e in w.evictions] for w in worked] == [[e.step for e in t.evictions] for t in traces]
        live = replay(model, worked, rule, vocab=60)
        recorded = replay(model, traces, rule, vocab=60)
        assert (live - recorded).abs().max().item() <= 1e-10
