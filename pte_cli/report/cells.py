"""What a report is told about a sweep: its cells, and where the folder of each run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAIN = "main"
"""The part of the named runs; every axis is a part of its own."""


@dataclass(frozen=True)
class Cell:
    """One configuration with one seed.

    part: `main` or an axis. arm: the named run it comes from. values: what the axis sets, by dotted key. origin: what
    an earlier axis had set for the training that this one measures.
    budget: cached tokens of a sequence, None where they are not bounded. key: the name of the run's folder, which
    cells with equal settings share. trained: the key of the run whose adapter this one measures.
    """

    part: str
    arm: str
    values: Mapping[str, Any]
    seed: int
    budget: int | None
    key: str
    trained: str | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`main/pte` or `window/pte/budget=40`: what --only is matched against."""
        return "/".join(part for part in (self.part, self.line, assignments(self.values)) if part)

    @property
    def line(self) -> str:
        """The arm, and how it was trained where that is not as its run says: what one line of a picture shows."""
        return f"{self.arm}@{assignments(self.origin)}" if self.origin else self.arm


def assignments(values: Mapping[str, Any]) -> str:
    """`budget=40,encoder=pte`: settings by their last name, or by their section where that is `name`.

    Two that would read the same are written in full.
    """
    short = {key: _short(key) for key in values}
    twice = {name for name in short.values() if list(short.values()).count(name) > 1}
    return ",".join(f"{key if short[key] in twice else short[key]}={value}" for key, value in values.items())


def _short(key: str) -> str:
    section, _, last = key.rpartition(".")
    return section.rpartition(".")[2] if last == "name" else last


@dataclass(frozen=True)
class Question:
    """What the report is about.

    metric: a key of a run's accuracy. goal: `max` or `min`. baseline: the arm that the others are compared with.
    """

    title: str
    cells: Sequence[Cell]
    folder: Path
    metric: str = "accuracy"
    goal: str = "max"
    baseline: str | None = None
    shown: frozenset[str] = field(default_factory=frozenset)
    """Names of the cells to report on; empty: all. The others are only looked up to compare with."""

    def wants(self, cell: Cell) -> bool:
        return not self.shown or cell.name in self.shown
