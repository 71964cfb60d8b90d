"""Folders of runs that were never made."""

from __future__ import annotations

import json

from pte_cli.config import validate

SCRIPT = '<script>alert("x")</script>'
SAMPLE = {
    "problem": 3,
    "right": False,
    "finish": "stop",
    "budget": 6,
    "prompt_tokens": 2,
    "answer": 4,
    "tokens": ["so", " &", " a", " b", " c", SCRIPT, " =", " 7"],
    # Two layers: `a` leaves both after 3, `b` one after 3 and the other after 4 (too late), `c` one after 2.
    "left": [[], [], [[3, 1.0]], [[3, 0.5], [4, 0.5]], [[2, 0.5]], [], [], []],
}


def accuracy(right):
    graded = [r for r in right if r is not None]
    share = sum(graded) / len(graded)
    return {
        "accuracy": share, "low": 0.0, "high": 1.0, "n": len(graded), "queries": None, "reward": 0.5,
        "ungraded": len(right) - len(graded), "mean_length": 6.0, "clipped_ratio": 0.0, "evictions": 2.0,
        "cache_bytes": 3 * 2**20, "state_bytes": 2**20, "adapter_bytes": 2**19, "rows": 4, "tokens_per_second": 100.0,
    }  # fmt: skip


def run_folder(path, settings=None, right=None, *, state="finished", metrics=(), samples=(), prompts="p"):
    """A run with these settings. right: of each held-out problem 1, 0, or None for one that could not be graded."""
    path.mkdir(parents=True)
    config = validate(settings or {})
    (path / "config.json").write_text(json.dumps(config.model_dump(mode="json", exclude={"out"})))
    env = {"python": "3.11.7", "command": ["pte", "train"], "packages": {"torch": "2.13.0", "peft": None}}
    (path / "env.json").write_text(json.dumps(env))
    status = {"state": state, "step": len(metrics)}
    if right is not None:
        after = accuracy(right)
        status["result"] = {"after": after, "before": after | {"accuracy": 0.125}, "peak_bytes": 2**29,
                            "seconds": {"training": 90.0, "all": 100.0}}  # fmt: skip
        problems = [
            {"problem": i, "prompt": f"{prompts}{i}", "right": None if r is None else bool(r)}
            for i, r in enumerate(right)
        ]
        (path / "held_out.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    (path / "status.json").write_text(json.dumps(status))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path
