"""Where on this machine a run may work: a device, if there are any, and a share of the CPU cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

LOCAL = "local"


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices(environment: Mapping[str, str], dev: Path = Path("/dev")) -> list[str]:
    """The CUDA devices to share out: those of CUDA_VISIBLE_DEVICES, else all. Imports no torch."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        return [name.strip() for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    numbers = [path.name.removeprefix("nvidia") for path in dev.glob("nvidia[0-9]*")]
    return sorted(numbers, key=int)


def slot_environments(
    jobs: int, threads: int | None, engine: str, environment: Mapping[str, str]
) -> list[dict[str, str]]:
    """What each of `jobs` slots adds to the environment of its run: threads, and one device where runs are local.

    With fewer devices than slots, slots share them in turn. A cluster's scheduler gives out devices itself.
    """
    each = threads or max(1, cores() // jobs)
    found = devices(environment) if engine == LOCAL else []
    slots = []
    for i in range(jobs):
        slot = {"OMP_NUM_THREADS": str(each), "MKL_NUM_THREADS": str(each)}
        if found:
            slot["CUDA_VISIBLE_DEVICES"] = found[i % len(found)]
        slots.append(slot)
    return slots
