"""Where a run stands, as its folder and its lock say, and what is done with what is left of an earlier try."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pte_cli.errors import UsageError

State = Literal["new", "running", "interrupted", "failed", "finished"]


@dataclass(frozen=True)
class Where:
    """The files of one run in a sweep's folder."""

    sweep: Path
    key: str

    @property
    def run(self) -> Path:
        """The run's folder, as `pte train --out` makes it."""
        return self.sweep / "runs" / self.key

    @property
    def config(self) -> Path:
        return self.sweep / "configs" / f"{self.key}.json"

    @property
    def lock(self) -> Path:
        """Locked by the run's process as long as it lives."""
        return self.sweep / "locks" / self.key

    @property
    def log(self) -> Path:
        """The output of the latest try."""
        return self.sweep / "logs" / f"{self.key}.log"


def read_status(run: Path) -> dict[str, Any]:
    """status.json of a run's folder; empty where there is none."""
    try:
        found = json.loads((run / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def state_of(where: Where) -> State:
    """Where a run stands. One that says `running` but whose process is gone was interrupted."""
    if locked(where.lock):
        return "running"
    if not where.run.exists():
        return "new"
    state = read_status(where.run).get("state")
    if state in ("finished", "failed"):
        return state  # type: ignore[no-any-return]
    return "interrupted"


def locked(path: Path) -> bool:
    """Whether a living process holds the lock file `path`."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def sweep_lock(folder: Path) -> Iterator[None]:
    """Inside the block no other `pte sweep` works in `folder`; UsageError where one does already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "sweep.lock").open("wb")
    except OSError as error:
        raise UsageError(f"--out {str(folder)!r}: {error.strerror}; choose a folder that can be written") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{str(folder)!r}: another `pte sweep` is at work here; wait for it or stop it") from None
        yield


def resumable(where: Where) -> bool:
    """Whether an interrupted run can go on from a checkpoint instead of from its start."""
    return state_of(where) == "interrupted" and (where.run / "checkpoints").is_dir()


def set_aside(where: Where) -> None:
    """Make room for a new try; what an earlier one left is kept as KEY.1, KEY.2, ..."""
    for path in (where.run, where.log):
        if path.exists():
            number = 1
            while (kept := path.with_name(f"{path.name}.{number}")).exists():
                number += 1
            path.rename(kept)


def mark_failed(where: Where, error: str) -> None:
    """Say that a run failed where its process could not say so itself."""
    if read_status(where.run).get("state") == "failed":
        return
    where.run.mkdir(parents=True, exist_ok=True)
    scratch = where.run / ".status.json.tmp"
    scratch.write_text(json.dumps({"state": "failed", "error": error}) + "\n", encoding="utf-8")
    scratch.replace(where.run / "status.json")
