"""The queue: starts runs on free slots, sees them end, tries failed ones again. One thread; runs are processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pte_cli.api import Job, Launcher
from pte_cli.sweep.plan import Task
from pte_cli.sweep.progress import Progress, progress_of
from pte_cli.sweep.state import Where, locked, mark_failed, read_status

POLL_SECONDS = 0.5
GRACE_SECONDS = 30.0
EVALUATION_STEPS = 20
"""What an evaluation counts for in the estimate of the time left, in training steps."""


@dataclass
class Running:
    """A run at work. slot: None for one that an earlier sweep started."""

    task: Task
    job: Job
    slot: int | None
    attempt: int
    started: float
    progress: Progress = field(default_factory=Progress)


@dataclass
class Standing:
    """Where the queue stands: what a view shows."""

    waiting: list[Task] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    finished: list[Task] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by the name of the run."""
    skipped: list[Task] = field(default_factory=list)
    """Not started: the run they measure failed, or the sweep stopped at a failure."""
    seconds_left: float | None = None


class View(Protocol):
    """Who is told about the queue."""

    def event(self, line: str) -> None:
        """Something happened."""
        ...

    def update(self, standing: Standing) -> None:
        """Called at every turn."""
        ...


class Adopted:
    """A run that a killed sweep left at work: it can be waited for, through its lock."""

    def __init__(self, where: Where) -> None:
        self.where = where

    def poll(self) -> int | None:
        if locked(self.where.lock):
            return None
        return 0 if read_status(self.where.run).get("state") == "finished" else 1

    def cancel(self) -> None:
        """It isn't ours to stop."""


@dataclass
class Queue:
    """Works off `tasks`.

    command: makes a run's files ready and says what to execute. slots: the environment that each slot adds.
    retries: how often a failed run is tried again.
    """

    tasks: Sequence[Task]
    launcher: Launcher
    command: Callable[[Task], Sequence[str]]
    slots: Sequence[dict[str, str]]
    view: View
    retries: int = 0
    fail_fast: bool = False
    poll_seconds: float = POLL_SECONDS
    standing: Standing = field(default_factory=Standing)
    tries: dict[str, int] = field(default_factory=dict)

    def run(self) -> Standing:
        """Until nothing is left to do. Interrupted, it stops the runs first, and leaves them resumable."""
        standing = self.standing
        standing.waiting = [task for task in self.tasks if task.todo]
        self.total = sum(work(task) for task in standing.waiting)
        self.began = time.monotonic()
        try:
            while standing.waiting or standing.running:
                self.start()
                self.collect()
                standing.seconds_left = self.seconds_left()
                self.view.update(standing)
                if standing.running:
                    time.sleep(self.poll_seconds)
        finally:
            self.stop()
        return standing

    def start(self) -> None:
        """Fill the free slots with runs whose predecessors are finished."""
        standing = self.standing
        unfinished = {task.key for task in standing.waiting} | {running.task.key for running in standing.running}
        taken = {running.slot for running in standing.running}
        free = [i for i in range(len(self.slots)) if i not in taken]
        # A run that an earlier sweep left at work takes no slot of ours, but the room of one.
        free = free[: max(0, len(self.slots) - len(standing.running))]
        for task in list(standing.waiting):
            if task.after is not None and task.after in unfinished:
                continue
            if self.blocked(task):
                standing.waiting.remove(task)
                standing.skipped.append(task)
                self.view.event(f"skipped   {task.name}: the run it measures is not finished")
            elif locked(task.where.lock):
                standing.waiting.remove(task)
                standing.running.append(Running(task, Adopted(task.where), None, 1, time.monotonic()))
                free = free[1:]
                self.view.event(f"waiting   {task.name}: still at work since an earlier sweep")
            elif free:
                standing.waiting.remove(task)
                self.launch(task, free.pop(0))

    def blocked(self, task: Task) -> bool:
        """Whether the run that `task` measures can't be there any more."""
        return (
            task.after is not None and read_status(Where(task.where.sweep, task.after).run).get("state") != "finished"
        )

    def launch(self, task: Task, slot: int) -> None:
        self.tries[task.key] = attempt = self.tries.get(task.key, 0) + 1
        command = self.command(task)
        job = self.launcher.submit(command, log=task.where.log, environment=self.slots[slot])
        self.standing.running.append(Running(task, job, slot, attempt, time.monotonic()))
        verb = "resumed  " if "--resume" in command else "started  "
        self.view.event(f"{verb} {task.name}" + (f", try {attempt}" if attempt > 1 else ""))

    def collect(self) -> None:
        """See what has ended."""
        standing = self.standing
        for running in list(standing.running):
            task, code = running.task, running.job.poll()
            running.progress = progress_of(task.where.run)
            if code is None:
                continue
            standing.running.remove(running)
            if code == 0 and read_status(task.where.run).get("state") == "finished":
                standing.finished.append(task)
                self.view.event(f"finished  {task.name}{described(running.progress)}")
                continue
            reason = why_failed(task.where, code)
            mark_failed(task.where, reason)
            if running.attempt <= self.retries:
                standing.waiting.insert(0, task)
                self.view.event(f"failed    {task.name}: {reason}; trying again")
                continue
            standing.failed[task.name] = reason
            self.view.event(f"failed    {task.name}: {reason}; see {task.where.log}")
            if self.fail_fast:
                standing.skipped += standing.waiting
                standing.waiting = []
                self.stop()
                standing.skipped += [other.task for other in standing.running]
                standing.running = []
                return

    def stop(self) -> None:
        """Ask what runs to stop, and give it a moment to leave its state behind."""
        ours = [running for running in self.standing.running if running.slot is not None]
        for running in ours:
            running.job.cancel()
        deadline = time.monotonic() + GRACE_SECONDS
        while any(running.job.poll() is None for running in ours) and time.monotonic() < deadline:
            time.sleep(min(0.1, self.poll_seconds))

    def seconds_left(self) -> float | None:
        """By the work done since the start; None before there is any."""
        standing = self.standing
        left = sum(work(task) for task in standing.waiting)
        left += sum(max(0.0, work(r.task) - r.progress.step) for r in standing.running)
        done, spent = self.total - left, time.monotonic() - self.began
        return left * spent / done if done > 0 else None


def work(task: Task) -> float:
    """What a run counts for in the estimate of the time left."""
    return task.steps + EVALUATION_STEPS


def described(progress: Progress) -> str:
    """`, held-out accuracy 0.563`."""
    return f", {progress.metric[0]} {progress.metric[1]:.3f}" if progress.metric is not None else ""


def why_failed(where: Where, code: int) -> str:
    """One line: what the run's status says, else the last line of its log, else how its process ended."""
    status = read_status(where.run)
    if status.get("state") == "failed" and status.get("error"):
        return " ".join(str(status["error"]).split())
    if code < 0:
        hint = " (out of memory?)" if code == -9 else ""
        return f"ended by signal {-code}{hint}"
    return last_line(where.log) or f"exit status {code}"


def last_line(log: Path) -> str:
    """The last line with text of a log."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
