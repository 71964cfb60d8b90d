"""What the exact gradient costs: `python benchmarks/gradients.py`.

One replay with gradients of the built-in model, 16 rows, once `truncated` and once `exact` on the same traces, in
alternation; CPU seconds and their ratio at several lengths.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from pte_cli.config import load_config
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.prepare import prepare
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay


def seconds(model, traces, policy, gradient: str) -> float:
    """CPU seconds of one replay; its gradients are thrown away."""
    total = sum(len(trace.completion) for trace in traces)
    start = time.process_time()
    replay(model, traces, policy, loss=lambda scored: -scored.logprobs.sum() / total, gradient=gradient)
    spent = time.process_time() - start
    model.model.zero_grad(set_to_none=True)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    prepared = prepare(load_config(env={}))
    model, policy, budget = prepared.model, prepared.policy, Budget(80, 0.25)
    print(f"{args.rows} rows, prompt 16, budget 80, frac 0.25, encoder pte; median of {args.repeat}")
    print(f"{'tokens':>6} {'truncated':>10} {'exact':>10} {'ratio':>6}  ratios")
    for tokens in args.tokens:
        engine = RolloutEngine(model, policy, budget, Sampling(max_new_tokens=tokens), batch=args.rows)
        traces = engine.generate([list(range(5, 21))] * args.rows)
        seconds(model, traces, policy, "truncated")
        pairs = [
            (seconds(model, traces, policy, "truncated"), seconds(model, traces, policy, "exact"))
            for _ in range(args.repeat)
        ]
        ratios = sorted(exact / truncated for truncated, exact in pairs)
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        print(
            f"{tokens:6} {medians[0]:9.2f}s {medians[1]:9.2f}s {statistics.median(ratios):6.2f}  "
            + " ".join(f"{ratio:.2f}" for ratio in ratios),
            flush=True,
        )


if __name__ == "__main__":
    main()
