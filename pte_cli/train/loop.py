"""The training loop: data in, optimizer steps and metrics out. All that changes during training lives here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pte_cli.api import EvictionPolicy
from pte_cli.config import RunConfig
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.rollout.trace import Trace
from pte_cli.tasks.codec import Codec
from pte_cli.tasks.examples import Completion, Examples, Question, Scores
from pte_cli.train.grpo import clip_fraction, clipped_surrogate, group_advantages, kl_estimate
from pte_cli.train.replay import Loss, Scored, replay
from pte_cli.train.sft import likelihood_loss, token_weights, worked_traces

Metrics = dict[str, Any]


class Trainer:
    """Trains the adapter and encoder of one model on one kind of examples by SFT, GRPO, or one after the other.

    `log` receives the metrics of every step. Same configuration, same machine, same numbers.
    """

    def __init__(
        self,
        config: RunConfig,
        model: BoundedModel,
        policy: EvictionPolicy,
        examples: Examples,
        log: Callable[[Metrics], None],
    ) -> None:
        self.config, self.model, self.policy = config, model, policy
        self.examples, self.log = examples, log
        self.budget = Budget(config.evict.budget if policy.bounded else None, config.evict.frac)
        self.sampling = sampling_of(config, examples.codec)
        self.engine = RolloutEngine(model, policy, self.budget, self.sampling, batch=config.sampling.rows)
        self.step = 0
        self.seconds: dict[str, float] = {}
        encoder = {id(p) for p in model.encoder.parameters()} if model.encoder is not None else set()
        trained = [p for p in model.model.parameters() if p.requires_grad]
        self.lora = [p for p in trained if id(p) not in encoder]
        self.encoder = [p for p in trained if id(p) in encoder]

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return sum(count for _, count in self.phases())

    def phases(self) -> list[tuple[str, int]]:
        """(objective, steps) in order."""
        counts = {"sft": self.config.sft.steps, "grpo": self.config.grpo.steps}
        return [(name, counts[name]) for name in self.config.train.objective.split("+")]

    def run(self) -> None:
        """All steps of all phases."""
        for phase, steps in self.phases():
            rate = self.config.sft.learning_rate if phase == "sft" else self.config.grpo.learning_rate
            ratio = self.config.train.encoder_lr_ratio
            groups = [{"params": self.lora, "lr": rate}, {"params": self.encoder, "lr": rate * ratio}]
            optimizer = torch.optim.AdamW([g for g in groups if g["params"]], weight_decay=0.0)
            shape = partial(linear_schedule, steps=steps, warmup=self.config.train.warmup)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
            for _ in range(steps):
                self.step += 1
                self.seconds = {}
                start = time.perf_counter()
                metrics = self.sft() if phase == "sft" else self.grpo()
                with self.timed("update"):
                    norm = torch.nn.utils.clip_grad_norm_(self.lora + self.encoder, self.config.train.max_grad_norm)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                metrics |= {"grad_norm": norm.item(), "learning_rate": schedule.get_last_lr()[0]}
                schedule.step()
                metrics |= {f"seconds/{name}": spent for name, spent in self.seconds.items()}
                metrics["seconds/step"] = time.perf_counter() - start
                self.log({"step": self.step, "phase": phase, **metrics})

    def sft(self) -> Metrics:
        """Gradients of one batch of worked examples under the bounded cache."""
        examples = self.examples.worked(self.config.sft.batch)
        traces = worked_traces(examples, self.policy, self.budget.tokens, self.budget.frac)
        weights = token_weights(examples, self.config.sft.answer_weight).to(self.model.device)
        with self.timed("replay"):
            loss, _ = self.backward(traces, lambda rows: likelihood_loss(weights[rows]))
        return {"loss": loss, **shape_metrics(traces)}

    def grpo(self) -> Metrics:
        """Gradients of one batch of sampled groups: rollout, rewards, replay under the same traces."""
        settings = self.config.grpo
        questions = [
            question for question in self.examples.questions(settings.prompts) for _ in range(settings.group_size)
        ]
        with self.timed("rollout"):
            sampled = self.engine.generate(
                [question.prompt for question in questions], seed=rollout_seed(self.config.seed, self.step)
            )
        with self.timed("reward"):
            scores = self.score(questions, sampled)
        rewards = torch.tensor(scores.rewards, dtype=torch.float32).view(-1, settings.group_size)
        metrics = {"loss": 0.0, **reward_metrics(scores, rewards), **self.rollout_metrics(sampled)}
        # Without a reward there is nothing to learn from a sample; it does not count in the mean over tokens either.
        counted = ~rewards.isnan().flatten()
        traces = [trace for trace, counts in zip(sampled, counted.tolist(), strict=True) if counts]
        if not traces:
            return metrics
        advantages = group_advantages(rewards).flatten()[counted].to(self.model.device)
        return {**metrics, **self.surrogate(traces, advantages)}

    def surrogate(self, traces: Sequence[Trace], advantages: Tensor) -> Metrics:
        """Gradients of GRPO's loss; `advantages` `[B]`, one for each trace."""
        settings = self.config.grpo
        tokens = sum(len(trace.completion) for trace in traces)
        old = pad([trace.logprobs for trace in traces]).to(self.model.device)
        reference = self.reference(traces) if settings.beta else None
        sums = {"clip_ratio": 0.0, "kl": 0.0}

        def loss_for(rows: slice) -> Loss:
            def loss(scored: Scored) -> Tensor:
                where = (scored.rows + rows.start, scored.tokens)
                per_token = clipped_surrogate(scored.logprobs, old[where], advantages[where[0]], settings.epsilon)
                count = len(scored.logprobs)
                sums["clip_ratio"] += clip_fraction(scored.logprobs, old[where], settings.epsilon).item() * count
                if reference is not None:
                    divergence = kl_estimate(scored.logprobs, reference[where])
                    sums["kl"] += divergence.sum().item()
                    per_token = per_token + settings.beta * divergence
                return per_token.sum() / tokens

            return loss

        with self.timed("replay"):
            loss, replayed = self.backward(traces, loss_for)
        real = pad([torch.ones(len(trace.completion), dtype=torch.bool) for trace in traces])
        gap = (replayed - old)[real.to(old.device)].abs()
        return {
            "loss": loss,
            "clip_ratio": sums["clip_ratio"] / tokens,
            **({"kl": sums["kl"] / tokens} if reference is not None else {}),
            "gap/mean": gap.mean().item(),
            "gap/max": gap.max().item(),
        }

    def rollout_metrics(self, traces: Sequence[Trace]) -> Metrics:
        """How long the completions got, and what it took."""
        tokens = sum(len(trace.completion) for trace in traces)
        return {
            "completions/mean_length": tokens / len(traces),
            "completions/clipped_ratio": sum(t.finish == "length" for t in traces) / len(traces),
            "cache_bytes": self.engine.peak_cache_bytes,
            "tokens_per_second/rollout": tokens / self.seconds["rollout"],
            **shape_metrics(traces),
        }

    def score(self, questions: Sequence[Question], traces: Sequence[Trace]) -> Scores:
        """What each completion is worth."""
        return score_traces(self.examples, questions, traces)

    def reference(self, traces: Sequence[Trace]) -> Tensor:
        """Log-probabilities `[B, T]` of the model without adapter, under the same traces."""
        with self.timed("reference"), torch.no_grad(), self.model.adapter_off() as plain:
            return self.in_parts(traces, lambda part, _: self.replayed(plain, part, None))

    def backward(self, traces: Sequence[Trace], loss_for: Callable[[slice], Loss]) -> tuple[float, Tensor]:
        """Accumulate gradients of the whole batch; its loss and the replay's log-probabilities `[B, T]`."""
        total = 0.0

        def part_of(part: Sequence[Trace], rows: slice) -> Tensor:
            inner = loss_for(rows)

            def loss(scored: Scored) -> Tensor:
                nonlocal total
                value = inner(scored)
                total += value.item()
                return value

            return self.replayed(self.model, part, loss)

        logprobs = self.in_parts(traces, part_of)
        return total, logprobs

    def replayed(self, model: BoundedModel, traces: Sequence[Trace], loss: Loss | None) -> Tensor:
        """One replay. Worked examples have no sampling temperature: they are scored at 1."""
        temperature = self.sampling.temperature if traces[0].logprobs is not None else 1.0
        return replay(model, traces, self.policy, temperature=temperature, vocab=self.sampling.vocab, loss=loss)

    def in_parts(self, traces: Sequence[Trace], work: Callable[[Sequence[Trace], slice], Tensor]) -> Tensor:
        """`work` on micro-batches, its `[b, t]` results put together as `[B, T]`."""
        size = self.config.train.micro_batch
        slices = [slice(i, min(i + size, len(traces))) for i in range(0, len(traces), size)]
        parts = [row for rows in slices for row in work(traces[rows], rows)]
        return pad(parts)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def sampling_of(config: RunConfig, codec: Codec, temperature: float | None = None) -> Sampling:
    """The engine's sampling settings; `temperature` overrides the configured one (0: greedy evaluation)."""
    settings = config.sampling
    return Sampling(
        temperature=settings.temperature if temperature is None else temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        max_new_tokens=settings.max_new_tokens,
        end_ids=codec.ends,
        vocab=len(codec.tokenizer),
    )


def score_traces(examples: Examples, questions: Sequence[Question], traces: Sequence[Trace]) -> Scores:
    """What the completions of `traces` are worth as answers to `questions`."""
    return examples.score(questions, [Completion(trace.completion, trace.finish) for trace in traces])


def reward_metrics(scores: Scores, rewards: Tensor) -> Metrics:
    """Of a batch's rewards `[P, G]`, in which NaN is no reward; what can't be told is left out."""
    known = ~rewards.isnan()
    right = [value for value in scores.right if value is not None]
    groups = [row[there] for row, there in zip(rewards, known, strict=True) if there.sum() > 1]
    spreads = rewards.std(dim=1) if known.all() else [group.std() for group in groups]
    metrics: Metrics = {}
    if known.any():
        metrics["reward"] = rewards[known].mean().item()
    if groups:
        metrics["reward_std"] = torch.stack(list(spreads)).mean().item()
        flat = torch.tensor([bool((group == group[0]).all()) for group in groups])
        metrics["frac_reward_zero_std"] = flat.float().mean().item()
    if right:
        metrics["accuracy"] = torch.tensor(right).float().mean().item()
    for name, values in scores.by_name.items():
        given = [value for value in values if value is not None]
        if given:
            metrics[f"reward/{name}"] = sum(given) / len(given)
    if scores.by_name:
        metrics["without_reward"] = int((~known).sum())
        metrics["groups_skipped"] = int((~known.any(dim=1)).sum())
    return metrics


def linear_schedule(done: int, steps: int, warmup: int) -> float:
    """Learning rate after `done` of `steps`, as a share of its peak: linear warm-up, then linearly towards 0."""
    return min(1.0, (done + 1) / (warmup + 1)) * (1 - done / max(steps, 1))


def rollout_seed(seed: int, step: int) -> int:
    """A seed of its own for every step of every run seed."""
    return seed * 1_000_000 + step


def pad(rows: Sequence[Tensor]) -> Tensor:
    """Rows of different lengths as one `[B, longest]` tensor, filled up with zeros."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def shape_metrics(traces: Sequence[Trace]) -> Metrics:
    """Evictions per sequence and the number of rounds the replay takes."""
    evictions = [len(trace.evictions) for trace in traces]
    return {"evictions": sum(evictions) / len(evictions), "rounds": 1 + max(evictions)}
