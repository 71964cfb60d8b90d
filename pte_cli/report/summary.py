"""From runs to arms: means over seeds, differences to the baseline at equal settings and at equal bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pte_cli.report.cells import MAIN, Cell, Question
from pte_cli.report.collect import Result, read_result
from pte_cli.report.intervals import Interval, mean_interval, paired_difference


@dataclass(frozen=True)
class Comparison:
    """Another arm, and by how much this one is better on the same problems (accuracy)."""

    against: str
    bytes: int
    difference: Interval


@dataclass(frozen=True)
class Arm:
    """The runs of one configuration, over seeds.

    line: the arm, and how it was trained where that differs. planned: runs there will be. window: tokens of room for
    thinking, None with the full cache. bytes: KV cache, encoder states and adapter of `rows` sequences. machine: means
    of what depends on the machine.
    """

    name: str
    part: str
    arm: str
    line: str
    values: Mapping[str, Any]
    planned: int
    estimate: Interval
    bytes: int
    parts: Mapping[str, int]
    rows: int
    window: float | None
    mean_length: float
    evictions: float
    baseline: Comparison | None
    equal_bytes: Comparison | None
    machine: Mapping[str, float | None]
    results: Mapping[int, Result] = field(repr=False)
    """By seed; of equal runs one."""


@dataclass(frozen=True)
class Summary:
    """Everything a report says, as data. Arms are in the order of the file."""

    question: Question
    arms: tuple[Arm, ...]
    finished: int
    planned: int

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(arm.part for arm in self.arms))

    def of(self, part: str) -> list[Arm]:
        return [arm for arm in self.arms if arm.part == part]

    def best(self, part: str) -> Arm:
        """The arm of the best mean, by the sweep's goal."""
        choose = max if self.question.goal == "max" else min
        return choose(self.of(part), key=lambda arm: arm.estimate.mean)


@dataclass(frozen=True)
class _Group:
    """Cells that differ in nothing but their seed, and the finished runs among them."""

    cells: tuple[Cell, ...]
    results: Mapping[int, Result]

    @property
    def first(self) -> Cell:
        return self.cells[0]

    @property
    def right(self) -> dict[int | None, Mapping[tuple[int, str], float]]:
        """By seed; an evaluation of the model as it is has none."""
        trained = self.first.trained is not None or self.first.key.startswith("train-")
        return {seed if trained else None: result.right for seed, result in self.results.items()}

    @property
    def bytes(self) -> int:
        return max(result.bytes for result in self.results.values())


def summarize(question: Question) -> Summary:
    """Read every run of the sweep and put the arms side by side."""
    groups = _groups(question)
    complete = [group for group in groups if group.results]
    shown = [group for group in complete if question.wants(group.first)]
    wanted = {cell.key for cell in question.cells if question.wants(cell)}
    found = {result.folder.name for group in shown for result in group.results.values()}
    return Summary(question, tuple(_arm(group, complete, question) for group in shown), len(found), len(wanted))


def _groups(question: Question) -> list[_Group]:
    by_name: dict[str, list[Cell]] = {}
    for cell in question.cells:
        by_name.setdefault(cell.name, []).append(cell)
    read: dict[str, Result | None] = {}
    groups = []
    for cells in by_name.values():
        distinct: dict[str, Cell] = {}
        for cell in cells:
            distinct.setdefault(cell.key, cell)
        for key in distinct:
            if key not in read:
                read[key] = read_result(question.folder / "runs" / key)
        results = {cell.seed: result for key, cell in distinct.items() if (result := read[key]) is not None}
        groups.append(_Group(tuple(distinct.values()), results))
    return groups


def _arm(group: _Group, groups: Sequence[_Group], question: Question) -> Arm:
    results = list(group.results.values())
    cell, widest = group.first, max(results, key=lambda result: result.bytes)
    same = _same_settings(group, groups, question)
    prompt = math.fsum(result.prompt_tokens for result in results) / len(results)
    return Arm(
        name=cell.name,
        part=cell.part,
        arm=cell.arm,
        line=cell.line,
        values=cell.values,
        planned=len(group.cells),
        estimate=mean_interval([float(result.after[question.metric]) for result in results]),
        bytes=widest.bytes,
        parts={name: int(widest.after[name]) for name in ("cache_bytes", "state_bytes", "adapter_bytes")},
        rows=int(widest.after["rows"]),
        window=None if cell.budget is None else cell.budget - prompt,
        mean_length=_mean(result.after["mean_length"] for result in results) or 0.0,
        evictions=_mean(result.after["evictions"] for result in results) or 0.0,
        baseline=_compared(group, same),
        equal_bytes=_compared(group, _same_bytes(group, groups, question)),
        machine={name: _mean(r.machine[name] for r in results) for name in results[0].machine},
        results=group.results,
    )


def _compared(group: _Group, other: _Group | None) -> Comparison | None:
    if other is None or other is group:
        return None
    difference = paired_difference(group.right, other.right)
    return None if difference is None else Comparison(other.first.name, other.bytes, difference)


def _same_settings(group: _Group, groups: Sequence[_Group], question: Question) -> _Group | None:
    """The baseline at the same point of the same axis; where the axis has none, the baseline itself."""
    cell = group.first
    of_baseline = [other for other in groups if other.first.arm == question.baseline]
    point = (cell.part, cell.origin, cell.values)
    at_point = [o for o in of_baseline if (o.first.part, o.first.origin, o.first.values) == point]
    if cell.arm == question.baseline:
        at_point = []
    return next(iter([*at_point, *(o for o in of_baseline if o.first.part == MAIN)]), None)


def _same_bytes(group: _Group, groups: Sequence[_Group], question: Question) -> _Group | None:
    """The baseline at the smallest budget that takes at least as many bytes, measured on the same problems."""
    if group.first.arm == question.baseline:
        return None
    problems = next(iter(group.results.values())).right.keys()
    candidates = [
        other
        for other in groups
        if other.first.arm == question.baseline
        and _beside_bytes(other.first) == _beside_bytes(group.first)
        and (other.first.trained is None, other.first.origin) == (group.first.trained is None, group.first.origin)
        and other.bytes >= group.bytes
        and next(iter(other.results.values())).right.keys() == problems
    ]
    return min(candidates, key=lambda other: other.bytes, default=None)


def _beside_bytes(cell: Cell) -> dict[str, Any]:
    """What an axis sets, without what may differ between arms of equal bytes: the budget and the encoder."""
    return {k: v for k, v in cell.values.items() if k != "evict.budget" and not k.startswith("encoder.")}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
