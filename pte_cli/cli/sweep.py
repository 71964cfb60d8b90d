"""`pte sweep`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pte_cli.cli import complete, ui
from pte_cli.cli.options import OUTPUT, Json, report_plugins
from pte_cli.config import ENV_OTHER, ENV_PREFIX
from pte_cli.errors import PteError, UsageError
from pte_cli.registry import build, load_registry
from pte_cli.report.cells import Question
from pte_cli.sweep.plan import Plan, Rerun, counts, make_plan, plan_document
from pte_cli.sweep.queue import Queue, Standing
from pte_cli.sweep.schema import read_sweep
from pte_cli.sweep.state import state_of, sweep_lock

RUNS = "Which runs"
SOME_FAILED = 3
RERUNS: tuple[Rerun, ...] = ("failed", "all")


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiments, TOML; see docs/sweep.md.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Only these: a part (main, or an axis) or names with * and ?. Repeatable.",
            rich_help_panel=RUNS,
        ),
    ] = None,
    rerun: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            autocompletion=complete.words("failed", "all"),
            help="failed or all: start these anew.",
            rich_help_panel=RUNS,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="COUNT", help="Runs at the same time. \\[the file's]", rich_help_panel=RUNS),
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", metavar="", help="Stop everything when a run fails.", rich_help_panel=RUNS)
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the sweep. \\[runs/NAME]", rich_help_panel=OUTPUT)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar="", help="Check everything, show the plan, start nothing.", rich_help_panel=OUTPUT
        ),
    ] = False,
    report_only: Annotated[
        bool,
        typer.Option(
            "--report-only", metavar="", help="Report on what is finished, start nothing.", rich_help_panel=OUTPUT
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Train and evaluate many configurations from one file, and compare them. Again: goes on where it stopped."""
    if rerun is not None and rerun not in RERUNS:
        raise UsageError(f"--rerun {rerun!r}: must be 'failed' or 'all'")
    refuse_environment()
    report_plugins(load_registry())
    read = read_sweep(file)
    folder = out or Path("runs") / read.sweep.name
    plan = make_plan(read, folder, only=only or [], rerun=rerun, jobs=jobs)
    if dry_run:
        show_plan(plan, json)
        if not json:
            ui.next_step(f"pte sweep {file}")
        return
    try:
        standing = Standing() if report_only else work_off(plan, rerun, fail_fast)
    except KeyboardInterrupt:
        ui.err().print("the same command goes on from here", soft_wrap=True)
        raise
    try:
        show_report(plan, standing, json)
    except PteError as error:
        if report_only:
            raise
        ui.err().print(f"no report: {error}", soft_wrap=True)
    failed = [task for task in plan.tasks if state_of(task.where) == "failed"]
    if failed and not standing.failed:
        ui.err().print(f"failed earlier and left so: {len(failed)}; --rerun failed tries them again", soft_wrap=True)
    if not json:
        ui.next_step(f"pte sweep {file} --rerun failed" if failed else f"pte runs list {folder}")
    if failed and not report_only:
        raise typer.Exit(SOME_FAILED)


def refuse_environment() -> None:
    """UsageError where PTE_* variables would change the runs behind the file's back."""
    settings = sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in ENV_OTHER)
    if settings:
        raise UsageError(f"{settings[0]}: is set, and a sweep's settings come from its file alone; unset it")


def work_off(plan: Plan, rerun: Rerun | None, fail_fast: bool) -> Standing:
    """Start what is to do and wait for it."""
    from pte_cli.cli.queue_view import QueueView
    from pte_cli.sweep.command import start_command
    from pte_cli.sweep.slots import slot_environments

    settings = plan.file.sweep
    launcher = build(load_registry().launcher(settings.launch.engine), settings.launch.options)
    slots = slot_environments(settings.jobs, settings.threads, settings.launch.engine, os.environ)
    with sweep_lock(plan.folder), QueueView() as view:
        queue = Queue(
            plan.tasks,
            launcher,
            partial(start_command, rerun=rerun),
            slots,
            view,
            retries=settings.retries,
            fail_fast=fail_fast,
        )
        view.event(f"sweep {settings.name}: {describe_counts(plan)}, in {plan.folder}")
        return queue.run()


def describe_counts(plan: Plan) -> str:
    """`25 runs: 5 finished, 20 new; 20 to do`."""
    found = counts(plan.tasks)
    shown = ", ".join(f"{count} {state}" for state, count in sorted(found.items()))
    hours = "" if plan.hours is None else f", about {plan.hours:.1f} hours with {plan.file.sweep.jobs} at a time"
    return f"{len(plan.tasks)} runs: {shown}; {len(plan.todo)} to do{hours}"


def show_plan(plan: Plan, json: bool) -> None:
    """The runs of each configuration and where they stand."""
    if json:
        ui.print_json(plan_document(plan))
        return
    console = ui.out()
    console.print(f"{plan.file.path}: {describe_counts(plan)}", soft_wrap=True)
    table = ui.table(["configuration", "command", "seeds", "runs", "state"])
    by_key = {task.key: task for task in plan.tasks}
    seen: set[str] = set()
    for name in dict.fromkeys(cell.name for cell in plan.cells if cell.name in plan.selected):
        cells = [cell for cell in plan.cells if cell.name == name]
        tasks = list({cell.key: by_key[cell.key] for cell in cells}.values())
        fresh = [task for task in tasks if task.key not in seen]
        seen.update(task.key for task in tasks)
        table.add_row(
            name,
            tasks[0].command,
            " ".join(str(seed) for seed in sorted({cell.seed for cell in cells})),
            str(len(fresh)) if fresh else "as above",
            ", ".join(f"{count} {state}" for state, count in sorted(counts(tasks).items())),
        )
    console.print(table)


def show_report(plan: Plan, standing: Standing, json: bool) -> None:
    """Write the report and print its tables."""
    from pte_cli.report.plots import MISSING
    from pte_cli.report.tables import document, notes, tables
    from pte_cli.report.write import write_report

    settings = plan.file.sweep
    question = Question(
        title=settings.name,
        cells=plan.cells,
        folder=plan.folder,
        metric=settings.metric,
        goal=settings.goal,
        baseline=settings.baseline,
        shown=plan.selected,
    )
    written = write_report(question, plan.folder / "report")
    if not written.drawn:
        ui.err().print(MISSING, soft_wrap=True)
    if json:
        queue: dict[str, Any] = {
            "finished": [task.key for task in standing.finished],
            "failed": standing.failed,
            "skipped": [task.key for task in standing.skipped],
        }
        ui.print_json({"report": str(written.page), "queue": queue, **document(written.summary)})
        return
    console = ui.out()
    for title, headings, body in tables(written.summary):
        table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
        for i, heading in enumerate(headings):
            table.add_column(heading, justify="right" if i else "left")
        for row in body:
            table.add_row(*row)
        console.print(table)
        console.print()
    for note in notes(written.summary):
        console.print(note, soft_wrap=True)
    ui.err().print(f"report in {written.page}", soft_wrap=True)
