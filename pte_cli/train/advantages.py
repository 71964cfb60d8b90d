"""Group-relative advantages as pure functions (arXiv 2402.03300)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Scale = Literal["group", "batch", "none"]
TINY = 1e-4
"""Added to a spread before dividing by it, as in TRL."""


def group_advantages(rewards: Tensor, scale: Scale = "group") -> Tensor:
    """Rewards `[P, G]` of G completions per prompt, centred per prompt and divided by a spread.

    scale: the sample standard deviation of the prompt's `group` (as in TRL), of the whole `batch`, or `none`. A group
    without spread gets exactly 0. NaN is a sample without reward: its advantage is 0, and the means and spreads are
    those of the others; where a group has fewer than two rewards all of it is 0.
    """
    advantages = torch.stack([_centred(row) for row in rewards])
    if scale == "none":
        return advantages
    if scale == "batch":
        known = rewards[~rewards.isnan()]
        return advantages / (_spread(known) + TINY)
    spreads = torch.stack([_spread(row[~row.isnan()]) for row in rewards])
    return advantages / (spreads[:, None] + TINY)


def without_spread(rewards: Tensor) -> Tensor:
    """Which groups `[P]` of rewards `[P, G]` have nothing to compare: equal rewards, or fewer than two."""
    return torch.stack([_flat(row[~row.isnan()]) for row in rewards])


def _centred(row: Tensor) -> Tensor:
    """One group's rewards `[G]` less their mean, 0 where there is none."""
    known = ~row.isnan()
    centred = torch.zeros_like(row)
    if not _flat(row[known]):
        centred[known] = row[known] - row[known].mean()
    return centred


def _spread(known: Tensor) -> Tensor:
    return known.std() if len(known) > 1 else known.new_zeros(())


def _flat(known: Tensor) -> Tensor:
    return (known == known[:1]).all() if len(known) > 1 else torch.ones((), dtype=torch.bool)
