"""`pte export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pte_cli.cli import complete, ui
from pte_cli.cli.options import Device, Json, Model, Sets, TrustCode, configure, open_run
from pte_cli.export.export import check_out, export


def export_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", autocompletion=complete.runs, help="A run's folder.")],
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    model: Model = None,
    trust_remote_code: TrustCode = None,
    device: Device = None,
    sets: Sets = None,
    json: Json = False,
) -> None:
    """Write merged weights that transformers loads or, where the encoder can't be merged, the adapter; with a card."""
    check_out(out)
    saved = open_run(run, trusted=bool(trust_remote_code))
    flags = {"model.name": model, "model.device": device, "model.trust_remote_code": trust_remote_code}
    config = configure(saved.path / "config.json", flags, sets, asks_task=False)
    with ui.only_results_on_stdout():
        done = export(config, saved, out)
    if json:
        ui.print_json({"run": str(run), **asdict(done)})
        return
    if done.reason is not None:
        ui.err().print(done.reason, soft_wrap=True)
    what = "merged weights" if done.kind == "merged" else "adapter"
    ui.out().print(f"{what} in {out}: {', '.join(done.files)}", soft_wrap=True)
    ui.next_step(f"read {out}/README.md, which shows how to load it")
