"""Accuracy on the held-out problems of the task, greedy, under the configured policy and budget."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pte_cli.config import RunConfig
from pte_cli.eval.statistics import wilson
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.prepare import Prepared
from pte_cli.tasks.streams import held_out
from pte_cli.train.loop import sampling_of, scores


@dataclass(frozen=True)
class Accuracy:
    """One evaluation. `low`, `high`: 95 % Wilson interval over problems; `queries`: share of single queries right."""

    accuracy: float
    low: float
    high: float
    queries: float
    n: int
    mean_length: float
    clipped_ratio: float
    evictions: float
    cache_bytes: int
    tokens_per_second: float


def evaluate(prepared: Prepared, config: RunConfig) -> Accuracy:
    """Greedy completions for `config.eval.problems` held-out problems, and how many are right."""
    problems = held_out(prepared.task, config.task.name, config.eval.problems, config.eval.seed)
    sampling = sampling_of(config, prepared.codec, temperature=0.0)
    engine = RolloutEngine(
        prepared.model,
        prepared.policy,
        Budget(config.evict.budget, config.evict.frac),
        sampling,
        batch=config.sampling.rows,
    )
    start = time.perf_counter()
    traces = engine.generate([prepared.codec.prompt(problem) for problem in problems])
    seconds = time.perf_counter() - start
    found = scores(prepared.task, prepared.codec, problems, traces)
    n, tokens = len(found), sum(len(trace.completion) for trace in traces)
    right = sum(score == 1 for score in found)
    low, high = wilson(right, n)
    return Accuracy(
        accuracy=right / n,
        low=low,
        high=high,
        queries=sum(found) / n,
        n=n,
        mean_length=tokens / n,
        clipped_ratio=sum(trace.finish == "length" for trace in traces) / n,
        evictions=sum(len(trace.evictions) for trace in traces) / n,
        cache_bytes=engine.peak_cache_bytes,
        tokens_per_second=tokens / seconds,
    )
