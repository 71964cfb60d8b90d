"""experiments.toml as data: read, and checked as far as goes without looking at single configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pte_cli.errors import UsageError, did_you_mean

SCHEMA = 1
COMMANDS = ("train", "eval")
METRICS = ("accuracy", "queries", "reward", "mean_length", "clipped_ratio", "evictions", "cache_bytes")
"""What of a run's accuracy can be compared."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


class Table(BaseModel):
    """Frozen, and a misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Minutes(Table):
    """What one run is expected to take; 0 is not known."""

    train: float = Field(0.0, ge=0)
    eval: float = Field(0.0, ge=0)


class Budget(Table):
    """What one call may start: `runs`, and `hours` by the clock at `minutes` per run."""

    runs: int | None = Field(None, ge=1)
    hours: float | None = Field(None, gt=0)
    minutes: Minutes = Minutes()


class Launch(Table):
    """Where runs go: `local`, `slurm`, or a launcher plugin, and its options."""

    engine: str = "local"
    options: dict[str, Any] = Field(default_factory=dict)


class Sweep(Table):
    """The table [sweep]."""

    name: str = Field(pattern=NAME)
    command: Literal["train", "eval"] = "train"
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    jobs: int = Field(1, ge=1)
    threads: int | None = Field(None, ge=1)
    retries: int = Field(0, ge=0)
    baseline: str | None = None
    metric: Literal[METRICS] = "accuracy"  # type: ignore[valid-type]
    goal: Literal["max", "min"] = "max"
    budget: Budget = Budget()
    launch: Launch = Launch()

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        return distinct_seeds(seeds)


class Axis(Table):
    """One of [[axes]]: the settings in `grid` crossed, those in `zip` side by side, on each run in `base`."""

    name: str = Field(pattern=NAME)
    base: tuple[str, ...] = Field((), description="named runs, or cells of earlier parts, as globs; none: all runs")
    command: Literal["train", "eval"] | None = None
    seeds: tuple[int, ...] | None = Field(None, min_length=1)
    grid: dict[str, Any] = Field(default_factory=dict)
    zip: dict[str, Any] = Field(default_factory=dict)
    exclude: tuple[dict[str, Any], ...] = ()

    @field_validator("base", mode="before")
    @classmethod
    def _listed(cls, base: Any) -> Any:
        return [base] if isinstance(base, str) else base

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return seeds if seeds is None else distinct_seeds(seeds)


@dataclass(frozen=True)
class Run:
    """One of [runs.NAME]: its own settings, and its command where it isn't the sweep's."""

    command: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class SweepFile:
    """A whole file."""

    path: Path
    sweep: Sweep
    defaults: Mapping[str, Any]
    runs: Mapping[str, Run]
    axes: tuple[Axis, ...]

    def wrong(self, where: str, what: str) -> UsageError:
        """The error that names the file, the table and what is wrong there."""
        return UsageError(f"{self.path}: {where}: {what}")


def distinct_seeds(seeds: tuple[int, ...]) -> tuple[int, ...]:
    """`seeds`, once each and not negative; ValueError otherwise."""
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError("must be different whole numbers from 0")
    return seeds


def read_sweep(path: Path) -> SweepFile:
    """The file at `path`. UsageError names the file and the key, or the line where it is no TOML."""
    try:
        tree = tomli.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read ({error})") from None
    except (tomli.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None
    return parse_sweep(path, tree)


def parse_sweep(path: Path, tree: Mapping[str, Any]) -> SweepFile:
    """`tree` as a sweep; errors as above."""
    known = ("schema", "sweep", "defaults", "runs", "axes")
    for key in tree:
        if key not in known:
            raise UsageError(f"{path}: {key}: unknown key; {did_you_mean(key, known)}")
    if tree.get("schema") != SCHEMA:
        raise UsageError(f"{path}: schema = {tree.get('schema')!r}: this version reads schema = {SCHEMA}")
    for key in ("sweep", "runs"):
        if not isinstance(tree.get(key), dict) or not tree[key]:
            raise UsageError(f"{path}: [{key}]: missing; a sweep has a table [sweep] and at least one [runs.NAME]")
    if tree["sweep"].get("command") == "profile":
        raise UsageError(f"{path}: sweep.command = 'profile': a sweep runs 'train' or 'eval'")
    sweep = _checked(path, "sweep", Sweep, tree["sweep"])
    axes = tree.get("axes", [])
    if not isinstance(axes, list):
        raise UsageError(f"{path}: axes: must be tables written as [[axes]]")
    file = SweepFile(
        path,
        sweep,
        _settings(path, "defaults", tree.get("defaults", {})),
        {name: _run(path, name, table, sweep.command) for name, table in tree["runs"].items()},
        tuple(_checked(path, _axis_name(i, table), Axis, table) for i, table in enumerate(axes)),
    )
    _check_names(file)
    return file


def _check_names(file: SweepFile) -> None:
    sweep = file.sweep
    if sweep.baseline is not None and sweep.baseline not in file.runs:
        raise file.wrong(
            f"sweep.baseline = {sweep.baseline!r}", f"no such run; {did_you_mean(sweep.baseline, file.runs)}"
        )
    if sweep.budget.hours is not None and sweep.budget.minutes == Minutes():
        raise file.wrong(
            f"sweep.budget.hours = {sweep.budget.hours:g}",
            "needs an estimate per run, for example budget.minutes = { train = 5, eval = 1 }",
        )
    seen = {"main"}
    for axis in file.axes:
        if axis.name in seen:
            raise file.wrong(f"axes.name = {axis.name!r}", "is taken; every axis needs a name of its own")
        seen.add(axis.name)


def _run(path: Path, name: str, table: Any, command: str) -> Run:
    settings = dict(_settings(path, f"runs.{name}", table))
    if not name or "/" in name:
        raise UsageError(f"{path}: runs.{name!r}: a name may not be empty or contain '/'")
    command = settings.pop("command", command)
    if command not in COMMANDS:
        raise UsageError(f"{path}: runs.{name}.command = {command!r}: a sweep runs 'train' or 'eval'")
    return Run(command, settings)


def _settings(path: Path, where: str, table: Any) -> Mapping[str, Any]:
    """A table of a run's settings; the two that the sweep itself decides are refused."""
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {where} = {table!r}: must be a table of settings")
    if "seed" in table:
        raise UsageError(f"{path}: {where}.seed = {table['seed']!r}: seeds are given once, in [sweep] seeds or an axis")
    if "out" in table:
        raise UsageError(f"{path}: {where}.out = {table['out']!r}: the sweep chooses the folders; see --out")
    return table


def _axis_name(index: int, table: Any) -> str:
    name = table.get("name") if isinstance(table, dict) else None
    return f"axes.{name}" if isinstance(name, str) else f"axes[{index}]"


def _checked(path: Path, where: str, model: type[Any], table: Any) -> Any:
    """`table` as `model`; UsageError for the first thing wrong with it."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise UsageError(f"{path}: {_explain(where, model, error)}") from None


def _explain(where: str, model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join([where, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        inner: Any = model
        for part in first["loc"][:-1]:
            inner = inner.model_fields[part].annotation
        return f"{name} = {first['input']!r}: unknown key; {did_you_mean(str(first['loc'][-1]), inner.model_fields)}"
    if first["type"] == "missing":
        return f"{name}: missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{name} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every value in nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
