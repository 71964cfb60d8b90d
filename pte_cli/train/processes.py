"""The processes of a run: one, or as many as `accelerate launch` started. All that crosses between them goes here.

Gradients are summed, never averaged: losses are divided by counts of the whole batch before they are back-propagated.
Each step has the same few exchanges in every process, however long its completions are, so none waits for ever.
The layers of a base model that is shared out are gathered in between, as often as processes ask (`Shards`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType, gather_object, parse_flag_from_env
from torch import nn

from pte_cli.errors import UsageError
from pte_cli.model.shards import Shards

T = TypeVar("T")
SUPPORTED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.FSDP)


class Processes:
    """This process among `count`; `rank` 0 is the one that writes files and talks.

    trackers: accelerate's names of trackers that metrics also go to, with their files in `folder`. shards: for the base
    model, where accelerate was told to use FSDP. UsageError for a way of sharding that is not supported.
    """

    def __init__(self, device: str = "auto", trackers: Sequence[str] = (), folder: Path | None = None) -> None:
        # Without being told, accelerate makes no group of processes on a machine that has only CPUs.
        cpu = device == "cpu" or not torch.accelerator.is_available()
        plugin = _fsdp_plugin()
        self.accelerator = Accelerator(
            cpu=cpu,
            log_with=list(trackers) or None,
            project_dir=str(folder) if folder else None,
            fsdp_plugin=plugin,
        )
        if self.accelerator.distributed_type not in SUPPORTED:
            raise UsageError(
                f"accelerate is set to {self.accelerator.distributed_type.value}: not supported; use `accelerate "
                "launch --multi_gpu`, or `--use_fsdp --fsdp_version 2` where the base doesn't fit on one device"
            )
        self.rank: int = self.accelerator.process_index
        self.count: int = self.accelerator.num_processes
        self.shards = Shards(self.rank, self.count) if plugin is not None and self.count > 1 else None

    @property
    def main(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of `count` things are this process's: every n-th, so that shares differ by one at most."""
        return range(self.rank, count, self.count)

    def gather(self, items: list[T]) -> list[T]:
        """The items of all processes, those of rank 0 first."""
        self._rest()
        return items if self.count == 1 else gather_object(items)

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return any(self.gather([flag]))

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Each parameter's gradient becomes the sum over processes; none stays none where no process has any."""
        if self.count == 1 or not self.any(any(p.grad is not None for p in parameters)):
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        flat = self.accelerator.reduce(flat, "sum")
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter).clone()

    def start_trackers(self, name: str, settings: dict[str, Any]) -> None:
        """Begin a run in every tracker, with its settings."""
        if self.accelerator.log_with:
            self.accelerator.init_trackers(name, config=settings)

    def track(self, metrics: dict[str, Any], step: int) -> None:
        """The numbers of a step to every tracker, of which the main process has some."""
        if self.accelerator.log_with:
            self.accelerator.log({k: v for k, v in metrics.items() if isinstance(v, int | float)}, step=step)

    def end(self) -> None:
        """Let trackers finish, and leave the group of processes."""
        self._rest()
        self.accelerator.end_training()

    def _rest(self) -> None:
        """Before every exchange: help other processes through the layers they still want."""
        if self.shards is not None:
            self.shards.rest()


def _fsdp_plugin() -> FullyShardedDataParallelPlugin | None:
    """FSDP as accelerate was told to use it, on CPUs too, where it would take no notice; None where it was not."""
    if not parse_flag_from_env("ACCELERATE_USE_FSDP"):
        return None
    version = os.environ.get("FSDP_VERSION", "1")  # the default is accelerate's
    if version != "2":
        raise UsageError(
            f"accelerate is set to FSDP version {version}: version 2 is supported; use `accelerate launch --use_fsdp "
            "--fsdp_version 2`"
        )
    # Every process reads all weights, to take its part of them; accelerate would have only the first do so.
    return FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
