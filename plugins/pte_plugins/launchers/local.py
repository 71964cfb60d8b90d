"""`local`: runs are processes of this machine, each in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pte_cli import hookimpl
from pte_cli.api import LauncherSpec, NoOptions


class LocalJob:
    """A process and whatever it started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def poll(self) -> int | None:
        """Its exit status, minus the signal's number where one ended it; None while it runs."""
        return self.process.poll()

    def cancel(self) -> None:
        """SIGTERM to the whole group; returns at once. Nothing happens once the process has ended."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)


class Local:
    """Starts commands here and now."""

    def submit(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> LocalJob:
        """Start `command`; stdout and stderr go to the file `log`, which is made anew."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # a group of its own: cancelling reaches its children, Ctrl-C here does not
            )
        return LocalJob(process)


def build(_options: NoOptions) -> Local:
    return Local()


@hookimpl
def pte_launchers() -> list[LauncherSpec]:
    return [LauncherSpec("local", "processes of this machine, one group each", build)]
