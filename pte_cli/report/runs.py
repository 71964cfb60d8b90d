"""Runs as their folders tell them, finished or not: one for a person to look at, several to compare. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pte_cli.config import CHOICES, RunConfig, flat
from pte_cli.errors import UsageError
from pte_cli.eval.statistics import Estimate, paired_difference
from pte_cli.plugin_options import check_options
from pte_cli.registry import load_registry
from pte_cli.report.collect import read_lines
from pte_cli.runs import RunDir

DEPTH = 4
"""How many folders below the root a run may be: a sweep's are at runs/NAME/runs/KEY."""


@dataclass(frozen=True)
class RunView:
    """One run. `state` and `step` are what it said last, `result` what it measured; empty where it has not yet."""

    path: Path
    config: RunConfig
    status: Mapping[str, Any]

    @property
    def state(self) -> str:
        return str(self.status.get("state", "running"))

    @property
    def result(self) -> Mapping[str, Any]:
        return self.status.get("result") or {}

    @property
    def after(self) -> Mapping[str, Any]:
        """The held-out accuracy as status.json has it; empty where nothing was measured."""
        return self.result.get("after") or {}

    @property
    def before(self) -> Mapping[str, Any]:
        """The same before training; it is there before the run is finished."""
        found = self.result.get("before") or RunDir(self.path).read_json("before.json")
        return found or {}

    @property
    def step(self) -> int:
        """Steps done: those with metrics, where they say more than the state."""
        return max(int(self.status.get("step") or 0), int(self.last.get("step", 0)))

    @property
    def steps(self) -> int:
        """Steps of the whole training; 0 for an evaluation that was recorded."""
        return 0 if "adapter" in self.result else self.config.steps

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "metrics.jsonl")

    @property
    def last(self) -> Mapping[str, Any]:
        """The metrics of the last step."""
        return self.metrics[-1] if self.metrics else {}

    @cached_property
    def right(self) -> dict[str, float | None]:
        """1, 0 or None (not graded) by held-out problem; equal keys are equal problems."""
        return {
            f"{p['problem']}/{p['prompt']}": None if p["right"] is None else float(p["right"])
            for p in read_lines(self.path / "held_out.jsonl")
        }

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """Held-out completions token by token (eval/samples.py); empty where the run has none."""
        return read_lines(self.path / "samples.jsonl")

    @property
    def name(self) -> str:
        return str(self.path)

    def what(self) -> str:
        """`sft`, `sft+grpo`, or `eval` for an evaluation that was recorded."""
        return self.config.train.objective if self.steps else "eval"

    def files(self) -> dict[str, int]:
        """Bytes of each file, and of the files in each folder, by name."""
        sizes: dict[str, int] = {}
        for file in sorted(self.path.rglob("*")):
            if file.is_file():
                first, *inside = file.relative_to(self.path).parts
                key = f"{first}/" if inside else first
                sizes[key] = sizes.get(key, 0) + file.stat().st_size
        return sizes


def view(path: Path) -> RunView:
    """The run in a folder. UsageError where there is none, or its settings can't be read."""
    run = RunDir.open(path)
    try:
        status = run.read_json("status.json") or {}
    except ValueError:
        status = {}
    return RunView(path, run.config(), status)


def find_runs(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Every run's folder in `root`, or `root` itself, in the order of their names. UsageError for no such folder."""
    if not root.is_dir():
        raise UsageError(f"{str(root)!r}: there is no such folder; name the one that holds your runs")
    if (root / "config.json").is_file() and (root / "env.json").is_file():
        yield root
    elif depth:
        for folder in sorted(root.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                yield from find_runs(folder, depth - 1)


def settings(config: RunConfig) -> dict[str, Any]:
    """Every setting by its dotted name, those of strategies among them; `out` is none."""
    return flat(config.model_dump(mode="json", exclude={"out"}))


def changed_settings(config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """(default, of the run) of the settings that are not the defaults.

    A run's config.json has the options of its strategies filled in; what the strategy would have taken anyway is not
    listed. All options are where a strategy is not installed here.
    """
    plain = settings(RunConfig())
    for section, choice in CHOICES.items():
        plain |= _options(section, getattr(getattr(config, section), choice))
    ours = settings(config)
    return {name: (plain.get(name), ours[name]) for name in ours if ours[name] != plain.get(name)}


def _options(section: str, name: str) -> dict[str, Any]:
    """The default options of the strategy called `name`; none where it is not installed."""
    try:
        spec = load_registry().find(name, section).spec
        filled = check_options(f"{section}.options", spec, {})
    except UsageError:
        return {}
    return flat({section: {"options": filled.model_dump(mode="json")}})


# ---- several runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A run's held-out accuracy minus the first one's, paired by problem; or why they can't be compared."""

    run: str
    estimate: Estimate | None
    reason: str = ""


def differing(runs: Sequence[RunView]) -> dict[str, list[Any]]:
    """The settings that are not equal in all runs: the value of each, None where a run has no such setting."""
    all_settings = [settings(run.config) for run in runs]
    names = dict.fromkeys(name for found in all_settings for name in found)
    rows = {name: [found.get(name) for found in all_settings] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def differences(runs: Sequence[RunView]) -> list[Difference]:
    """Each later run against the first."""
    return [difference(runs[0], run) for run in runs[1:]]


def difference(first: RunView, second: RunView) -> Difference:
    """Paired by held-out problem, with Student's interval over problems. Those not graded in both are left out."""
    for run in (first, second):
        if not run.right:
            return Difference(second.name, None, f"{run.name} has no held-out results")
    if first.right.keys() != second.right.keys():
        shared = len(first.right.keys() & second.right.keys())
        return Difference(second.name, None, f"not the same problems ({shared} in both)")
    graded = [key for key in first.right if first.right[key] is not None and second.right[key] is not None]
    if not graded:
        return Difference(second.name, None, "no problem was graded in both")
    ours, theirs = ({key: [float(run.right[key] or 0)] for key in graded} for run in (first, second))
    return Difference(second.name, paired_difference(ours, theirs))


def as_text(value: Any) -> str:
    """A setting as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)
