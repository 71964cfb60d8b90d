"""Memory of a training step does not grow with the length of the completions."""

from __future__ import annotations

import pytest
import torch
from helpers import adapted, policy

from pte_cli.profile.live import LiveBytes
from pte_cli.profile.step import train_step_peak
from pte_cli.rollout.engine import Budget


def peak(tokens, evict="sliding", gradient="truncated"):
    """Of the built-in model's sizes."""
    model, budget = adapted("pte", layers=4, hidden=128, rank=32), Budget(80, 0.25)
    peaks = train_step_peak(model, policy(evict), budget, rows=8, prompt=16, tokens=tokens, gradient=gradient)
    return peaks["update"]


def test_live_bytes_by_hand():
    with LiveBytes() as live:
        a = torch.zeros(1000)
        b = a.view(10, 100) + 1
        assert live.current == live.peak == 8000
        del a
        assert live.current == 4000
        c = torch.zeros(250, dtype=torch.float64)
        assert (live.current, live.peak) == (6000, 8000)
        del b, c
    assert live.current == 0


@pytest.mark.parametrize("gradient", [pytest.param("truncated", marks=pytest.mark.slow), "exact"])
def test_four_times_the_tokens_cost_the_same(gradient):
    short, long = peak(200, gradient=gradient), peak(800, gradient=gradient)
    assert long <= 1.05 * short


def test_where_nothing_is_evicted_the_exact_gradient_costs_nothing_more():
    assert peak(100, evict="full", gradient="exact") == peak(100, evict="full", gradient="truncated")


def test_the_measure_sees_a_cache_that_grows():
    assert peak(400, evict="full") > 1.5 * peak(200, evict="full")


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["truncated", "exact"])
def test_4096_tokens_cost_what_512_cost(gradient):
    assert peak(4096, gradient=gradient) <= 1.05 * peak(512, gradient=gradient)
