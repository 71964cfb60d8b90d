"""Reports as figures: arms side by side, and what grows with the length. Needs matplotlib (`pte-cli[plots]`)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pte_cli.errors import UsageError
from pte_cli.profile.tables import BYTES, FLOPS, curve, longest, scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222255", "#994455")
"""Paul Tol's bright scheme, which people who don't tell red from green can read, and two more."""


def check_plots() -> None:
    """UsageError when matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UsageError("--out: figures need matplotlib, which is not installed: pip install 'pte-cli[plots]'")


def figure(report: dict[str, Any]) -> Figure:
    """The figure of any of the reports."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(12, 5.2), layout="constrained")
    DRAWERS[report["report"]](made, report)
    return made


def draw_memory(made: Figure, report: dict[str, Any]) -> None:
    """Peak against length, and what the peak consists of at the greatest length."""
    left, right = made.subplots(1, 2)
    unit, name = scale((step["predicted"]["peak"] for step in report["steps"]), BYTES)
    for colour, (arm, steps) in zip(_colours(), _curves(report).items(), strict=False):
        lengths = [step["length"] for step in steps]
        peaks = [step["predicted"]["peak"] / unit for step in steps]
        left.plot(lengths, peaks, "o-", mfc="none", color=colour, label=arm)
        if "measured" in steps[0]:
            peaks = [step["measured"]["peak"] / unit for step in steps]
            left.plot(lengths, peaks, "x", color=colour, label=f"{arm}, measured")
    if "memory" in report:
        left.axhline(report["memory"] / unit, color="black", lw=1, ls="--", label="--memory")
    _axes(left, "tokens per completion", f"peak of one step, {name}")
    ends = longest(report)
    bars = {curve(step): {part: size / unit for part, size in step["predicted"]["parts"].items()} for step in ends}
    _stacked(right, bars, f"{name} at the peak, {ends[0]['length']:,} tokens")


def draw_flops(made: Figure, report: dict[str, Any]) -> None:
    """Attention against length, and the parts of the whole at the greatest length."""
    left, right = made.subplots(1, 2)
    unit, name = scale((step["total"] for step in report["steps"]), FLOPS)
    for colour, (arm, steps) in zip(_colours(), _curves(report).items(), strict=False):
        lengths = [step["length"] for step in steps]
        for kind, style in (("needed", "o-"), ("executed", "x--")):
            counts = [step["attention"][kind] / unit for step in steps]
            left.plot(lengths, counts, style, mfc="none", color=colour, label=f"{arm}, {kind}")
    _axes(left, "tokens per completion", f"attention of one step, {name}")
    ends = longest(report)
    bars = {
        curve(step): {
            part: sum(phase[part] for phase in step["phases"].values()) / unit for part in step["phases"]["replay"]
        }
        for step in ends
    }
    _stacked(right, bars, f"{name} of one step, {ends[0]['length']:,} tokens")


def draw_speed(made: Figure, report: dict[str, Any]) -> None:
    """What a decode step takes as the rows get longer, and tokens per second by phase."""
    left, right = made.subplots(1, 2)
    ends = longest(report)
    for colour, step in zip(_colours(), ends, strict=False):
        points = step["decode"]
        ms = [point["ms"] for point in points]
        left.plot([point["tokens"] for point in points], ms, "o-", mfc="none", color=colour, label=curve(step))
    _axes(left, "tokens generated", "ms per decode step, all rows")
    bars = {
        curve(step): {
            f"{phase}: {part}": seconds
            for phase in ("rollout", "replay")
            for part, seconds in step["phases"][phase]["breakdown"].items()
        }
        for step in ends
    }
    _stacked(right, bars, f"seconds of one step, {ends[0]['length']:,} tokens")


def draw_trace(made: Figure, report: dict[str, Any]) -> None:
    """The operators that take longest."""
    axes = made.subplots()
    operators = report["operators"][::-1]
    on_device = any(operator["device_ms"] for operator in operators)
    times = [operator["device_ms" if on_device else "cpu_ms"] for operator in operators]
    axes.barh([operator["name"] for operator in operators], times, color=COLOURS[0])
    axes.set_xlabel(f"ms on the {'device' if on_device else 'CPU'}, without what it calls")
    axes.spines[["top", "right"]].set_visible(False)


DRAWERS: dict[str, Callable[[Figure, dict[str, Any]], None]] = {
    "memory": draw_memory,
    "flops": draw_flops,
    "speed": draw_speed,
    "trace": draw_trace,
}


def _colours() -> tuple[str, ...]:
    return COLOURS * 4


def _curves(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for step in report["steps"]:
        found.setdefault(curve(step), []).append(step)
    return found


def _axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _stacked(axes: Axes, bars: dict[str, dict[str, float]], label: str) -> None:
    """One bar for each of `bars`, its parts on top of each other."""
    names = list(bars)
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    bottom = [0.0] * len(names)
    for colour, part in zip(_colours(), parts, strict=False):
        heights = [bars[name].get(part, 0) for name in names]
        axes.bar([name.replace(", ", "\n") for name in names], heights, bottom=bottom, color=colour, label=part)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel(label)
    axes.set_ylim(0, 1.02 * max(bottom))
    axes.tick_params(axis="x", labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
