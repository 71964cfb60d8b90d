"""The policy-gradient losses of GRPO's family as pure functions, with TRL's names and meanings.

A loss is a sum over tokens of weight x per-token loss, so that rounds and micro-batches add up. The weights depend on
lengths only and are known before the replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Beyond this a log-ratio is clamped: exp(20) is 5e8, and float32 overflows at exp(88.7)."""

LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo", "gspo", "cispo"]
Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
Estimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class PolicyLoss:
    """What is minimised for each token, from its log-probability now and when it was sampled.

    loss_type: `grpo` (arXiv 2402.03300), `dr_grpo` (2503.20783), `dapo` (2503.14476), `bnpo` (2506.02864) clip each
        token's ratio and differ in the weights; `gspo` (2507.18071) clips the sequence's, exp of the mean log-ratio;
        `cispo` (2506.13585) weights log p by the ratio, capped and detached.
    epsilon, epsilon_high: the ratio is clipped to [1 - epsilon, 1 + epsilon_high]; `cispo` caps it at epsilon_high.
    delta: the unclipped ratio is at most this (two-sided clipping, arXiv 2505.07291), None for no bound.
    """

    loss_type: LossType = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None

    @property
    def high(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence_ratio: Tensor | None = None
    ) -> Tensor:
        """Per-token losses `[N]`; all arguments `[N]`, `advantages` those of the tokens' sequences.

        sequence_ratio: for `gspo`, the mean log-ratio of each token's sequence, detached.
        """
        log_ratio = logprobs - old_logprobs
        if self.loss_type == "gspo":
            # Its value is the sequence's ratio, its gradient the ratio times the token's own: the mean over the
            # sequence's tokens is the gradient of exp(mean log-ratio).
            log_ratio = sequence_ratio + (logprobs - logprobs.detach())
        ratio = safe_exp(log_ratio)
        if self.loss_type == "cispo":
            return -ratio.clamp(max=self.high).detach() * advantages * logprobs
        clipped = ratio.clamp(1 - self.epsilon, 1 + self.high)
        if self.delta is not None:
            ratio = ratio.clamp(max=self.delta)
        return -torch.minimum(ratio * advantages, clipped * advantages)

    def clipped(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence_ratio: Tensor | None = None
    ) -> Tensor:
        """Which tokens' gradients the clipping stops (`cispo`: bounds), bool `[N]`."""
        ratio = safe_exp(logprobs.detach() - old_logprobs if sequence_ratio is None else sequence_ratio)
        high = self.high if self.loss_type == "cispo" else 1 + self.high
        return ((ratio > high) & (advantages > 0)) | (
            (ratio < 1 - self.epsilon) & (advantages < 0) & (self.loss_type != "cispo")
        )


def sequence_weights(loss_type: LossType, lengths: Tensor, counted: Tensor, max_new_tokens: int) -> Tensor:
    """The weight `[B]` of each token of a sequence, given the sequences' `lengths` in tokens (int64 `[B]`).

    counted: bool `[B]`; sequences that are masked (cut off, or without a reward) weigh 0 and count in no divisor.
    grpo, gspo: mean over the tokens of a sequence, then over sequences. dapo, bnpo, cispo: mean over all tokens.
    dr_grpo: sum over tokens / (sequences x max_new_tokens), so that length carries no weight.
    """
    lengths = lengths.double()
    sequences = counted.sum().clamp(min=1)
    if loss_type in ("grpo", "gspo"):
        weights = 1 / (sequences * lengths.clamp(min=1))
    elif loss_type == "dr_grpo":
        weights = torch.ones_like(lengths) / (sequences * max_new_tokens)
    else:
        weights = torch.ones_like(lengths) / (lengths * counted).sum().clamp(min=1)
    return torch.where(counted, weights, 0.0)


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: Estimator = "k3") -> Tensor:
    """Schulman's estimates of KL(policy || reference) per token, with d = log p - log p_ref.

    k1: d. k2: d^2 / 2. k3: exp(-d) - 1 + d, never negative. (J. Schulman, "Approximating KL divergence", 2020.)
    """
    difference = (logprobs - ref_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return (-difference).exp() - 1 + difference


def importance_correction(
    logprobs: Tensor, sampled_logprobs: Tensor, mode: Correction, low: float, high: float
) -> Tensor:
    """Weights for what is left between the log-probabilities of replay and rollout, detached `[N]` or `[B]`.

    Both arguments of one shape: per token, or means per sequence for the sequence modes (sums, as TRL takes them).
    truncate: the ratio, kept within [low, high]. mask: the ratio, 0 outside.
    """
    ratio = safe_exp(logprobs.detach() - sampled_logprobs)
    if mode == "none":
        return torch.ones_like(ratio)
    if mode.endswith("truncate"):
        return ratio.clamp(low, high)
    return torch.where((ratio < low) | (ratio > high), 0.0, ratio)


def safe_exp(log_ratio: Tensor) -> Tensor:
    """exp of a log-ratio that can't overflow."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
