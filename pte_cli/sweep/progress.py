"""How far a run has come, read from its folder while it works."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pte_cli.sweep.state import read_status

TAIL = 16384
SHOWN = ("accuracy", "reward", "loss")
"""The metrics of a step to show, the first one that is there."""


@dataclass(frozen=True)
class Progress:
    """Steps done; the name and value of a metric of the last one; peak bytes so far."""

    step: int = 0
    metric: tuple[str, float] | None = None
    peak_bytes: int | None = None


def progress_of(run: Path) -> Progress:
    """What the last line of metrics.jsonl says, and status.json of a finished run."""
    result = read_status(run).get("result") or {}
    last = last_record(run / "metrics.jsonl")
    after = result.get("after") or {}
    if "accuracy" in after:
        metric: tuple[str, float] | None = ("held-out accuracy", float(after["accuracy"]))
    else:
        metric = next(((name, float(last[name])) for name in SHOWN if name in last), None)
    return Progress(int(last.get("step", 0)), metric, result.get("peak_bytes", last.get("peak_bytes")))


def last_record(file: Path) -> dict[str, Any]:
    """The last whole line of a JSON Lines file; empty where there is none."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL))
            lines = stream.read().split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            return record
    return {}
