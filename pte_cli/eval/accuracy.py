"""Accuracy on held-out problems, greedy, under the configured policy and budget."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pte_cli.config import RunConfig
from pte_cli.errors import PteError
from pte_cli.eval.samples import sample_records
from pte_cli.eval.statistics import wilson
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.prepare import Prepared
from pte_cli.rollout.trace import Trace
from pte_cli.tasks.examples import Question, Scores
from pte_cli.train.loop import sampling_of, score_traces


@dataclass(frozen=True)
class Accuracy:
    """One evaluation of n problems. `low`, `high`: 95 % Wilson interval over problems.

    queries: of a procedural task, the mean score: the share of single queries right. reward: of data, the mean reward.
    ungraded: completions about which the first reward had nothing to say; they are not among the n.
    cache_bytes, state_bytes: KV cache and encoder states of all `rows` sequences generated at the same time.
    adapter_bytes: LoRA's factors and the encoder's parameters, once.
    """

    accuracy: float
    low: float
    high: float
    queries: float | None
    n: int
    mean_length: float
    clipped_ratio: float
    evictions: float
    cache_bytes: int
    tokens_per_second: float
    reward: float | None = None
    ungraded: int = 0
    rows: int = 0
    state_bytes: int = 0
    adapter_bytes: int = 0


@dataclass(frozen=True)
class Evaluation:
    """An accuracy, what became of each of the problems it is of, and some of them token by token, ready for JSON."""

    accuracy: Accuracy
    problems: Sequence[dict[str, Any]]
    samples: Sequence[dict[str, Any]]


OnDone = Callable[[int, int], None]
"""Told how many problems are done, and of how many."""


def evaluate(prepared: Prepared, config: RunConfig, on_done: OnDone = lambda done, total: None) -> Evaluation:
    """Greedy completions for at most `config.eval.problems` held-out problems, and which are right.

    PteError where there are none, or none can be graded.
    """
    questions = prepared.examples.held_out(config.eval.problems, config.eval.seed)
    if not questions or not prepared.examples.scored:
        raise PteError("nothing to measure: no held-out problems, or none with an answer or a reward")
    sampling = sampling_of(config, prepared.codec, temperature=0.0)
    engine = RolloutEngine(
        prepared.model,
        prepared.policy,
        Budget(config.evict.budget, config.evict.frac),
        sampling,
        batch=config.sampling.rows,
    )
    start = time.perf_counter()
    found: dict[int, Trace] = {}
    for i, trace in engine.stream([question.prompt for question in questions]):
        found[i] = trace
        on_done(len(found), len(questions))
    traces = [found[i] for i in range(len(questions))]
    seconds = time.perf_counter() - start
    scores = score_traces(prepared.examples, questions, traces)
    rewards = [reward for reward in scores.rewards if not math.isnan(reward)]
    graded = [value for value in scores.right if value is not None]
    if not graded:
        raise PteError(
            f"not one of {len(questions)} held-out completions could be graded by {next(iter(scores.by_name))}"
        )
    rows = min(config.sampling.rows, len(questions))
    n, count, tokens = len(graded), len(traces), sum(len(trace.completion) for trace in traces)
    right = sum(graded)
    low, high = wilson(right, n)
    mean = sum(rewards) / len(rewards)
    accuracy = Accuracy(
        accuracy=right / n,
        low=low,
        high=high,
        queries=None if scores.by_name else mean,
        n=n,
        mean_length=tokens / count,
        clipped_ratio=sum(trace.finish == "length" for trace in traces) / count,
        evictions=sum(len(trace.evictions) for trace in traces) / count,
        cache_bytes=engine.peak_cache_bytes,
        tokens_per_second=tokens / seconds,
        reward=mean if scores.by_name else None,
        ungraded=count - n,
        rows=rows,
        state_bytes=state_bytes(prepared.model, rows),
        adapter_bytes=sum(p.numel() * p.element_size() for p in adapter_parameters(prepared.model)),
    )
    samples = sample_records(prepared.examples, questions, traces, scores)
    return Evaluation(accuracy, problem_records(questions, traces, scores), samples)


def state_bytes(model: BoundedModel, rows: int) -> int:
    """Bytes of the encoder states of `rows` sequences; they don't grow."""
    with torch.no_grad():
        return rows * sum(t.numel() * t.element_size() for t in model.init_state(1).values())


def adapter_parameters(model: BoundedModel) -> list[torch.Tensor]:
    """LoRA's factors and the encoder's parameters, whether they can be trained at the moment or not."""
    encoder = list(model.encoder.parameters()) if model.encoder is not None else []
    return [*(p for name, p in model.model.named_parameters() if ".lora_" in name), *encoder]


def problem_records(questions: Sequence[Question], traces: Sequence[Trace], scores: Scores) -> list[dict[str, Any]]:
    """What became of each problem. prompt: a digest, by which two runs can tell that they had the same problem."""
    return [
        {
            "problem": i,
            "prompt": hashlib.sha256(repr(tuple(question.prompt)).encode()).hexdigest()[:12],
            "prompt_tokens": len(question.prompt),
            "right": right,
            "reward": None if math.isnan(reward) else reward,
            "length": len(trace.completion),
            "finish": trace.finish,
            "evictions": len(trace.evictions),
        }
        for i, (question, trace, right, reward) in enumerate(
            zip(questions, traces, scores.right, scores.rewards, strict=True)
        )
    ]
