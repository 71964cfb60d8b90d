"""What each policy costs: `python benchmarks/policies.py`.

Rolls out the built-in model (8 rows, 512 tokens, budget 128, frac 0.25, encoder none) with every policy and prints the
CPU time of one eviction for all layers and rows, CPU time per token as a multiple of `sliding`'s, and the bytes
recorded beside the cache. The policies take turns, and the fastest of the repetitions counts, because other work on the
machine only ever slows a run down.
"""

from __future__ import annotations

import argparse
import time

import torch

from pte_cli.config import ModelConfig
from pte_cli.model.adapter import add_adapter
from pte_cli.model.load import load_model
from pte_cli.registry import check_options, load_registry
from pte_cli.rollout import engine
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.sampling import Sampling

ROWS, PROMPT, TOKENS, BUDGET = 8, 16, 512, 128
SCORES = ("attention", "window", "attention-value", "key-norm", "key-diversity")
POLICIES: dict[str, tuple[str, dict]] = {
    "sliding": ("sliding", {}),
    "sink, prompt evictable": ("sink", {"evict_prompt": True}),
} | {
    f"importance, {score}, {granularity}": ("importance", {"score": score, "granularity": granularity})
    for score in SCORES
    for granularity in ("layer", "head")
}


class Clock:
    """Wraps the engine's evict function and sums up what it takes."""

    def __init__(self, inner) -> None:
        self.inner, self.seconds, self.calls = inner, 0.0, 0

    def __call__(self, *args, **kwargs):
        start = time.process_time()
        result = self.inner(*args, **kwargs)
        self.seconds += time.process_time() - start
        self.calls += 1
        return result


def measure(model: BoundedModel, name: str, options: dict) -> tuple[float, float, int]:
    """Milliseconds per eviction, milliseconds per token step, bytes of the cache."""
    spec = load_registry().eviction(name)
    policy = spec.build(check_options("evict.options", spec, options))
    sampling = Sampling(max_new_tokens=TOKENS)
    rollout = engine.RolloutEngine(model, policy, engine.Budget(BUDGET, 0.25), sampling, batch=ROWS)
    clock = Clock(engine.evict)
    original, engine.evict = engine.evict, clock
    start = time.process_time()
    try:
        rollout.generate([list(range(5, 5 + PROMPT))] * ROWS)
    finally:
        engine.evict = original
    seconds = time.process_time() - start
    return 1e3 * clock.seconds / clock.calls, 1e3 * seconds / TOKENS, rollout.peak_cache_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    base, _ = load_model(ModelConfig(device="cpu"))
    model = BoundedModel(add_adapter(base, encoder="none"))
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in POLICIES}
    for _ in range(args.repeat):
        for label, (name, options) in POLICIES.items():
            found[label].append(measure(model, name, options))
    best = {label: [min(column) for column in zip(*runs, strict=True)] for label, runs in found.items()}
    plain = best["sliding"]
    print("| policy | one eviction, ms | time per token | recorded, bytes |\n|---|---|---|---|")
    for label, (evicting, step, size) in best.items():
        print(f"| {label} | {evicting:.2f} | {step / plain[1]:.2f} x | {size - plain[2]:,} |")


if __name__ == "__main__":
    main()
