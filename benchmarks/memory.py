"""Peak bytes of one training step against the number of generated tokens: `python benchmarks/memory.py`.

The built-in model, 8 rows, fixed budget. Bytes of live tensors, so the figures are the same on any machine.
"""

from __future__ import annotations

import argparse

import torch

from pte_cli.config import load_config
from pte_cli.profile.step import train_step_peak
from pte_cli.rollout.engine import Budget
from pte_cli.rollout.prepare import prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--budget", type=int, default=80)
    args = parser.parse_args()
    torch.set_num_threads(1)

    print(
        f"one training step, {args.rows} rows, prompt {args.prompt}, budget {args.budget}; peak bytes of live tensors"
    )
    print(
        f"{'encoder':8} {'policy':8} {'gradient':9} {'tokens':>6} {'rollout':>12} {'whole step':>12} {'ratio to first':>14}"
    )
    arms = (
        ("pte", "sliding", "truncated"),
        ("pte", "sliding", "exact"),
        ("none", "sliding", "truncated"),
        ("none", "full", "truncated"),
    )
    for encoder, policy, gradient in arms:
        first = None
        for tokens in args.tokens if policy == "sliding" else args.tokens[:1]:
            config = load_config(env={}, flags={"encoder.name": encoder, "evict.policy": policy})
            prepared = prepare(config)
            budget = Budget(args.budget, 0.25)
            peaks = train_step_peak(
                prepared.model,
                prepared.policy,
                budget,
                rows=args.rows,
                prompt=args.prompt,
                tokens=tokens,
                gradient=gradient,
            )
            first = first or peaks["update"]
            print(
                f"{encoder:8} {policy:8} {gradient:9} {tokens:6} {peaks['rollout']:12,} {peaks['update']:12,} "
                f"{peaks['update'] / first:14.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
