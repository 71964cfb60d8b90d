"""Group relative policy optimisation as pure functions (arXiv 2402.03300; token-level loss of arXiv 2503.14476)."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Beyond this a log-ratio is clamped: exp(20) is 5e8, and float32 overflows at exp(88.7)."""


def group_advantages(rewards: Tensor, scale: bool = True) -> Tensor:
    """Rewards `[P, G]` of G completions per prompt, centred per prompt and divided by their spread if `scale`.

    The spread is the sample standard deviation (as in TRL) plus 1e-4. A group without spread gets exactly 0. NaN is a
    sample without reward: its advantage is 0, and its group's mean and spread are those of the others.
    """
    if rewards.isnan().any():
        return torch.stack([_known_advantages(row, scale) for row in rewards])
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    flat = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    if scale:
        centred = centred / (rewards.std(dim=1, keepdim=True) + 1e-4)
    return centred.masked_fill(flat, 0.0)


def _known_advantages(row: Tensor, scale: bool) -> Tensor:
    """Advantages of one group `[G]` in which some rewards are missing; all 0 where fewer than two are there."""
    advantages = torch.zeros_like(row)
    known = ~row.isnan()
    if known.sum() > 1:
        advantages[known] = group_advantages(row[known][None], scale)[0]
    return advantages


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    epsilon: float,
    epsilon_high: float | None = None,
) -> Tensor:
    """PPO's clipped loss per token, to be minimised: -min(ratio * A, clip(ratio, 1 - eps, 1 + eps_high) * A).

    All of one shape; `advantages` are those of the tokens' sequences.
    """
    ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - epsilon, 1 + (epsilon if epsilon_high is None else epsilon_high))
    return -torch.minimum(ratio * advantages, clipped * advantages)


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) per token: exp(d) - d - 1 with d = ref - policy, >= 0."""
    difference = (ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1


def clip_fraction(logprobs: Tensor, old_logprobs: Tensor, epsilon: float) -> Tensor:
    """Share of tokens whose ratio lies outside 1 +- epsilon (detached scalar)."""
    ratio = (logprobs.detach() - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ((ratio - 1).abs() > epsilon).float().mean()
