"""`pte runs`: what there is, one run in detail, several side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pte_cli.cli import complete, ui
from pte_cli.cli.options import Json
from pte_cli.errors import UsageError
from pte_cli.report.runs import (
    Difference,
    RunView,
    as_text,
    changed_settings,
    differences,
    differing,
    find_runs,
    settings,
    view,
)

runs = typer.Typer(name="runs", help="List runs, show one, compare several.", no_args_is_help=True)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", autocompletion=complete.runs)]


@runs.command("list")
def show_all(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look, four folders deep.")] = Path("runs"),
    json: Json = False,
) -> None:
    """Every run below a folder: where it stands, what was trained under which budget, and its held-out accuracy."""
    found: list[RunView] = []
    unreadable: list[dict[str, str]] = []
    for path in find_runs(root):
        try:
            found.append(view(path))
        except UsageError as error:
            unreadable.append({"run": str(path), "reason": str(error)})
    if json:
        ui.print_json({"root": str(root), "runs": [overview(run) for run in found], "unreadable": unreadable})
        return
    for left_out in unreadable:
        ui.err().print(f"{left_out['run']} left out: {left_out['reason']}", soft_wrap=True)
    if not found:
        ui.out().print(f"no runs in {root}")
        ui.next_step("pte train")
        return
    table = ui.table(["run", "state", "objective", "encoder", "policy, budget", "right, %", "steps"], 5)
    table.box, table.padding = None, (0, 2, 0, 0)
    for column in table.columns[1:]:
        column.no_wrap = True
    for run in found:
        table.add_row(
            str(run.path.relative_to(root) if run.path != root else run.path),
            run.state,
            run.what(),
            run.config.encoder.name,
            f"{run.config.evict.policy} {budget(run)}",
            accuracy(run.after),
            steps(run),
        )
    ui.out().print(table)
    ui.next_step(f"pte runs show {found[-1].path}")


@runs.command("show")
def show_one(run: Run, json: Json = False) -> None:
    """Settings that are not the defaults, the last metrics, the results, and the files of a run."""
    found = view(run)
    changed = changed_settings(found.config)
    if json:
        ui.print_json(
            {
                **overview(found),
                "changed": {name: {"default": was, "run": now} for name, (was, now) in changed.items()},
                "metrics": dict(found.last),
                "result": dict(found.result),
                "files": found.files(),
            }
        )
        return
    console = ui.out()
    console.print(f"{found.name}: {found.state}, {found.what()}, step {steps(found)}", soft_wrap=True)
    if error := found.status.get("error"):
        console.print(str(error), soft_wrap=True)
    if changed:
        table = ui.table(["not the default", "default", "this run"])
        for name, (was, now) in changed.items():
            table.add_row(name, as_text(was), as_text(now))
        console.print(table)
    else:
        console.print("all settings are the defaults")
    if measured := {name: a for name, a in (("before", found.before), ("after", found.after)) if a}:
        console.print()
        console.print(ui.accuracy_table("", measured))
    if found.last:
        console.print()
        table = ui.table(["metrics of the last step", "value"], 1)
        for name, value in found.last.items():
            table.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
        console.print(table)
    console.print()
    table = ui.table(["file", "bytes"], 1)
    for name, size in found.files().items():
        table.add_row(name, f"{size:,}")
    console.print(table)
    ui.next_step(next_of(found))


@runs.command("compare")
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN...",
            help="Two or more; the first is what the others are compared with.",
            autocompletion=complete.runs,
        ),
    ],
    json: Json = False,
) -> None:
    """The settings in which runs differ, their results, and the paired differences of their held-out accuracies."""
    if len(paths) < 2:
        raise UsageError(f"pte runs compare {paths[0]}: name at least two runs")
    found = [view(path) for path in paths]
    rows, paired = differing(found), differences(found)
    if json:
        ui.print_json(
            {
                "runs": [overview(run) for run in found],
                "settings": {name: dict(zip(map(str, paths), values, strict=True)) for name, values in rows.items()},
                "differences": [{**asdict(each), "minus": found[0].name} for each in paired],
            }
        )
        return
    names = [f"({chr(97 + i)})" if i < 26 else f"({i})" for i in range(len(found))]
    console = ui.out()
    for name, run in zip(names, found, strict=True):
        console.print(f"{name} {run.name}", soft_wrap=True)
    console.print()
    table = ui.table(["settings that differ", *names])
    known = [settings(run.config) for run in found]
    for setting in rows:
        table.add_row(setting, *(as_text(all_of[setting]) if setting in all_of else "-" for all_of in known))
    console.print(table if rows else "all settings are equal")
    console.print()
    table = ui.table(["results", *names], 1)
    for title, show in RESULTS.items():
        cells = [show(run) for run in found]
        if any(cells):
            table.add_row(title, *cells)
    console.print(table)
    console.print("\nheld-out accuracy, paired by problem, points (95 % interval)")
    for name, each in zip(names[1:], paired, strict=True):
        console.print(f"  {name} - {names[0]}: {describe(each)}", soft_wrap=True)
    ui.next_step(f"pte report {paths[-1]}")


def overview(run: RunView) -> dict[str, Any]:
    """What `pte runs list` says of a run, as JSON."""
    after = run.after
    return {
        "run": run.name,
        "state": run.state,
        "objective": run.what(),
        "identity": run.config.identity(),
        "model": run.config.model.name,
        "evict": run.config.evict.model_dump(mode="json"),
        "encoder": run.config.encoder.name,
        "seed": run.config.seed,
        "accuracy": {key: after[key] for key in ("accuracy", "low", "high", "n")} if after else None,
        "step": run.step,
        "steps": run.steps,
    }


RESULTS = {
    "state": lambda run: run.state,
    "steps": lambda run: steps(run),
    "accuracy (95 % interval), %": lambda run: accuracy(run.after, interval=True),
    "accuracy before, %": lambda run: accuracy(run.before, interval=True),
    "mean length, tokens": lambda run: number(run.after.get("mean_length"), ".1f"),
    "evictions per sequence": lambda run: number(run.after.get("evictions"), ".1f"),
    "KV cache, whole batch, MiB": lambda run: number(run.after.get("cache_bytes"), ".2f", 2**20),
    "tokens per second, generating": lambda run: number(run.after.get("tokens_per_second"), ".0f"),
    "peak memory, MiB": lambda run: number(run.result.get("peak_bytes"), ".0f", 2**20),
    "training, minutes": lambda run: number((run.result.get("seconds") or {}).get("training"), ".1f", 60),
}


def number(value: float | None, form: str, unit: float = 1) -> str:
    return "" if value is None else format(value / unit, form)


def budget(run: RunView) -> str:
    """Cached tokens; empty for the policy that never evicts."""
    return "" if run.config.evict.policy == "full" else str(run.config.evict.budget)


def steps(run: RunView) -> str:
    """`120/500`; empty for an evaluation that was recorded."""
    return f"{run.step}/{run.steps}" if run.steps else ""


def accuracy(of: Any, *, interval: bool = False) -> str:
    """`55.8`, or `55.8 (52.7 to 58.8)`; empty where nothing was measured."""
    if not of:
        return ""
    shown = f"{100 * of['accuracy']:.1f}"
    return f"{shown} ({100 * of['low']:.1f} to {100 * of['high']:.1f})" if interval else shown


def describe(found: Difference) -> str:
    """`+34.4 (+30.1 to +38.7), 1024 problems`, or why there is none."""
    estimate = found.estimate
    if estimate is None:
        return found.reason
    bounds = "no interval"
    if estimate.low is not None and estimate.high is not None:
        bounds = f"{100 * estimate.low:+.1f} to {100 * estimate.high:+.1f}"
    return f"{100 * estimate.mean:+.1f} ({bounds}), {estimate.n} problems"


def next_of(run: RunView) -> str:
    """What one would do with a run that stands there."""
    if run.state == "finished":
        return f"pte report {run.path}"
    return f"pte train --resume {run.path}" if run.steps else f"pte runs list {run.path.parent}"
