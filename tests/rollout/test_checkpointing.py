"""Gradient checkpointing changes what is kept in memory, and nothing else."""

from __future__ import annotations

import pytest
import torch
from helpers import adapted, policy, prompts

from pte_cli.profile.live import LiveBytes
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay


def traces_of(model, budget=24, tokens=60, lengths=(5, 9, 12, 3), end_ids=(1, 3)):
    sampling = Sampling(max_new_tokens=tokens, end_ids=end_ids)
    return RolloutEngine(model, policy("sliding"), Budget(budget, 0.25), sampling, batch=3).generate(
        prompts(list(lengths)), seed=4
    )


def gradients(model, traces):
    logprobs = replay(
        model, traces, policy("sliding"), loss=lambda scored: (scored.logprobs * (scored.tokens + 1)).sum() / 100
    )
    found = {name: p.grad.clone() for name, p in model.model.named_parameters() if p.requires_grad}
    model.model.zero_grad()
    return logprobs, found


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "smollm3"])
@pytest.mark.parametrize("encoder", ["pte", "none"])
def test_gradients_are_the_same_with_and_without(family, encoder):
    model = adapted(encoder, family=family, dtype=torch.float64)
    traces = traces_of(model)
    assert max(len(trace.evictions) for trace in traces) >= 5
    plain_logprobs, plain = gradients(model, traces)
    model.gradient_checkpointing = True
    logprobs, again = gradients(model, traces)
    assert torch.equal(logprobs, plain_logprobs)
    for name, gradient in plain.items():
        assert gradient.abs().max() > 0, name
        assert (again[name] - gradient).abs().max() <= 1e-10, name


def test_layers_have_their_own_forward_again_afterwards():
    model = adapted("pte")
    model.gradient_checkpointing = True
    gradients(model, traces_of(model, tokens=20))
    assert all("forward" not in layer.__dict__ for layer in model.backbone.layers)


def test_it_saves_most_of_a_rounds_activations():
    """Eight layers: about one layer's activations plus eight inputs instead of eight layers' activations."""
    model = adapted("pte", layers=8, hidden=64, rank=8)
    traces = traces_of(model, budget=150, tokens=180, lengths=(12,) * 6, end_ids=())

    def peak():
        with LiveBytes() as live:
            gradients(model, traces)
        return live.peak

    plain = peak()
    model.gradient_checkpointing = True
    assert peak() < 0.4 * plain
