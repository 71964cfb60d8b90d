"""`pte report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pte_cli.cli import complete, ui
from pte_cli.cli.options import OUTPUT, Json
from pte_cli.report.runs import view

PAGE = "report.html"


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, finished or not.", autocompletion=complete.runs)
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"The page. \\[RUN/{PAGE}]", rich_help_panel=OUTPUT),
    ] = None,
    json: Json = False,
) -> None:
    """One HTML page about a run: curves, memory, and completions with what had left the cache when the answer began."""
    found = view(run)

    from pte_cli.report.plots import MISSING
    from pte_cli.report.run_page import write_run_report

    file = out or run / PAGE
    drawn = write_run_report(found, file)
    if not drawn:
        ui.err().print(MISSING, soft_wrap=True)
    if json:
        ui.print_json(
            {
                "run": str(run),
                "state": found.state,
                "report": str(file),
                "drawn": drawn,
                "steps": len(found.metrics),
                "samples": len(found.samples),
            }
        )
        return
    ui.out().print(str(file), soft_wrap=True)
    ui.next_step(f"pte runs show {run}")
