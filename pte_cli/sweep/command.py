"""The command that starts a run, or goes on with it."""

from __future__ import annotations

import json
import sys
from typing import Any

from pte_cli.runs import RunDir
from pte_cli.sweep.plan import Rerun, Task
from pte_cli.sweep.state import Where, resumable, set_aside, state_of


def start_command(task: Task, rerun: Rerun | None = None) -> list[str]:
    """What to execute for `task` now; makes its files ready.

    An interrupted training goes on from its last checkpoint where it has one. Everything else starts from the
    beginning, in a fresh folder; what was there is kept beside it.
    """
    return [sys.executable, "-m", "pte_cli.sweep.guard", str(task.where.lock), *_pte(task, rerun)]


def _pte(task: Task, rerun: Rerun | None) -> list[str]:
    where = task.where
    pte = [sys.executable, "-m", "pte_cli"]
    if task.command == "train" and rerun != "all" and resumable(where):
        return [*pte, "train", "--resume", str(where.run), "--json"]
    if state_of(where) != "new":
        set_aside(where)
    write_config(where, task.config.model_dump(mode="json", exclude={"out"}))
    measured = [str(Where(where.sweep, task.after).run)] if task.after is not None else []
    return [*pte, task.command, *measured, "--config", str(where.config), "--out", str(where.run), "--json"]


def write_config(where: Where, config: dict[str, Any]) -> None:
    """The settings that the command reads."""
    where.config.parent.mkdir(parents=True, exist_ok=True)
    RunDir(where.config.parent).write_json(where.config.name, json.loads(json.dumps(config)))
