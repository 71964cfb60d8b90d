"""Accuracy on held-out problems, greedy, under the configured policy and budget."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from pte_cli.config import RunConfig
from pte_cli.errors import PteError
from pte_cli.eval.statistics import wilson
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.prepare import Prepared
from pte_cli.train.loop import sampling_of, score_traces


@dataclass(frozen=True)
class Accuracy:
    """One evaluation of n problems. `low`, `high`: 95 % Wilson interval over problems.

    queries: of a procedural task, the mean score: the share of single queries right. reward: of data, the mean reward.
    ungraded: completions about which the first reward had nothing to say; they are not among the n.
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


def evaluate(prepared: Prepared, config: RunConfig) -> Accuracy:
    """Greedy completions for at most `config.eval.problems` held-out problems, and how many are right.

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
    traces = engine.generate([question.prompt for question in questions])
    seconds = time.perf_counter() - start
    scores = score_traces(prepared.examples, questions, traces)
    rewards = [reward for reward in scores.rewards if not math.isnan(reward)]
    graded = [value for value in scores.right if value is not None]
    if not graded:
        raise PteError(
            f"not one of {len(questions)} held-out completions could be graded by {next(iter(scores.by_name))}"
        )
    n, count, tokens = len(graded), len(traces), sum(len(trace.completion) for trace in traces)
    right = sum(graded)
    low, high = wilson(right, n)
    mean = sum(rewards) / len(rewards)
    return Accuracy(
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
    )
