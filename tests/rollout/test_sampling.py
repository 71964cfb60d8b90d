"""Sampling against its definition."""

from __future__ import annotations

import pytest
import torch

from pte_cli.rollout.sampling import Sampling, log_probs, sample, uniforms

PROBS = torch.tensor([0.4, 0.1, 0.3, 0.2])


def draw(sampling, grid=10_000):
    """Shares of each token when the uniform number runs evenly through [0, 1)."""
    uniform = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    tokens = sample(PROBS.log().expand(grid, -1), uniform, sampling)
    return (torch.bincount(tokens, minlength=4) / grid).tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.4, 0.1, 0.3, 0.2]),
        (Sampling(top_k=2), [4 / 7, 0, 3 / 7, 0]),
        (Sampling(top_k=4), [0.4, 0.1, 0.3, 0.2]),
        (Sampling(top_p=0.65), [4 / 7, 0, 3 / 7, 0]),
        (Sampling(top_p=0.75), [4 / 9, 0, 3 / 9, 2 / 9]),
        (Sampling(top_p=0.01), [1, 0, 0, 0]),
        (Sampling(top_k=3, top_p=0.5), [4 / 7, 0, 3 / 7, 0]),
        (Sampling(temperature=0), [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_shares(sampling, expected):
    assert draw(sampling) == pytest.approx(expected, abs=2e-4)


def test_impossible_tokens_are_never_drawn_at_the_edges():
    logprobs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log()
    for uniform in (0.0, 0.5, 1 - 2**-24):
        assert sample(logprobs, torch.tensor([uniform]), Sampling()).item() in (1, 3)


def test_log_probs_at_a_temperature_over_the_tokens_that_may_be_sampled():
    logits = torch.tensor([[1.0, 3.0, 2.0, 50.0]])
    expected = torch.tensor([[1.0, 3.0, 2.0]]).div(0.5).log_softmax(-1)
    assert torch.allclose(log_probs(logits, 0.5, vocab=3), expected)
    assert torch.allclose(log_probs(logits, 0.0, vocab=3), logits[:, :3].log_softmax(-1))


def test_every_sequence_has_its_own_numbers():
    assert torch.equal(uniforms(1, 2, 8), uniforms(1, 2, 16)[:8])
    assert not torch.equal(uniforms(1, 2, 8), uniforms(1, 3, 8))
    assert not torch.equal(uniforms(1, 2, 8), uniforms(2, 2, 8))
    assert uniforms(0, 0, 10_000).min() >= 0
    assert uniforms(0, 0, 10_000).mean().item() == pytest.approx(0.5, abs=0.02)
