"""The queue of a sweep as a person sees it: a live table on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pte_cli.cli import ui
from pte_cli.sweep.queue import Running, Standing, described

LINE_SECONDS = 30.0


class QueueView:
    """Implements `sweep.queue.View`; everything goes to stderr."""

    def __init__(self) -> None:
        self.console = ui.err()
        self.live: Live | None = None
        self.last = time.monotonic()

    def __enter__(self) -> QueueView:
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def event(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)

    def update(self, standing: Standing) -> None:
        if self.live is not None:
            self.live.update(Group(running_table(standing), Text(summary_line(standing))))
        elif time.monotonic() - self.last >= LINE_SECONDS:
            self.last = time.monotonic()
            self.event(summary_line(standing))
            for running in standing.running:
                self.event(f"          {running_line(running)}")


def running_table(standing: Standing) -> Table:
    """The runs at work, a row each."""
    table = Table(show_edge=False, pad_edge=False)
    for name in ("running", "steps", "metric", "peak memory", "minutes"):
        table.add_column(name, justify="left" if name == "running" else "right")
    for running in standing.running:
        progress = running.progress
        table.add_row(
            running.task.name,
            steps(running),
            described(progress).removeprefix(", "),
            mebibytes(progress.peak_bytes),
            f"{(time.monotonic() - running.started) / 60:.1f}",
        )
    return table


def running_line(running: Running) -> str:
    """`main/pte, seed 0: 120/500, loss 0.412, 612 MiB`."""
    known = [steps(running), described(running.progress).removeprefix(", "), mebibytes(running.progress.peak_bytes)]
    return f"{running.task.name}: " + ", ".join(part for part in known if part)


def summary_line(standing: Standing) -> str:
    """`12 done, 2 running, 1 failed, 6 waiting, about 34 min left`."""
    line = (
        f"{len(standing.finished)} done, {len(standing.running)} running, {len(standing.failed)} failed, "
        f"{len(standing.waiting)} waiting"
    )
    if not standing.seconds_left:
        return line
    return f"{line}, about {max(1, round(standing.seconds_left / 60))} min left"


def steps(running: Running) -> str:
    total = running.task.steps
    return f"{running.progress.step}/{total}" if total else "evaluation"


def mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.0f} MiB"
