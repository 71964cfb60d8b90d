"""Reports as tables of text, which the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Row = list[str]
BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
FLOPS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))


@dataclass(frozen=True)
class ReportTable:
    """title, names of columns, rows of as many cells; the first column is text."""

    title: str
    columns: list[str]
    rows: list[Row]


def scale(values: Iterable[float], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The (size, name) of the unit in which the largest of `values` has the fewest digits before the point."""
    largest = max(values, default=0)
    return next((unit for unit in units if largest >= unit[0]), units[-1])


def curve(step: dict[str, Any]) -> str:
    """The arm and its bound: `PTE, budget 768`."""
    return step["arm"] if step["budget"] is None else f"{step['arm']}, budget {step['budget']}"


def longest(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The step at the greatest length of each curve."""
    return list({curve(step): step for step in report["steps"]}.values())


def tables(report: dict[str, Any]) -> list[ReportTable]:
    """The tables of any of the reports."""
    return MAKERS[report["report"]](report)


def memory_tables(report: dict[str, Any]) -> list[ReportTable]:
    """Peaks by phase, parts at the peak of the longest step of each curve, and what fits."""
    steps, ends = report["steps"], longest(report)
    unit, name = scale((step["predicted"]["peak"] for step in steps), BYTES)
    measured = any("measured" in step for step in steps)
    peaks = []
    for step in steps:
        predicted = step["predicted"]
        sizes = [*(phase["peak"] for phase in predicted["phases"].values()), predicted["peak"]]
        sizes += [step["measured"]["peak"]] if measured else []
        ratio = [f"{step['predicted_to_measured']:.4f}"] if measured else []
        peaks.append([curve(step), f"{step['length']:,}", *(f"{size / unit:.2f}" for size in sizes), *ratio])
    columns = ["arm", "tokens", "rollout", "replay", "update", "peak", *(["measured", "ratio"] if measured else [])]
    parts = dict.fromkeys(part for step in ends for part in step["predicted"]["parts"])
    split = [[part, *(f"{step['predicted']['parts'].get(part, 0) / unit:.2f}" for step in ends)] for part in parts]
    found = [
        ReportTable(f"predicted peak of one training step, {name}", columns, peaks),
        _by_arm(f"by part at the peak, {name}", ends, split),
    ]
    if "fits" in report:
        most = [[curve(fit), _most(fit["most_tokens"]), _most(fit["most_rows"])] for fit in report["fits"]]
        columns = ["arm", f"tokens for {report['rows']} rows", f"rows of {ends[0]['length']:,} tokens"]
        unit, name = scale([report["memory"]], BYTES)
        found.append(ReportTable(f"the most that fits {report['memory'] / unit:g} {name}", columns, most))
    return found


def _by_arm(title: str, ends: list[dict[str, Any]], rows: list[Row]) -> ReportTable:
    """A table with one column for each curve, at its greatest length."""
    return ReportTable(f"{title}, {ends[0]['length']:,} tokens", ["", *(curve(step) for step in ends)], rows)


def _most(count: dict[str, Any]) -> str:
    if count["at_most"] is None:
        return "not even 1"
    return f"{count['at_most']:,}{' or more' if count['or_more'] else ''}"


def flops_tables(report: dict[str, Any]) -> list[ReportTable]:
    """Operations by phase, and by part for the longest step of each curve."""
    steps, ends = report["steps"], longest(report)
    unit, name = scale((step["total"] for step in steps), FLOPS)
    rows = []
    for step in steps:
        attention = step["attention"]
        counts = [sum(parts.values()) for parts in step["phases"].values()]
        counts += [step["total"], attention["executed"], attention["needed"]]
        rows.append([curve(step), f"{step['length']:,}", *(f"{count / unit:.3f}" for count in counts)])
    columns = ["arm", "tokens", "rollout", "replay", "total", "attention", "of it needed"]
    split = [
        [part, *(f"{sum(phase[part] for phase in step['phases'].values()) / unit:.3f}" for step in ends)]
        for part in ends[0]["phases"]["replay"]
    ]
    return [
        ReportTable(f"operations of one training step, {name}", columns, rows),
        _by_arm(f"by part, {name}", ends, split),
    ]


def speed_tables(report: dict[str, Any]) -> list[ReportTable]:
    """Tokens per second by phase, and where the seconds of the longest step of each curve went."""
    rows = [
        [
            curve(step),
            f"{step['length']:,}",
            *(f"{step['phases'][phase]['tokens_per_second']:,.0f}" for phase in ("rollout", "replay", "update")),
            f"{step['decode'][0]['ms']:.2f}" if step["decode"] else "",
            f"{step['decode'][-1]['ms']:.2f}" if step["decode"] else "",
        ]
        for step in report["steps"]
    ]
    columns = ["arm", "tokens", "rollout", "replay", "update", "decode, first", "decode, last"]
    title = f"tokens per second by phase, ms per decode step, {report['threads']} threads"
    split = []
    ends = longest(report)
    for phase in ("rollout", "replay"):
        for part in ends[0]["phases"][phase]["breakdown"]:
            spent = (f"{step['phases'][phase]['breakdown'][part]:.2f}" for step in ends)
            split.append([f"{phase}: {part}", *spent])
    return [ReportTable(title, columns, rows), _by_arm("seconds", ends, split)]


def trace_tables(report: dict[str, Any]) -> list[ReportTable]:
    """The operators that took longest, without what they call."""
    rows = [
        [operator["name"], f"{operator['calls']:,}", f"{operator['cpu_ms']:.1f}", f"{operator['device_ms']:.1f}"]
        for operator in report["operators"]
    ]
    title = f"one step of {curve(report)}, {report['length']:,} tokens, without what an operator calls"
    return [ReportTable(title, ["operator", "calls", "ms on the CPU", "ms on the device"], rows)]


MAKERS: dict[str, Callable[[dict[str, Any]], list[ReportTable]]] = {
    "memory": memory_tables,
    "flops": flops_tables,
    "speed": speed_tables,
    "trace": trace_tables,
}
