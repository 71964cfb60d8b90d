"""Kill a run at random moments and go on with it: `python benchmarks/interruptions.py`.

A 30-step run (15 of SFT, 15 of GRPO) is made once without interruptions. Then, `--times` times, the same run is killed
by SIGINT or SIGKILL, in turn, after a random share of its time, and resumed until it ends. Prints how many of the
resumed runs end with the reference's adapter and metrics, bit for bit. Exit code 1 if any does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PTE = [sys.executable, "-m", "pte_cli", "train"]
SETTINGS = [
    *["--objective", "sft+grpo", "--sft-steps", "15", "--grpo-steps", "15", "--problems", "8", "--save-every", "3"],
    *["--set", "sft.batch=8", "--set", "grpo.prompts=2", "--set", "grpo.group_size=4"],
    *["--set", "grpo.num_iterations=2", "--set", "sampling.temperature=1.5"],
]
MACHINE = ("seconds/", "tokens_per_second/", "peak_bytes")


def start(command: list[str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def outcome(run: Path) -> tuple[bytes, list[dict[str, object]]]:
    """The adapter's bytes, and the metrics without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if not k.startswith(MACHINE)} for line in lines]
    return (run / "adapter" / "adapter_model.safetensors").read_bytes(), kept


def finished(run: Path) -> bool:
    """What status.json says; it isn't there yet in a run killed at its very start."""
    status = run / "status.json"
    return status.is_file() and json.loads(status.read_text())["state"] == "finished"


def interrupted(run: Path, which: signal.Signals, after: float) -> int:
    """Start a run, interrupt it after so many seconds, go on until it ends; at which step it was interrupted."""
    process = start([*PTE, *SETTINGS, "--out", str(run)])
    time.sleep(after)
    process.send_signal(which)
    process.wait()
    metrics = run / "metrics.jsonl"
    steps = len(metrics.read_text().splitlines()) if metrics.is_file() else 0
    if not (run / "config.json").is_file():  # before it was a run
        start([*PTE, *SETTINGS, "--out", str(run)]).wait()
    elif not finished(run):
        start([*PTE, "--resume", str(run)]).wait()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    args = parser.parse_args()

    moments = random.Random(args.seed)
    same = 0
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference"
        begun = time.monotonic()
        start([*PTE, *SETTINGS, "--out", str(reference)]).wait()
        whole = time.monotonic() - begun
        expected = outcome(reference)
        for i in range(args.times):
            run = Path(folder) / f"run-{i}"
            which = (signal.SIGINT, signal.SIGKILL)[i % 2]
            after = moments.uniform(0.2, 0.98) * whole
            steps = interrupted(run, which, after)
            equal = outcome(run) == expected
            same += equal
            print(f"{which.name} after {after:.1f} s, {steps} steps: {'equal' if equal else 'DIFFERENT'}", flush=True)
    print(f"{same} of {args.times} resumed runs end with the reference's adapter and metrics, bit for bit")
    sys.exit(same != args.times)


if __name__ == "__main__":
    main()
