"""Every comparison of speed and memory, one after the other: `python benchmarks/all.py [NAME ...] [--model FILE.gguf]`.

rollout, step, decode, continuous: speed.py; smollm: the same with the GGUF file of SmolLM2-135M; memory: memory.py;
predictions: predictions.py; trl: trl_step.py, which installs TRL in an environment of its own. Hours, all in all. What
each prints is described there; one that fails stops nothing, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMANDS = {
    "rollout": ["speed.py", "rollout"],
    "step": ["speed.py", "step"],
    "decode": ["speed.py", "decode"],
    "continuous": ["speed.py", "continuous"],
    "smollm": ["speed.py", "smollm", "--lengths", "64", "1024", "4096"],
    "memory": ["memory.py"],
    "predictions": ["predictions.py"],
    "trl": ["trl_step.py"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--model", help="the GGUF file of smollm, which is left out without it")
    args = parser.parse_args()
    wrong = [name for name in args.names if name not in COMMANDS]
    if wrong:
        parser.error(f"{wrong[0]}: not one of {', '.join(COMMANDS)}")
    if "smollm" in args.names and args.model is None:
        parser.error("smollm needs --model FILE.gguf")
    failed = []
    for name in args.names or [name for name in COMMANDS if args.model or name != "smollm"]:
        script, *words = COMMANDS[name]
        words += ["--model", args.model] if name == "smollm" else []
        print(f"== {' '.join([script, *words])}", flush=True)
        if subprocess.run([sys.executable, str(HERE / script), *words], check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
