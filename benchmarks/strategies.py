"""Accuracy of strategies on the built-in task at an equal budget, over seeds: `python benchmarks/strategies.py GRID`.

GRID is `policies` (every policy with every encoder), `scores` (every score of `importance`), `pte-options` or
`gradients`. Each run is one `pte train` as a user would start it, on one thread (the result depends on the number of
threads). Finished runs are not repeated, so the command can be stopped and started; `--table` only prints what is
there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

PROBLEMS = 1024
RECIPE = ["--grad", "truncated", "--set", "sft.learning_rate=1e-3"]
"""What the published tables were measured with: the paper's gradient. `pte sweep experiments.toml` has the default."""
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Two-sided 95 % quantile of Student's t by degrees of freedom."""


def option(name: str, value: object) -> list[str]:
    return ["--set", f"{name}={value}"]


def policies() -> dict[str, list[str]]:
    # With its prompt pinned, `sink` is `sliding` for every prompt of 4 tokens and more.
    kinds = {
        "sliding": ["--evict", "sliding"],
        "sink with evictable prompt": ["--evict", "sink", *option("evict.options.evict_prompt", "true")],
        "importance": ["--evict", "importance"],
    }
    arms = {"full, none": ["--evict", "full", "--encoder", "none"]}
    for policy, flags in kinds.items():
        for encoder in ("none", "ttt", "pte"):
            arms[f"{policy}, {encoder}"] = [*flags, "--encoder", encoder]
    return arms


def scores() -> dict[str, list[str]]:
    return {
        f"importance {score}, {encoder}": [
            *["--evict", "importance", "--encoder", encoder],
            *option("evict.options.score", score),
        ]
        for score in ("attention", "window", "attention-value", "key-norm", "key-diversity")
        for encoder in ("none", "pte")
    }


def pte_options() -> dict[str, list[str]]:
    chosen = {
        "frobenius": option("encoder.options.normalize", "frobenius"),
        "row": option("encoder.options.normalize", "row"),
        "not normalized": option("encoder.options.normalize", "none"),
        "initial global": option("encoder.options.initial", "global"),
        "16 global tokens": option("encoder.options.global_tokens", 16),
        "64 global tokens": option("encoder.options.global_tokens", 64),
        "rotated keys": option("encoder.options.rotated_keys", "true"),
        "attention layers only": option("adapter.target_modules", '["q_proj","k_proj","v_proj","o_proj"]'),
    }
    return {name: ["--encoder", "pte", *flags] for name, flags in chosen.items()}


def gradients() -> dict[str, list[str]]:
    return {f"{kind} gradient": ["--encoder", "pte", "--grad", kind] for kind in ("truncated", "exact")}


GRIDS = {"policies": policies, "scores": scores, "pte-options": pte_options, "gradients": gradients}


def accuracy(run: Path) -> float | None:
    """Held-out accuracy of a finished run."""
    status = run / "status.json"
    if not status.is_file():
        return None
    result = json.loads(status.read_text()).get("result")
    return result["after"]["accuracy"] if result else None


def seconds(run: Path) -> float:
    """What a finished run took to train."""
    return json.loads((run / "status.json").read_text())["result"]["seconds"]["training"]


def train(run: Path, flags: list[str]) -> None:
    given = [*RECIPE, *flags, "--problems", str(PROBLEMS), "--out", str(run)]
    command = [sys.executable, "-m", "pte_cli", "train", *given]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def row(name: str, found: list[float], times: list[float]) -> str:
    """Mean over seeds with its 95 % interval (Student's t), every seed's value, and the shortest training."""
    mean = statistics.mean(found)
    if len(found) < 2:
        interval = "no interval"
    else:
        half = T_95[len(found) - 1] * statistics.stdev(found) / len(found) ** 0.5
        interval = f"{mean - half:.3f} to {mean + half:.3f}"
    return f"| {name} | {mean:.3f} | {interval} | {' '.join(f'{score:.3f}' for score in found)} | {min(times):.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", choices=GRIDS)
    parser.add_argument("--only", default="", help="arms whose name contains this")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=150, help="SFT steps")
    parser.add_argument("--out", type=Path, default=Path("runs/strategies"))
    parser.add_argument("--table", action="store_true", help="print the finished runs, train nothing")
    args = parser.parse_args()

    arms = {name: flags for name, flags in GRIDS[args.grid]().items() if args.only in name}
    runs = {
        (name, seed): args.out / f"{args.steps}-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
        for seed in args.seeds
        for name in arms
    }
    for (name, seed), run in runs.items():
        if not args.table and accuracy(run) is None:
            train(run, [*arms[name], "--sft-steps", str(args.steps), "--seed", str(seed)])
            print(f"{name}, seed {seed}: {accuracy(run):.3f}", flush=True)
    print(f"| arm ({args.steps} steps, {PROBLEMS} problems) | accuracy | 95 % over seeds | seeds | seconds |")
    print("|---|---|---|---|---|")
    for name in arms:
        found = [score for seed in args.seeds if (score := accuracy(runs[name, seed])) is not None]
        if found:
            times = [seconds(run) for seed in args.seeds if accuracy(run := runs[name, seed]) is not None]
            print(row(name, found, times))


if __name__ == "__main__":
    main()
