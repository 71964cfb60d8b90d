"""What a call of `pte sweep` would do: the distinct runs, where each stands, and whether that is within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.report.cells import Cell
from pte_cli.sweep.expand import Planned, expand
from pte_cli.sweep.schema import Minutes, SweepFile
from pte_cli.sweep.state import State, Where, state_of

Rerun = Literal["failed", "all"]


@dataclass(frozen=True)
class Task:
    """One distinct run: the cells that share it and where it stands.

    after: the key of the run that must be finished first. todo: whether this call starts it.
    """

    key: str
    command: str
    config: RunConfig
    cells: tuple[Cell, ...]
    where: Where
    state: State
    after: str | None
    todo: bool

    @property
    def name(self) -> str:
        """Its first cell and seed."""
        return f"{self.cells[0].name}, seed {self.cells[0].seed}"

    @property
    def steps(self) -> int:
        """Optimizer steps it takes."""
        return 0 if self.command == "eval" else self.config.steps


@dataclass(frozen=True)
class Plan:
    """Everything one call is about: all cells of the file, and the distinct runs among the selected ones."""

    file: SweepFile
    folder: Path
    cells: tuple[Cell, ...]
    selected: frozenset[str]
    tasks: tuple[Task, ...]

    @property
    def todo(self) -> list[Task]:
        return [task for task in self.tasks if task.todo]

    @property
    def hours(self) -> float | None:
        """What is to do, by the clock, at the file's minutes per run; None without those."""
        minutes = self.file.sweep.budget.minutes
        if minutes == Minutes():
            return None
        per_run = minutes.model_dump()
        return sum(per_run[task.command] for task in self.todo) / 60 / self.file.sweep.jobs


def make_plan(
    file: SweepFile, folder: Path, *, only: Sequence[str] = (), rerun: Rerun | None = None, jobs: int | None = None
) -> Plan:
    """The plan of `file` with its runs in `folder`. UsageError for anything wrong, or over the file's budget.

    only: globs of cell names, or names of parts. rerun: start failed, or all, runs anew.
    """
    if jobs is not None:
        file = SweepFile(file.path, file.sweep.model_copy(update={"jobs": jobs}), file.defaults, file.runs, file.axes)
    planned = expand(file)
    names = {p.cell.name for p in planned}
    selected = frozenset(name for name in names if not only or any(_matches(name, glob) for glob in only))
    for glob in only:
        if not any(_matches(name, glob) for name in names):
            raise UsageError(f"--only {glob!r}: matches no run of {file.path}; `--dry-run` lists their names")
    plan = Plan(
        file, folder, tuple(p.cell for p in planned), selected, _tasks(planned, selected, folder, rerun)
    )  # fmt: skip
    _check_budget(plan)
    return plan


def _tasks(planned: Sequence[Planned], selected: frozenset[str], folder: Path, rerun: Rerun | None) -> tuple[Task, ...]:
    """One task for each distinct run that the selected cells need, training before what measures it."""
    by_key: dict[str, list[Planned]] = {}
    for p in planned:
        by_key.setdefault(p.cell.key, []).append(p)
    wanted = [p for p in planned if p.cell.name in selected]
    keys = dict.fromkeys(key for p in wanted for key in (p.cell.trained, p.cell.key) if key is not None)
    tasks: dict[str, Task] = {}
    for key in keys:
        first = by_key[key][0]
        where = Where(folder, key)
        state = state_of(where)
        after = first.cell.trained
        todo = _todo(state, rerun) or (after is not None and tasks[after].todo)
        cells = tuple(p.cell for p in by_key[key])
        tasks[key] = Task(key, first.command, first.config, cells, where, state, after, todo)
    return tuple(tasks.values())


def _todo(state: State, rerun: Rerun | None) -> bool:
    if rerun == "all":
        return True
    return state not in ("finished", "failed") or (state == "failed" and rerun == "failed")


def _matches(name: str, glob: str) -> bool:
    """A glob over whole names, or a part, a run or a point by its name alone."""
    return fnmatchcase(name, glob) or name.startswith(f"{glob}/")


def _check_budget(plan: Plan) -> None:
    budget, hours = plan.file.sweep.budget, plan.hours
    if budget.runs is not None and len(plan.todo) > budget.runs:
        raise plan.file.wrong(
            f"sweep.budget.runs = {budget.runs}", f"there are {len(plan.todo)} runs to do; allow more, or use --only"
        )
    if budget.hours is not None and hours is not None and hours > budget.hours:
        raise plan.file.wrong(
            f"sweep.budget.hours = {budget.hours:g}",
            f"what is to do takes about {hours:.1f} hours with jobs = {plan.file.sweep.jobs}; allow more or use --only",
        )


def counts(tasks: Iterable[Task]) -> dict[str, int]:
    """How many runs stand where."""
    found: dict[str, int] = {}
    for task in tasks:
        found[task.state] = found.get(task.state, 0) + 1
    return found


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "sweep": plan.file.sweep.name,
        "file": str(plan.file.path),
        "folder": str(plan.folder),
        "cells": len(plan.cells),
        "runs": [
            {
                "key": task.key,
                "command": task.command,
                "cells": sorted({cell.name for cell in task.cells}),
                "seeds": sorted({cell.seed for cell in task.cells}),
                "after": task.after,
                "state": task.state,
                "todo": task.todo,
            }
            for task in plan.tasks
        ],
        "todo": len(plan.todo),
        "hours": plan.hours,
    }
