"""`slurm`: runs are jobs of a Slurm cluster, through submitit (`pip install 'pte-cli[slurm]'`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import Launcher, LauncherSpec


class SlurmOptions(BaseModel):
    """Options of the `slurm` launcher (`launch.options.NAME` in a sweep's file)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: Literal["slurm", "local", "debug"] = Field(
        "slurm", description="slurm, or submitit's stand-ins: processes of this machine, or this very process"
    )
    folder: str = Field("slurm", description="submitit's files; must be visible from the nodes")
    minutes: int = Field(60, ge=1, description="time limit of a job")
    cpus: int = Field(1, ge=1, description="CPU cores of a job")
    gpus: int = Field(0, ge=0, description="GPUs of a job")
    memory_gb: float | None = Field(None, gt=0, description="memory of a job")
    partition: str | None = Field(None, description="Slurm partition")
    more: dict[str, Any] = Field(default_factory=dict, description="further submitit parameters, slurm_account = ...")


def build(options: SlurmOptions) -> Launcher:
    from pte_plugins.launchers.slurm_jobs import Slurm

    return Slurm(options)


@hookimpl
def pte_launchers() -> list[LauncherSpec]:
    return [LauncherSpec("slurm", "jobs of a Slurm cluster, through submitit", build, SlurmOptions)]
