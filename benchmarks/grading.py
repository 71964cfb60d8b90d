"""Seconds and memory of `pte eval --grade` on real problems: `python benchmarks/grading.py FOLDER`.

FOLDER has math500.jsonl (fields id, problem, answer; one JSON object a line). The file graded holds 500 problems x 4
samples: the reference as it is, the same value written another way, another problem's answer, and a cut-off or hostile
one. The command runs as a user would start it; peak memory is that of all its processes together.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HOSTILE = (
    r"1000000000!",
    r"9^{9^{9^{9}}}",
    r"\dfrac{5^{5^{5^{5^{5}}}}-5}{16}",
    r"\sum_{k=1}^{1000000000} k^k",
    r"\binom{1000000000}{500000000}",
    r"\int_0^1 e^{x^{x^{x}}} dx",
)


def samples(references: list[str], i: int, every: int) -> list[str]:
    """The four completions for problem i; one in `every` problems has a hostile answer."""
    last = rf"\boxed{{{HOSTILE[i // every % len(HOSTILE)]}}}" if i % every == 0 else r"so we get \boxed{"
    filler = "<think>" + "Let me see. " * 500 + r"maybe \boxed{0}</think>"
    return [
        rf"{filler} \boxed{{{references[i]}}}",
        rf"{filler} \boxed{{0+{references[i]}}}",
        rf"{filler} \boxed{{{references[(i + 1) % len(references)]}}}",
        f"{filler} {last}",
    ]


def write(folder: Path, target: Path, problems: int, every: int) -> None:
    rows = [json.loads(line) for line in (folder / "math500.jsonl").read_text().splitlines()][:problems]
    references = [row["answer"] for row in rows]
    with target.open("w") as file:
        for i, row in enumerate(rows):
            file.write(json.dumps({**row, "completions": samples(references, i, every)}) + "\n")


def family(root: int) -> list[int]:
    """A process and all its descendants (Linux)."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return list(found)


def resident(process: int) -> int:
    """Proportional bytes of a process: pages shared after a fork count once."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--hostile-every", type=int, default=25, help="problems per hostile answer")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "completions.jsonl"
        write(args.folder, file, args.problems, args.hostile_every)
        start, peak, done = time.perf_counter(), 0, threading.Event()
        process = subprocess.Popen(
            [sys.executable, "-m", "pte_cli", "eval", "--grade", str(file), "--json"], stdout=subprocess.PIPE
        )

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.1):
                peak = max(peak, sum(map(resident, family(process.pid))))

        watcher = threading.Thread(target=watch)
        watcher.start()
        output, _ = process.communicate()
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
    result = json.loads(output)
    print(f"{result['problems']} problems x {result['samples'][0]} samples, grader: {result['grader']}")
    print(f"{seconds:.1f} s, peak {peak / 2**20:.0f} MiB, avg {result['average']['mean']:.4f}")
    print(", ".join(f"{reason} {count}" for reason, count in result["reasons"].items()))


if __name__ == "__main__":
    main()
