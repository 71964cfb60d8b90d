"""The main job over several seeds, with and without the encoder: `python benchmarks/main_job.py --out runs/main-job`.

Runs `pte train` as a user would, then `pte eval` on 1,024 held-out problems, and prints one row per run and the means.
About 5 minutes per run on two cores; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

PROBLEMS = "1024"


def pte(*arguments: str) -> dict:
    """The JSON a pte command prints."""
    done = subprocess.run([sys.executable, "-m", "pte_cli", *arguments, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/main-job"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--encoders", nargs="+", default=["pte", "none"])
    parser.add_argument("--train", nargs="*", default=[], help="more flags for pte train, after everything else")
    args, more = parser.parse_known_args()

    full = pte("eval", "--evict", "full", "--problems", PROBLEMS)
    bounded = pte("eval", "--problems", PROBLEMS)
    print(f"before training: full cache {full['accuracy']:.3f}, default budget {bounded['accuracy']:.3f}", flush=True)
    print(f"{'encoder':8} {'seed':>4} {'accuracy':>8} {'95 % interval':>15} {'full cache':>10} {'minutes':>8}")
    for encoder in args.encoders:
        scores = []
        for seed in args.seeds:
            run = args.out / f"{encoder}-{seed}"
            flags = ["--encoder", encoder, "--evict", "sliding", "--frac", "0.25", "--seed", str(seed)]
            if not (run / "adapter" / "adapter_config.json").exists():
                pte("train", *flags, "--out", str(run), *args.train, *more)
            status = json.loads((run / "status.json").read_text())
            result = pte("eval", str(run), "--problems", PROBLEMS)
            wide = pte("eval", str(run), "--problems", PROBLEMS, "--evict", "full")
            scores.append(result["accuracy"])
            print(
                f"{encoder:8} {seed:4} {result['accuracy']:8.3f} {result['low']:7.3f}-{result['high']:.3f}"
                f" {wide['accuracy']:11.3f} {status['result']['seconds']['all'] / 60:8.1f}",
                flush=True,
            )
        spread = f", standard deviation {statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
        print(f"{encoder:8} mean {statistics.mean(scores):.3f}{spread}, n = {len(scores)} seeds", flush=True)


if __name__ == "__main__":
    main()
