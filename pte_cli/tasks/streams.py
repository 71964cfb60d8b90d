"""Which problems a run trains on and which it is measured on: random streams that never meet."""

from __future__ import annotations

import random

from pte_cli.api import Problem, Task


def held_out(task: Task, name: str, count: int, seed: int) -> list[Problem]:
    """The `count` evaluation problems of a seed. Training draws from other streams (`training_stream`)."""
    rng = random.Random(f"{_own(name)}/eval/{seed}")
    return [task.sample(rng) for _ in range(count)]


def training_stream(name: str, seed: int) -> random.Random:
    """The random numbers training problems of the task called `name` are drawn from."""
    return random.Random(f"{_own(name)}/train/{seed}")


def _own(name: str) -> str:
    """A task's name without its distribution: the same problems however it was named."""
    return name.rpartition(":")[2]
