"""One step of GRPO in its parts: sample groups and judge them, then one or more updates on what they were worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pte_cli.config import GrpoConfig
from pte_cli.rollout.engine import RolloutEngine
from pte_cli.rollout.trace import Trace
from pte_cli.tasks.examples import Examples, Question, Scores
from pte_cli.train.advantages import group_advantages
from pte_cli.train.clock import Clock
from pte_cli.train.metrics import Metrics, Sampled, gap_metrics, length_metrics, reward_metrics
from pte_cli.train.passes import Passes, pad
from pte_cli.train.policy_loss import (
    PolicyLoss,
    importance_correction,
    kl_estimate,
    sequence_weights,
)
from pte_cli.train.processes import Processes
from pte_cli.train.replay import Loss, Scored
from pte_cli.train.rollouts import Rollout, chosen

Score = Callable[[Sequence[Question], Sequence[Trace]], Scores]
Table = Callable[[Sequence[Question], Sequence[Trace], Scores, Tensor], None]


class Grpo:
    """Group relative policy optimisation (arXiv 2402.03300) and its relatives, on the traces of the rollout engine.

    score: what completions are worth. table: told this process's questions, completions, scores and advantages.
    """

    def __init__(
        self,
        settings: GrpoConfig,
        engine: RolloutEngine,
        passes: Passes,
        examples: Examples,
        processes: Processes,
        clock: Clock,
        score: Score,
        table: Table | None = None,
    ) -> None:
        self.settings, self.engine, self.passes, self.examples = settings, engine, passes, examples
        self.processes, self.clock, self.score, self.table = processes, clock, score, table
        self.loss = PolicyLoss(settings.loss_type, settings.epsilon, settings.epsilon_high, settings.delta)

    def rollout(self, seed: int) -> Rollout:
        """Sample the next groups, judge them, and prepare what every update on them needs."""
        settings, size = self.settings, self.settings.group_size
        # Every process draws the same questions and takes whole groups of them; tokens depend on the index alone.
        drawn = self.examples.questions(settings.prompts)
        mine = [p * size + g for p in self.processes.share(settings.prompts) for g in range(size)]
        questions = [drawn[i // size] for i in mine]
        with self.clock("rollout"):
            traces = self.engine.generate([question.prompt for question in questions], seed, streams=mine)
        with self.clock("reward"):
            scores = self.score(questions, traces) if traces else Scores([], [])
        batch = sorted(self.processes.gather(records(mine, traces, scores)), key=lambda sample: sample.index)
        rewards = torch.tensor([sample.reward for sample in batch], dtype=torch.float32).view(-1, size)
        advantages = group_advantages(rewards, settings.scale_rewards).flatten()
        counted = ~rewards.isnan().flatten()
        if settings.mask_truncated_completions:
            counted &= torch.tensor([sample.stopped for sample in batch])
        lengths = torch.tensor([sample.length for sample in batch])
        limit = self.engine.sampling.max_new_tokens
        weights = sequence_weights(settings.loss_type, lengths, counted, limit)
        own = torch.tensor(mine, dtype=torch.int64)
        # Without an advantage and without a KL there is nothing to compute; such samples still count in the divisors.
        teaching = counted & ((advantages != 0) | (settings.beta > 0))
        learns = teaching[own]
        if self.table is not None:
            self.table(questions, traces, scores, advantages[own])
        metrics = {**reward_metrics(batch, rewards), **length_metrics(batch), "num_tokens": int(lengths.sum())}
        metrics["completions/learnt_from"] = int(teaching.sum())
        return self._prepared(chosen(traces, learns), advantages[own][learns], weights[own][learns], metrics)

    def _prepared(self, traces: list[Trace], advantages: Tensor, weights: Tensor, metrics: Metrics) -> Rollout:
        device, settings = self.passes.model.device, self.settings
        advantages, weights = advantages.to(device), weights.to(device)
        if not traces:
            return Rollout([], advantages, weights, advantages.new_zeros(0, 0), metrics=metrics)
        old = pad([trace.logprobs for trace in traces]).to(device)
        correction = reference = None
        if settings.importance_sampling != "none":
            with self.clock("replay"):
                now = self.passes.logprobs(traces)
            compared = (now, old)
            if settings.importance_sampling.startswith("sequence"):
                compared = (now.sum(1, keepdim=True), old.sum(1, keepdim=True))
            correction = importance_correction(
                *compared, settings.importance_sampling, 0.0, settings.importance_sampling_cap
            ).expand_as(now)
            old = now
        if settings.beta:
            with self.clock("reference"):
                reference = self.passes.reference(traces)
        return Rollout(traces, advantages, weights, old, correction, reference, metrics)

    def update(self, rollout: Rollout, first: bool = True) -> Metrics:
        """Gradients of the loss on a rollout, accumulated; the numbers are of the whole batch, over all processes.

        first: whether the weights are still those that sampled, so that rollout and replay must agree.
        """
        traces = rollout.traces
        found = {"loss": 0.0, "kl": 0.0, "low": 0.0, "high": 0.0, "tokens": 0.0}
        gaps: list[float] = []
        if traces:
            lengths = torch.tensor([len(trace.completion) for trace in traces], device=rollout.old.device)
            found["tokens"] = float(lengths.sum())
            sums = {name: torch.zeros((), device=lengths.device, dtype=torch.float64) for name in ("kl", "low", "high")}
            ratios = None
            if self.settings.loss_type == "gspo":
                with self.clock("replay"):
                    ratios = (self.passes.logprobs(traces) - rollout.old).sum(1) / lengths
            with self.clock("replay"):
                loss, replayed = self.passes.backward(traces, lambda rows: self._loss(rollout, rows, ratios, sums))
            found |= {"loss": loss, **{name: value.item() for name, value in sums.items()}}
            sampled = pad([trace.logprobs for trace in traces]).to(replayed.device)
            real = torch.arange(replayed.shape[1], device=replayed.device) < lengths[:, None]
            gaps = (replayed - sampled)[real].abs().tolist()
        metrics = self._metrics(found)
        return metrics | gap_metrics(self.processes.gather(gaps)) if first else metrics

    def _loss(self, rollout: Rollout, rows: slice, ratios: Tensor | None, sums: dict[str, Tensor]) -> Loss:
        settings = self.settings

        def loss(scored: Scored) -> Tensor:
            row = scored.rows + rows.start
            where, advantages = (row, scored.tokens), rollout.advantages[row]
            ratio = None if ratios is None else ratios[row]
            each = self.loss(scored.logprobs, rollout.old[where], advantages, ratio)
            clipped = self.loss.clipped(scored.logprobs, rollout.old[where], advantages, ratio)
            sums["low"] += (clipped & (advantages < 0)).sum()
            sums["high"] += (clipped & (advantages > 0)).sum()
            if rollout.correction is not None:
                each = each * rollout.correction[where]
            if rollout.reference is not None:
                divergence = kl_estimate(scored.logprobs, rollout.reference[where], settings.kl_estimator)
                sums["kl"] += divergence.detach().sum()
                each = each + settings.beta * divergence
            return (each * rollout.weights[row]).sum()

        return loss

    def _metrics(self, found: dict[str, float]) -> Metrics:
        parts = self.processes.gather([found])
        total = {name: sum(part[name] for part in parts) for name in found}
        tokens = max(total["tokens"], 1.0)
        low, high = total["low"] / tokens, total["high"] / tokens
        metrics = {
            "loss": total["loss"],
            "clip_ratio/low_mean": low,
            "clip_ratio/high_mean": high,
            "clip_ratio/region_mean": low + high,
        }
        if self.settings.beta:
            metrics["kl"] = total["kl"] / tokens
        return metrics


def records(indices: Sequence[int], traces: Sequence[Trace], scores: Scores) -> list[Sampled]:
    """What other processes need to know of this one's completions."""
    return [
        Sampled(
            index=index,
            length=len(trace.completion),
            stopped=trace.finish == "stop",
            evictions=len(trace.evictions),
            reward=float(scores.rewards[i]),
            right=scores.right[i],
            by_name={name: values[i] for name, values in scores.by_name.items()},
        )
        for i, (index, trace) in enumerate(zip(indices, traces, strict=True))
    ]
