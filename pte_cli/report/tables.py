"""A summary as rows of text, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pte_cli.report.intervals import Interval
from pte_cli.report.summary import Arm, Comparison, Summary

SHARES = ("accuracy", "queries", "clipped_ratio")
"""Metrics between 0 and 1, shown as percentages."""
NO_INTERVAL = "n = 1: no interval"


def estimate(interval: Interval, scale: float = 1, sign: str = "") -> str:
    """`55.8 (49.4 to 62.1)`, or that one run gives no interval."""
    mean = f"{scale * interval.mean:{sign}.1f}"
    if interval.low is None or interval.high is None:
        return f"{mean} ({NO_INTERVAL})"
    return f"{mean} ({scale * interval.low:{sign}.1f} to {scale * interval.high:{sign}.1f})"


def difference(comparison: Comparison | None) -> str:
    """`+34.4 (+29.1 to +39.0)`: a difference of accuracies, in points."""
    return "" if comparison is None else estimate(comparison.difference, 100, "+")


def mebibytes(count: float | None) -> str:
    return "" if count is None else f"{count / 2**20:.2f}"


def columns(summary: Summary) -> Mapping[str, Callable[[Arm], str]]:
    """The columns of the table that people read."""
    question = summary.question
    scale, unit = (100, ", %") if question.metric in SHARES else (1, "")
    shown: dict[str, Callable[[Arm], str]] = {
        f"{question.metric}{unit}": lambda arm: estimate(arm.estimate, scale),
        "n": lambda arm: f"{arm.estimate.n} of {arm.planned}" if arm.estimate.n < arm.planned else str(arm.planned),
    }
    if question.baseline is not None:
        shown[f"minus {question.baseline}"] = lambda arm: difference(arm.baseline)
    return shown | {
        "MiB held": lambda arm: mebibytes(arm.bytes),
        "peak MiB": lambda arm: f"{(arm.machine['peak_bytes'] or 0) / 2**20:.0f}",
        "tokens/s": lambda arm: f"{arm.machine['tokens_per_second'] or 0:.0f}",
        "length": lambda arm: f"{arm.mean_length:.1f}",
        "evictions": lambda arm: f"{arm.evictions:.1f}",
    }


def rows(summary: Summary, part: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of one part; columns that are empty throughout are left out."""
    arms = summary.of(part)
    best = summary.best(part) if len(arms) > 1 else None
    table = {"": [label(arm) + (" *" if arm is best else "") for arm in arms]}
    for heading, show in columns(summary).items():
        cells = [show(arm) for arm in arms]
        if any(cells):
            table[heading] = cells
    return list(table), [list(row) for row in zip(*table.values(), strict=True)]


def equal_bytes_rows(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the comparison with the baseline at equal bytes."""
    headings = ["", "MiB held", "against", "MiB held", f"minus {summary.question.baseline}"]
    return headings, [
        [arm.name, mebibytes(arm.bytes), found.against, mebibytes(found.bytes), difference(found)]
        for arm in summary.arms
        if (found := arm.equal_bytes) is not None
    ]


def tables(summary: Summary) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, headings, rows) of everything there is to show."""
    found = [(part, *rows(summary, part)) for part in summary.parts]
    headings, body = equal_bytes_rows(summary)
    return [*found, ("at equal bytes", headings, body)] if body else found


def label(arm: Arm) -> str:
    """The name of an arm inside its part."""
    return arm.name.partition("/")[2]


def notes(summary: Summary) -> list[str]:
    """What a reader has to know about the numbers."""
    question = summary.question
    lines = [
        f"{summary.finished} of {summary.planned} runs are finished. * is the best mean of its table "
        f"({question.metric}, {question.goal}).",
        "Intervals are 95 %: of means over seeds, by Student's t. All was measured greedily on held-out problems.",
        "MiB held: KV cache and encoder states of all sequences generated at the same time, and the adapter once.",
    ]
    if question.baseline is not None:
        lines.append(
            f"minus {question.baseline}: accuracy in points, over the same problems, runs of one seed paired, with a "
            "bootstrap interval over seeds and problems."
        )
        lines.append(
            "At equal bytes: against the smallest budget of the baseline that holds at least as many bytes; an arm "
            "without such a run is not in that table."
        )
    return lines


def document(summary: Summary) -> dict[str, Any]:
    """The summary as JSON. What depends on the machine stands under `machine`; the rest is the same for equal runs."""
    question = summary.question
    return {
        "title": question.title,
        "metric": question.metric,
        "goal": question.goal,
        "baseline": question.baseline,
        "finished": summary.finished,
        "planned": summary.planned,
        "arms": [
            {
                "name": arm.name,
                "part": arm.part,
                "arm": arm.arm,
                "values": dict(arm.values),
                "planned": arm.planned,
                **_interval("", arm.estimate),
                "bytes": arm.bytes,
                **arm.parts,
                "rows": arm.rows,
                "window": arm.window,
                "mean_length": arm.mean_length,
                "evictions": arm.evictions,
                "baseline": _comparison(arm.baseline),
                "equal_bytes": _comparison(arm.equal_bytes),
                "runs": {str(seed): result.folder.name for seed, result in arm.results.items()},
                "machine": dict(arm.machine),
            }
            for arm in summary.arms
        ],
    }


def _interval(prefix: str, interval: Interval) -> dict[str, Any]:
    return {
        f"{prefix}mean": interval.mean,
        f"{prefix}low": interval.low,
        f"{prefix}high": interval.high,
        f"{prefix}n": interval.n,
    }


def _comparison(found: Comparison | None) -> dict[str, Any] | None:
    return found and {"against": found.against, "bytes": found.bytes, **_interval("", found.difference)}


def write_tables(summary: Summary, folder: Path) -> list[Path]:
    """report.json, arms.csv (a row each) and runs.csv (a row for each run of each arm)."""
    whole = document(summary)
    (folder / "report.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    arms = [_flat(arm) for arm in whole["arms"]]
    runs = [
        {
            "name": arm.name,
            "seed": seed,
            "run": result.folder.name,
            **{k: v for k, v in result.after.items() if not isinstance(v, dict | list)},
            "peak_bytes": result.machine["peak_bytes"],
            "seconds": result.machine["seconds"],
        }
        for arm in summary.arms
        for seed, result in arm.results.items()
    ]
    _write_csv(folder / "arms.csv", arms)
    _write_csv(folder / "runs.csv", runs)
    return [folder / name for name in ("report.json", "arms.csv", "runs.csv")]


def _flat(arm: Mapping[str, Any]) -> dict[str, Any]:
    """One arm of the document as cells: nested tables as `baseline_mean`, settings as text."""
    row: dict[str, Any] = {}
    for key, value in arm.items():
        if key == "values":
            row["values"] = " ".join(f"{name}={json.dumps(given)}" for name, given in value.items())
        elif key in ("baseline", "equal_bytes"):
            names = ("against", "bytes", "mean", "low", "high", "n")
            row |= {f"{key}_{name}": (value or {}).get(name) for name in names}
        elif key == "machine":
            row |= value
        elif key != "runs":
            row[key] = value
    return row


def _write_csv(file: Path, records: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for record in records for name in record))
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(records)
