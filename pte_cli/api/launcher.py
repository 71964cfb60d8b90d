"""What a launcher is: it starts the runs of a sweep somewhere and says how they ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from pte_cli.api.options import NoOptions


class Job(Protocol):
    """One command that was started."""

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        ...

    def cancel(self) -> None:
        """Ask it to stop (SIGTERM, or the scheduler's equivalent); returns at once."""
        ...


class Launcher(Protocol):
    """Starts commands: on this machine, or through a cluster's scheduler."""

    def submit(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> Job:
        """Start `command`, with `environment` added to the present one, its output written to the file `log`."""
        ...


@dataclass(frozen=True)
class LauncherSpec:
    """How a plugin announces a launcher. `build(options)` makes it; import anything heavy in there."""

    name: str
    summary: str
    build: Callable[[Any], Launcher]
    options: type[BaseModel] = NoOptions
    api: int = 1
