"""What the pictures of one run show: its metrics over its steps. No drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pte_cli.report.runs import RunView
from pte_cli.report.series import SMOOTHING, Line, Picture, Point, smooth

MIB = 2**-20


@dataclass(frozen=True)
class Curves:
    """One picture of the metrics in `lines`, by the names they are shown with. by_phase: one for each objective."""

    name: str
    title: str
    y: str
    lines: Mapping[str, str]
    scale: float = 1
    log: bool = False
    by_phase: bool = False


WANTED = (
    Curves("loss", "loss", "loss", {"loss": "loss"}, by_phase=True),
    Curves("reward", "reward of sampled completions", "reward", {"reward": "mean reward"}),
    Curves("accuracy", "sampled completions that are right", "right, %", {"accuracy": "right"}, 100),
    Curves(
        "gap",
        "gap: |log p(rollout) - log p(replay)| over tokens",
        "gap, nats",
        {"gap/max": "largest", "gap/p95": "95th percentile", "gap/mean": "mean"},
        log=True,
    ),
    Curves("kl", "KL to the model without adapter", "KL, nats", {"kl": "KL"}),
    Curves("evictions", "evictions", "per sequence", {"evictions": "evictions"}),
    Curves(
        "length",
        "length of sampled completions",
        "tokens",
        {"completions/max_length": "longest", "completions/mean_length": "mean", "completions/min_length": "shortest"},
    ),
    Curves(
        "memory",
        "memory",
        "MiB",
        {"peak_bytes": "peak of the process", "device_bytes": "peak on the device", "cache_bytes": "KV cache"},
        MIB,
    ),
    Curves("state", "share of the update that the encoder makes", "share, %", {"encoder/update_share": "share"}, 100),
    Curves("norm", "gradient norm before clipping", "norm", {"grad_norm": "norm"}, log=True),
    Curves(
        "speed",
        "speed",
        "tokens per second",
        {"tokens_per_second/rollout": "rollout", "tokens_per_second/replay": "replay"},
    ),
)


def run_pictures(run: RunView) -> list[Picture]:
    """A picture for everything that the run has logged."""
    phases = list(dict.fromkeys(line["phase"] for line in run.metrics))
    found = []
    for wanted in WANTED:
        for phase in phases if wanted.by_phase else [None]:
            lines = [line for line in run.metrics if phase in (None, line["phase"])]
            curves = {shown: curve for key, shown in wanted.lines.items() if (curve := of_metric(lines, key))}
            if curves:
                found.append(_picture(wanted, phase, curves))
    return found


def of_metric(lines: Sequence[Mapping[str, Any]], key: str) -> dict[int, float]:
    """step -> value of one metric; a step that was logged twice (a resumed run) counts as it was the last time."""
    return {line["step"]: float(line[key]) for line in lines if line.get(key) is not None and math.isfinite(line[key])}


def _picture(wanted: Curves, phase: str | None, curves: Mapping[str, dict[int, float]]) -> Picture:
    lines = [Line(shown, _points(curve)) for shown, curve in curves.items()]
    note = "each step"
    if len(curves) == 1 and not wanted.log and len(lines[0].points) >= 2 * SMOOTHING:
        [curve] = curves.values()
        means = Line(f"mean of {SMOOTHING} steps", _points(smooth(curve)))
        lines, note = [Line("each step", lines[0].points, faint=True), means], ""
    return Picture(
        f"{wanted.name}-{phase}" if phase else wanted.name,
        f"{phase}: {wanted.title}" if phase else wanted.title,
        "step",
        wanted.y,
        wanted.scale,
        tuple(lines),
        band=True,
        log=wanted.log,
        note=note,
    )


def _points(curve: Mapping[int, float]) -> tuple[Point, ...]:
    return tuple(Point(step, curve[step], None, None) for step in sorted(curve))
