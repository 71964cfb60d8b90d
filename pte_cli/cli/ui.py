"""What a person sees: progress on stderr, results on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

SHOWN = {
    "loss": "loss {:.3f}",
    "reward": "reward {:.2f}",
    "accuracy": "right {:.0%}",
    "gap/max": "gap {:.0e}",
}
QUIET_SECONDS = 5.0


FILE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe, which would be cut to 80 otherwise."""


class Lines(Console):
    """Asked for `soft_wrap`, it breaks lines between words on a terminal, and never for a file or a pipe."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **more: Any) -> None:
        super().print(*objects, soft_wrap=bool(soft_wrap) and not self.is_terminal, **more)


def out() -> Console:
    """Results: stdout."""
    console = Lines(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console


def err() -> Console:
    """Everything else: stderr."""
    return Lines(stderr=True, highlight=False, markup=False)


def only_results_on_stdout() -> AbstractContextManager[object]:
    """Inside the block what anyone prints, a plugin for instance, goes to stderr."""
    return redirect_stdout(sys.stderr)


def print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def next_step(command: str) -> None:
    """The last line of a command: what to run next."""
    err().print(f"next: {command}", soft_wrap=True)


def table(columns: Sequence[str], numbers_from: int | None = None) -> Table:
    """A table without a frame; columns from number `numbers_from` on are aligned right."""
    made = Table(show_edge=False, pad_edge=False)
    for i, name in enumerate(columns):
        right = numbers_from is not None and i >= numbers_from
        made.add_column(name, overflow="fold", justify="right" if right else "left")
    return made


class StepProgress:
    """Training progress: a live bar on a terminal, otherwise a plain line every few seconds."""

    def __init__(self) -> None:
        self.console = err()
        self.bar: Progress | None = None
        self.last = 0.0

    def __enter__(self) -> StepProgress:
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[shown]}"),
                console=self.console,
            )
            self.task = self.bar.add_task("prepare", total=None, shown="")
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, metrics: dict[str, Any], total: int) -> None:
        """Show the metrics of one step of `total`: on a terminal in the bar, else at most every few seconds."""
        shown = "  ".join(form.format(metrics[name]) for name, form in SHOWN.items() if name in metrics)
        if self.bar is not None:
            self.bar.update(
                self.task, completed=metrics["step"], total=total, description=metrics["phase"], shown=shown
            )
        elif time.monotonic() - self.last >= QUIET_SECONDS or metrics["step"] == total:
            self.last = time.monotonic()
            self.console.print(f"{metrics['phase']} {metrics['step']}/{total}  {shown}", soft_wrap=True)

    def measured(self, done: int, total: int) -> None:
        """Show that `done` of `total` held-out problems are answered."""
        self.step({"phase": "held-out problems", "step": done}, total)


def percent(accuracy: dict[str, Any]) -> str:
    """`78.1 % (72.7 to 82.7)`."""
    return f"{100 * accuracy['accuracy']:.1f} % ({100 * accuracy['low']:.1f} to {100 * accuracy['high']:.1f})"


def accuracy_table(title: str, columns: dict[str, dict[str, Any]]) -> Table:
    """Evaluations side by side; intervals are 95 % over problems."""
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("held-out problems")
    for name in columns:
        table.add_column(name, justify="right")
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "accuracy (95 % interval)": percent,
        "single queries right": lambda a: "" if a["queries"] is None else f"{100 * a['queries']:.1f} %",
        "mean reward": lambda a: "" if a["reward"] is None else f"{a['reward']:.3f}",
        "could not be graded": lambda a: str(a["ungraded"] or ""),
        "problems": lambda a: str(a["n"]),
        "mean length, tokens": lambda a: f"{a['mean_length']:.1f}",
        "cut off": lambda a: f"{100 * a['clipped_ratio']:.1f} %",
        "evictions per sequence": lambda a: f"{a['evictions']:.1f}",
        "KV cache, whole batch": lambda a: f"{a['cache_bytes'] / 2**20:.2f} MiB",
        "tokens per second": lambda a: f"{a['tokens_per_second']:.0f}",
    }
    for name, show in rows.items():
        cells = [show(a) for a in columns.values()]
        if any(cells):
            table.add_row(name, *cells)
    return table


def sizes_table(title: str, sizes: dict[str, Any]) -> Table:
    """What a run on a model would hold, before anything of it is allocated."""
    table = Table(title=f"{title}, sizes by arithmetic", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("what")
    table.add_column("", justify="right")
    for group, count in sizes["parameters"].items():
        table.add_row(f"parameters, {group}", f"{count:,}")
    for what, count in sizes["bytes"].items():
        table.add_row(f"bytes, {what}", "unbounded" if count is None else f"{count:,}")
    return table
