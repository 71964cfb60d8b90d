"""What the pictures show, as numbers: one list of points for each line. No drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pte_cli.report.cells import MAIN
from pte_cli.report.collect import Result
from pte_cli.report.intervals import mean_interval
from pte_cli.report.summary import Arm, Summary
from pte_cli.report.tables import SHARES

SMOOTHING = 25
"""Steps that a point of a learning curve is the mean of."""
BINS = 5
FEW = 0.01
"""A smaller share of the completions is no group: a single one would look like a trend."""


@dataclass(frozen=True)
class Point:
    """A mean at x and its interval; `low` and `high` are None for one run."""

    x: float
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Line:
    """The points of one arm, by rising x. faint: what other lines summarise."""

    arm: str
    points: tuple[Point, ...]
    faint: bool = False


@dataclass(frozen=True)
class Picture:
    """One set of axes. name: of its file. scale: what y is multiplied with. log: whether its scale is logarithmic.

    note: small print; None: what the intervals are.
    """

    name: str
    title: str
    x: str
    y: str
    scale: float
    lines: tuple[Line, ...]
    band: bool = False
    log: bool = False
    note: str | None = None


def pictures(summary: Summary) -> list[Picture]:
    """All pictures there is something to show for."""
    found = [*learning_curves(summary), *against_window(summary), *against_length(summary), against_memory(summary)]
    return [picture for picture in found if picture.lines]


def learning_curves(summary: Summary) -> list[Picture]:
    """Each metric of training over steps, for the named runs: means over seeds with their intervals."""
    lines: dict[tuple[str, str], list[Line]] = {}
    for arm in summary.of(MAIN):
        results = list(arm.results.values())
        for kind in dict.fromkeys(kind for result in results for kind in result.curves):
            curves = [smooth(result.curves[kind]) for result in results if kind in result.curves]
            steps = sorted(set.intersection(*(set(curve) for curve in curves)))
            points = [_point(step, [curve[step] for curve in curves]) for step in steps]
            lines.setdefault(kind, []).append(Line(arm.arm, tuple(points)))
    return [
        Picture(
            f"learning-{phase}-{metric}",
            f"{phase}: {metric} in training",
            f"step (means of {SMOOTHING} steps)",
            metric,
            1,
            tuple(found),
            band=True,
        )
        for (phase, metric), found in sorted(lines.items())
    ]


def smooth(curve: Mapping[int, float], width: int = SMOOTHING) -> dict[int, float]:
    """Means of `width` steps each, at the last of them; of all steps where there are fewer."""
    steps = sorted(curve)
    chunks = [steps[i : i + width] for i in range(0, len(steps), width)]
    return {chunk[-1]: math.fsum(curve[step] for step in chunk) / len(chunk) for chunk in chunks}


def against_window(summary: Summary) -> list[Picture]:
    """The metric over the window, for every axis of budgets."""
    parts = [part for part in summary.parts if _sets(summary, part, "evict.budget") and not _resizes(summary, part)]
    return _along_axes(summary, parts, "window", "window, tokens of room for thinking", lambda arm: arm.window)


def against_length(summary: Summary) -> list[Picture]:
    """The metric over the generated length, for every axis that changes the problems; without one, by completions."""
    parts = [part for part in summary.parts if _resizes(summary, part)]
    if found := _along_axes(summary, parts, "length", "mean generated length, tokens", lambda arm: arm.mean_length):
        return found
    lines = [line for arm in summary.of(MAIN) if len((line := length_bins(arm)).points) > 1]
    return [
        Picture(
            "length-completions",
            "accuracy by generated length (completions of the main runs)",
            "generated length, tokens",
            "accuracy, %",
            100,
            tuple(lines),
        )
    ]


def _sets(summary: Summary, part: str, prefix: str) -> bool:
    return any(key.startswith(prefix) for arm in summary.of(part) for key in arm.values)


def _resizes(summary: Summary, part: str) -> bool:
    """Whether an axis changes the problems, or how long completions may get."""
    return any(_sets(summary, part, section) for section in ("task.", "data.", "sampling."))


def length_bins(arm: Arm) -> Line:
    """An arm's completions in at most 5 groups of rising length: share right, mean over seeds."""
    lengths = sorted(p["length"] for result in arm.results.values() for p in result.problems)
    edges = sorted({lengths[len(lengths) * i // BINS] for i in range(1, BINS)})
    points = []
    for low, high in zip([-math.inf, *edges], [*edges, math.inf], strict=True):
        inside = [_inside(result, low, high) for result in arm.results.values()]
        shares = [math.fsum(right for _, right in found) / len(found) for found in inside if found]
        sizes = [length for found in inside for length, _ in found]
        if len(sizes) >= max(1, FEW * len(lengths)):
            points.append(_point(sum(sizes) / len(sizes), shares))
    return Line(arm.arm, tuple(points))


def _inside(result: Result, low: float, high: float) -> list[tuple[int, float]]:
    return [(p["length"], float(p["right"])) for p in result.problems if low <= p["length"] < high]


def against_memory(summary: Summary) -> Picture:
    """The metric over bytes: the named runs and, joined to them, their other budgets."""
    lines = []
    for name in dict.fromkeys(arm.arm for arm in summary.arms):
        arms = [
            arm
            for arm in summary.arms
            if arm.arm == name and set(arm.values) <= {"evict.budget"} and _trained_here(arm)
        ]
        lines.append(_line(name, arms, lambda arm: arm.bytes / 2**20))
    return Picture(
        "memory",
        f"{summary.question.metric} by memory: KV cache, encoder states and adapter",
        "MiB for the sequences generated at the same time",
        *_vertical(summary),
        tuple(line for line in lines if line.points),
    )


def _vertical(summary: Summary) -> tuple[str, float]:
    """The sweep's metric as a y axis: its label and its scale."""
    metric = summary.question.metric
    return (f"{metric}, %", 100) if metric in SHARES else (metric, 1)


def _trained_here(arm: Arm) -> bool:
    """Whether the arm was trained under the budget it is measured with, or not at all."""
    return all(result.folder.name.startswith("train-") or arm.part == MAIN for result in arm.results.values())


def _along_axes(
    summary: Summary, parts: Sequence[str], name: str, x: str, where: Callable[[Arm], float | None]
) -> list[Picture]:
    """One picture for each of these axes; arms that are one point, or don't vary, are left out."""
    found = []
    for part in parts:
        arms = [arm for arm in summary.of(part) if where(arm) is not None]
        lines = [_line(n, [a for a in arms if a.line == n], where) for n in dict.fromkeys(a.line for a in arms)]
        lines = [line for line in lines if len(line.points) > 1 and line.points[-1].x > line.points[0].x]
        if lines:
            title = f"{summary.question.metric} by {name} (axis {part})"
            found.append(Picture(f"{name}-{part}", title, x, *_vertical(summary), tuple(lines)))
    return found


def _line(name: str, arms: Sequence[Arm], where: Callable[[Arm], float | None]) -> Line:
    points: dict[tuple[float, ...], Point] = {}
    for arm in arms:
        x, found = where(arm), arm.estimate
        if x is not None:
            points.setdefault((x, found.mean), Point(x, found.mean, found.low, found.high))
    return Line(name, tuple(sorted(points.values(), key=lambda point: (point.x, point.mean))))


def _point(x: float, values: Sequence[float]) -> Point:
    found = mean_interval(values)
    return Point(x, found.mean, found.low, found.high)
