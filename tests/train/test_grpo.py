"""GRPO's functions against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pte_cli.train.grpo import clip_fraction, clipped_surrogate, group_advantages, kl_estimate


def test_group_advantages_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 3.0]])
    # Means 0.5 and 0.75; sample variances (4 * 0.25) / 3 and (3 * 0.5625 + 5.0625) / 3 = 2.25.
    first = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert group_advantages(rewards)[0].tolist() == pytest.approx([first, -first, -first, first])
    assert group_advantages(rewards)[1].tolist() == pytest.approx([-0.75 / 1.5001] * 3 + [2.25 / 1.5001])
    assert group_advantages(rewards, scale=False)[1].tolist() == pytest.approx([-0.75, -0.75, -0.75, 2.25])


def test_equal_rewards_give_exactly_zero():
    """Public bug report B09: 0.1 eight times has a mean that is not quite 0.1; its spread must not be amplified."""
    assert group_advantages(torch.full((3, 8), 0.1)).eq(0).all()


def test_clipped_surrogate_by_hand():
    log = torch.tensor([1.5, 1.1, 0.5, 0.9, 1.5]).log()
    advantages = torch.tensor([2.0, 2.0, -1.0, -1.0, -1.0])
    loss = clipped_surrogate(log, torch.zeros(5), advantages, epsilon=0.2)
    # Gains are capped at 1.2 and losses at 0.8; a ratio that makes things worse is never capped.
    assert loss.tolist() == pytest.approx([-2.4, -2.2, 0.8, 0.9, 1.5])
    assert clip_fraction(log, torch.zeros(5), 0.2).item() == pytest.approx(3 / 5)


def test_gradient_on_policy_is_minus_the_advantage():
    logprobs = torch.zeros(3, requires_grad=True)
    clipped_surrogate(logprobs, torch.zeros(3), torch.tensor([1.0, -2.0, 0.0]), 0.2).sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 2.0, 0.0])


def test_kl_estimate_by_hand_and_without_overflow():
    assert kl_estimate(torch.tensor([0.0]), torch.tensor([math.log(2.0)])).item() == pytest.approx(1 - math.log(2))
    assert kl_estimate(torch.zeros(2), torch.tensor([60.0, -60.0])).isfinite().all()
    assert clipped_surrogate(torch.tensor([60.0]), torch.zeros(1), torch.tensor([-1.0]), 0.2).isfinite().all()


def test_samples_without_reward_are_no_part_of_their_group():
    """By hand: of 1, 3 and nothing the mean is 2 and the sample deviation sqrt(2)."""
    nothing = float("nan")
    rewards = torch.tensor([[1.0, nothing, 3.0], [nothing, nothing, nothing], [nothing, 5.0, nothing], [1.0, 2.0, 3.0]])
    expected = 1 / (math.sqrt(2) + 1e-4)
    advantages = group_advantages(rewards)
    assert advantages[0].tolist() == pytest.approx([-expected, 0, expected])
    assert advantages[1:3].eq(0).all()
    assert torch.equal(advantages[3], group_advantages(rewards[3:])[0])
