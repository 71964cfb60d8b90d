"""Commands as submitit jobs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pte_cli.errors import UsageError

if TYPE_CHECKING:
    from pte_plugins.launchers.slurm import SlurmOptions


def execute(command: Sequence[str], log: str, environment: Mapping[str, str], folder: str) -> int:
    """Run `command` on the node, in `folder`; its exit status, minus the signal's number where one ended it."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        return subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=folder,
            check=False,
        ).returncode


class SlurmJob:
    """A job in the cluster's queue or at work."""

    def __init__(self, job: Any) -> None:
        self.job = job

    def poll(self) -> int | None:
        """The command's exit status; None while it waits or runs; 1 where the scheduler ended the job."""
        if not self.job.done():
            return None
        error = self.job.exception()
        return 1 if error is not None else int(self.job.result())

    def cancel(self) -> None:
        with suppress(FileNotFoundError, subprocess.CalledProcessError):  # no scheduler, or the job has ended
            self.job.cancel()


class Slurm:
    """Submits commands. UsageError where submitit is missing or does not know a parameter."""

    def __init__(self, options: SlurmOptions) -> None:
        try:
            import submitit
        except ImportError:
            raise UsageError("launch.engine = 'slurm': needs submitit; pip install 'pte-cli[slurm]'") from None
        self.executor = submitit.AutoExecutor(folder=options.folder, cluster=options.cluster)
        parameters = {
            "timeout_min": options.minutes,
            "cpus_per_task": options.cpus,
            "gpus_per_node": options.gpus,
            "mem_gb": options.memory_gb,
            "slurm_partition": options.partition,
            **options.more,
        }
        try:
            self.executor.update_parameters(**{name: value for name, value in parameters.items() if value is not None})
        except (NameError, TypeError, ValueError) as error:
            raise UsageError(f"launch.options.more: {error}") from None

    def submit(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> SlurmJob:
        """Queue `command`; it runs in the present folder, with its output in the file `log`."""
        return SlurmJob(
            self.executor.submit(execute, list(command), str(log.resolve()), dict(environment), os.getcwd())
        )
