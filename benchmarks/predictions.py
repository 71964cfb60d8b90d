"""Predicted peak memory and attention FLOPs of 3B to 8B models: `python benchmarks/predictions.py`.

One training step (rollout, replay, AdamW) of a group of 8 completions of 3,072 tokens after a prompt of 256, weights
and cache in bfloat16, adapter of rank 32 in float32: LoRA with the full cache against the encoder `pte` under a
budget, whose peak is given at 65,536 tokens too. Runs the code on fake tensors; no weights, no GPU. Half an hour.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch

from pte_cli.checks import check_config
from pte_cli.config import load_config
from pte_cli.model.presets import PRESETS
from pte_cli.model.source import describe_model
from pte_cli.profile.arms import arms_of
from pte_cli.profile.flops import step_flops
from pte_cli.profile.predict import Predictor
from pte_cli.profile.step import Setting
from pte_cli.rollout.engine import Budget

GIB, TERA = 2**30, 1e12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(PRESETS))
    parser.add_argument("--checkpointing", nargs="+", choices=("no", "yes"), default=["no", "yes"])
    parser.add_argument("--grad", choices=("exact", "truncated"), default="exact")
    parser.add_argument("--budget", type=int, nargs="+", default=[768, 1024])
    parser.add_argument("--tokens", type=int, default=3072)
    parser.add_argument("--far", type=int, default=65536)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{args.rows} rows, prompt {args.prompt}, {args.tokens} tokens, gradient {args.grad}; peaks in GiB")
    print("attention of one sequence's replay in TFLOP")
    names = (
        f"{'model':28} {'checkpointing':13} {'budget':>6} {'rollout':>8} {'replay':>8} {'update':>8} {'peak':>8} "
        f"{'ratio':>6} {f'at {args.far}':>9} {'growth':>7} {'needed':>7} {'ratio':>6} {'executed':>8} {'ratio':>6} "
        f"{'CPU s':>6}"
    )
    print(names, flush=True)
    for name in args.model:
        for checkpointing in args.checkpointing:
            compare(name, checkpointing, args)


def compare(name: str, checkpointing: str, args: argparse.Namespace) -> None:
    """Print the rows of one model."""
    flags = {
        "model.name": f"preset:{name}",
        "model.dtype": "bfloat16",
        "evict.budget": min(args.budget),
        "train.gradient_checkpointing": checkpointing == "yes",
    }
    config = check_config(load_config(env={}, flags=flags), dry_run=True, asks_task=False)
    model = describe_model(config.model)
    full, _, pte = arms_of(config)
    first = None
    for arm, budget in [(full, None), *((pte, budget) for budget in args.budget)]:
        start = time.process_time()
        setting = Setting(
            args.rows, args.prompt, args.tokens, Budget(budget, config.evict.frac), args.grad, foreach=True
        )
        predictor = Predictor(arm.config, model)
        prediction = predictor.predict(setting)
        peak = prediction.peak.total
        attention = step_flops(arm, model, setting)
        needed = attention["attention"]["needed_in_replay"] / args.rows
        executed = attention["phases"]["replay"]["attention"] / args.rows
        first = first or (peak, needed, executed)
        far, growth = "", ""
        if budget is not None:
            distant = predictor.predict(replace(setting, length=args.far)).peak.total
            far, growth = f"{distant / GIB:.2f}", f"{distant / peak:.3f}"
        phases = " ".join(f"{found.total / GIB:8.2f}" for found in prediction.peaks.values())
        print(
            f"{name:28} {checkpointing:13} {budget or 'full':>6} {phases} {peak / GIB:8.2f} "
            f"{peak / first[0]:6.3f} {far:>9} {growth:>7} {needed / TERA:7.2f} {needed / first[1]:6.3f} "
            f"{executed / TERA:8.2f} {executed / first[2]:6.3f} {time.process_time() - start:6.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
