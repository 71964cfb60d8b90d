"""Advantages against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pte_cli.train.advantages import group_advantages, without_spread

NOTHING = float("nan")


def test_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 3.0]])
    # Means 0.5 and 0.75; sample variances (4 * 0.25) / 3 and (3 * 0.5625 + 5.0625) / 3 = 2.25.
    first = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert group_advantages(rewards)[0].tolist() == pytest.approx([first, -first, -first, first])
    assert group_advantages(rewards)[1].tolist() == pytest.approx([-0.75 / 1.5001] * 3 + [2.25 / 1.5001])
    assert group_advantages(rewards, "none")[1].tolist() == pytest.approx([-0.75, -0.75, -0.75, 2.25])
    # All 8: mean 5/8, sum of squares 11, variance (11 - 25/8) / 7 = 1.125.
    batch = math.sqrt(1.125) + 1e-4
    assert group_advantages(rewards, "batch")[1].tolist() == pytest.approx([-0.75 / batch] * 3 + [2.25 / batch])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exactly_zero(scale):
    """Public bug report B09: 0.1 eight times has a mean that is not quite 0.1; its spread must not be amplified."""
    assert group_advantages(torch.full((3, 8), 0.1), scale).eq(0).all()
    assert group_advantages(torch.full((2, 4), NOTHING), scale).eq(0).all()


def test_samples_without_reward_are_no_part_of_their_group():
    """By hand: of 1, 3 and nothing the mean is 2 and the sample deviation sqrt(2)."""
    rewards = torch.tensor([[1.0, NOTHING, 3.0], [NOTHING] * 3, [NOTHING, 5.0, NOTHING], [1.0, 2.0, 3.0]])
    expected = 1 / (math.sqrt(2) + 1e-4)
    advantages = group_advantages(rewards)
    assert advantages[0].tolist() == pytest.approx([-expected, 0, expected])
    assert advantages[1:3].eq(0).all()
    assert torch.equal(advantages[3], group_advantages(rewards[3:])[0])
    assert without_spread(rewards).tolist() == [False, True, True, False]
