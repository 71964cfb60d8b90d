"""From the file to single runs: every named run and every point of every axis, with every seed, each one validated."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pte_cli.checks import check_config
from pte_cli.config import (
    AdapterConfig,
    EncoderConfig,
    GrpoConfig,
    RunConfig,
    SftConfig,
    TrainConfig,
    layered_tree,
    validate,
)
from pte_cli.errors import UsageError, did_you_mean
from pte_cli.registry import build, load_registry
from pte_cli.report.cells import MAIN, Cell
from pte_cli.sweep.schema import Axis, SweepFile, flattened

Layer = tuple[str, Mapping[str, Any]]
"""(the table a setting stands in, its settings)."""

MEASURABLE = ("evict", "task", "data", "sampling", "eval")
"""Sections that may differ between a run's training and its evaluation: the others made the adapter what it is."""

UNTRAINED = {
    "encoder": EncoderConfig(name="none"),
    "adapter": AdapterConfig(),
    "sft": SftConfig(),
    "grpo": GrpoConfig(),
    "train": TrainConfig(),
}
"""What says nothing about the model as it is: left at its default, so that equal evaluations are one."""


@dataclass(frozen=True)
class Planned:
    """A cell, its settings, and the layers of the file that they come from."""

    cell: Cell
    command: str
    config: RunConfig
    layers: tuple[Layer, ...]


def expand(file: SweepFile) -> list[Planned]:
    """All cells of `file`, part by part, and of each part the first seed of all before the second of any.

    UsageError names the table and setting of the first thing that is wrong.
    """
    found: list[Planned] = []
    for seed in file.sweep.seeds:
        for name, run in file.runs.items():
            layers = (("defaults", file.defaults), (f"runs.{name}", run.settings))
            found.append(_planned(file, Cell(MAIN, name, {}, seed, None, ""), run.command, layers, None))
    for axis in file.axes:
        found += _axis_cells(file, axis, found)
    return found


def _axis_cells(file: SweepFile, axis: Axis, before: Sequence[Planned]) -> list[Planned]:
    """The cells of one axis on the cells `before` it that its base names."""
    where = f"axes.{axis.name}"
    points = axis_points(file, axis)
    bases = sorted(_bases(file, axis, before), key=lambda base: file.sweep.seeds.index(base.cell.seed))
    excluded = [False] * len(axis.exclude)
    cells = []
    for base in bases:
        for point in points:
            layers = (*base.layers, (where, point))
            tree = layered_tree([("built-in", RunConfig().model_dump()), *layers])
            hits = [_contains(tree, layered_tree([(f"{where}.exclude", rule)])) for rule in axis.exclude]
            excluded = [a or b for a, b in zip(excluded, hits, strict=True)]
            if any(hits):
                continue
            command = axis.command or base.command
            trained = base if command == "eval" and base.command == "train" else None
            inherited = {} if trained is not None else base.cell.values
            cell = Cell(axis.name, base.cell.arm, {**inherited, **point}, base.cell.seed, None, "")
            cells.append(_planned(file, cell, command, layers, trained))
    for rule, hit in zip(axis.exclude, excluded, strict=True):
        if not hit:
            raise file.wrong(f"{where}.exclude", f"{dict(flattened(rule))!r} matches no cell of this axis")
    if not cells:
        raise file.wrong(where, "has no cells")
    return cells


def axis_points(file: SweepFile, axis: Axis) -> list[dict[str, Any]]:
    """What the axis sets at each of its points, by dotted key: grid's values crossed, then with zip's side by side."""
    where = f"axes.{axis.name}"
    grid, zipped = dict(flattened(axis.grid)), dict(flattened(axis.zip))
    if not grid and not zipped:
        raise file.wrong(where, "sets nothing; give grid.KEY or zip.KEY a list of values")
    for kind, settings in (("grid", grid), ("zip", zipped)):
        for key, values in settings.items():
            if not isinstance(values, list) or not values:
                raise file.wrong(f"{where}.{kind}.{key}", f"must be a list of values, got {values!r}")
            if key in ("seed", "out"):
                raise file.wrong(f"{where}.{kind}.{key}", "can't be an axis; use seeds = [...] or --out")
    for key in grid.keys() & zipped.keys():
        raise file.wrong(f"{where}.zip.{key}", "is in grid too")
    if len({len(values) for values in zipped.values()}) > 1:
        lengths = ", ".join(f"{key} has {len(values)}" for key, values in zipped.items())
        raise file.wrong(f"{where}.zip", f"its lists must be equally long: {lengths}")
    rows: list[dict[str, Any]] = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)]
    crossed = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [{**point, **row} for row in rows or [{}] for point in crossed]


def _bases(file: SweepFile, axis: Axis, before: Sequence[Planned]) -> Iterator[Planned]:
    """The cells an axis starts from: runs by their name, cells of earlier axes by `PART/...` globs."""
    chosen = axis.base or tuple(file.runs)
    for pattern in chosen:
        glob = pattern if "/" in pattern else f"{MAIN}/{pattern}"
        matching = [p for p in before if fnmatchcase(p.cell.name, glob)]
        if not matching:
            hint = did_you_mean(pattern, file.runs)
            raise file.wrong(f"axes.{axis.name}.base = {pattern!r}", f"no such run; {hint}")
        if measured := next((p for p in matching if p.cell.trained is not None), None):
            raise file.wrong(
                f"axes.{axis.name}.base = {pattern!r}",
                f"{measured.cell.name} measures a run and trains none; start from {measured.cell.arm!r}",
            )
        for planned in matching:
            if axis.seeds is None or planned.cell.seed in axis.seeds:
                yield planned
    missing = set(axis.seeds or ()) - set(file.sweep.seeds)
    if missing:
        raise file.wrong(f"axes.{axis.name}.seeds", f"{min(missing)} is not one of sweep.seeds")


def _planned(file: SweepFile, cell: Cell, command: str, layers: tuple[Layer, ...], trained: Planned | None) -> Planned:
    """`cell` with its settings, its budget and its key. trained: the run it measures."""
    config = _config(file, cell, layers)
    if trained is not None:
        _check_measurable(file, cell, config, trained.config)
    elif command == "eval":
        config = check_config(config.model_copy(update={**UNTRAINED, "seed": 0}))
    policy = build(load_registry().eviction(config.evict.policy), config.evict.options)
    identity = config.identity()
    if trained is not None:
        # The adapter is part of what is measured, however it was trained.
        identity = hashlib.sha256(f"{identity} {trained.cell.key}".encode()).hexdigest()[:12]
    placed = Cell(
        cell.part,
        cell.arm,
        cell.values,
        cell.seed,
        config.evict.budget if policy.bounded else None,
        f"{command}-{identity}",
        trained.cell.key if trained is not None else None,
        trained.cell.values if trained is not None else {},
    )
    return Planned(placed, command, config, layers)


def _config(file: SweepFile, cell: Cell, layers: Sequence[Layer]) -> RunConfig:
    """The settings of `cell`, checked. The error names the first table with which they are wrong."""
    seeded = ("sweep.seeds", {"seed": cell.seed})
    try:
        return check_config(validate(layered_tree([*layers, seeded])))
    except UsageError as error:
        for i in range(1, len(layers) + 1):
            try:
                check_config(validate(layered_tree(layers[:i])))
            except UsageError as earlier:
                raise file.wrong(f"[{layers[i - 1][0]}]", f"{_of(cell)}{earlier}") from None
        raise file.wrong(f"[{layers[-1][0]}]", f"{_of(cell)}{error}") from None


def _of(cell: Cell) -> str:
    shown = ", ".join(f"{key} = {json.dumps(value)}" for key, value in cell.values.items())
    return f"on {cell.arm} with {shown}: " if shown else ""


def _check_measurable(file: SweepFile, cell: Cell, config: RunConfig, trained: RunConfig) -> None:
    """UsageError where an evaluation changes what its run was trained with."""
    for section in RunConfig.model_fields:
        if section in (*MEASURABLE, "out"):
            continue
        if getattr(config, section) != getattr(trained, section):
            raise file.wrong(
                f"axes.{cell.part}",
                f"changes {section}, which the training of {cell.arm} decided; an axis with command = 'eval' may set "
                + ", ".join(f"{name}.*" for name in MEASURABLE),
            )


def _contains(tree: Any, part: Any) -> bool:
    """Whether everything in the nested tables `part` stands in `tree` too."""
    if isinstance(part, dict):
        return isinstance(tree, dict) and all(key in tree and _contains(tree[key], v) for key, v in part.items())
    return bool(tree == part)
