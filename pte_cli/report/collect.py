"""What finished runs left behind, read from their folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pte_cli.errors import PteError

SMOOTHED = ("loss", "reward", "accuracy")
"""The metrics of training that are drawn."""


@dataclass(frozen=True)
class Result:
    """One finished run. `after`: its accuracy as status.json has it; `machine`: what depends on where it ran."""

    folder: Path
    after: Mapping[str, Any]
    machine: Mapping[str, float | None]

    @property
    def bytes(self) -> int:
        """KV cache and encoder states of the sequences generated at the same time, and the adapter."""
        return int(self.after["cache_bytes"] + self.after["state_bytes"] + self.after["adapter_bytes"])

    @cached_property
    def problems(self) -> tuple[dict[str, Any], ...]:
        """What became of each held-out problem, those that could not be graded left out."""
        return tuple(record for record in read_lines(self.folder / "held_out.jsonl") if record["right"] is not None)

    @cached_property
    def right(self) -> dict[tuple[int, str], float]:
        """1 or 0 by problem; the key has a digest of the prompt, so that equal keys are equal problems."""
        return {(p["problem"], p["prompt"]): float(p["right"]) for p in self.problems}

    @cached_property
    def prompt_tokens(self) -> float:
        """Mean length of the prompts."""
        return sum(p["prompt_tokens"] for p in self.problems) / len(self.problems)

    @cached_property
    def curves(self) -> dict[tuple[str, str], dict[int, float]]:
        """(phase, metric) -> step -> value, of training."""
        found: dict[tuple[str, str], dict[int, float]] = {}
        for record in read_lines(self.folder / "metrics.jsonl"):
            for name in SMOOTHED:
                if name in record:
                    # A resumed run may have logged a step twice; the later line is of the run that went on.
                    found.setdefault((record["phase"], name), {})[record["step"]] = float(record[name])
        return found


def read_result(folder: Path) -> Result | None:
    """The run in `folder`; None where it is not finished, or measured nothing. PteError where files are missing."""
    try:
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    result = status.get("result") or {}
    after = result.get("after")
    if status.get("state") != "finished" or after is None:
        return None
    if not (folder / "held_out.jsonl").is_file():
        raise PteError(
            f"{folder}: has no held_out.jsonl, what became of each problem; delete the folder to run it anew"
        )
    seconds = result.get("seconds") or {}
    return Result(
        folder,
        after,
        {
            "tokens_per_second": after.get("tokens_per_second"),
            "peak_bytes": result.get("peak_bytes"),
            "seconds": seconds.get("all"),
        },
    )


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON Lines file; none where there is no file."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1] if line.strip()]
