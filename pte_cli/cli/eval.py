"""`pte eval`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pte_cli.cli import ui
from pte_cli.cli.options import (
    GRADING,
    OUTPUT,
    BudgetTokens,
    Device,
    Encoder,
    Entries,
    Evict,
    File,
    Frac,
    Json,
    Model,
    Problems,
    Sets,
    conditions,
    configure,
)
from pte_cli.errors import UsageError
from pte_cli.runs import RunDir


def evaluate(
    run: Annotated[Path | None, typer.Argument(help="A run's folder. Without one: the model as it is.")] = None,
    encoder: Encoder = None,
    evict: Evict = None,
    frac: Frac = None,
    budget: BudgetTokens = None,
    model: Model = None,
    entries: Entries = None,
    problems: Problems = None,
    device: Device = None,
    seed: Annotated[int | None, typer.Option(help="Which held-out problems. [0]", rich_help_panel=OUTPUT)] = None,
    file: File = None,
    sets: Sets = None,
    grade: Annotated[
        Path | None,
        typer.Option(help="Only grade recorded completions (JSON Lines); no model.", rich_help_panel=GRADING),
    ] = None,
    k: Annotated[
        str | None, typer.Option(help="With --grade: which pass@k, e.g. 1,4. [1 and all]", rich_help_panel=GRADING)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --grade: write the graded samples here.", rich_help_panel=GRADING)
    ] = None,
    json: Json = False,
) -> None:
    """Accuracy on held-out problems of the task, greedy, at a budget, policy and encoder of your choice."""
    flags = {
        "encoder.name": encoder,
        "evict.policy": evict,
        "evict.frac": frac,
        "evict.budget": budget,
        "model.name": model,
        "model.device": device,
        "task.options.entries": entries,
        "eval.problems": problems,
        "eval.seed": seed,
    }
    if grade is not None:
        from pte_cli.cli.grade import grade_recorded

        return grade_recorded(grade, k, out, json, {"RUN": run, "--config": file, "--set": sets or None, **flags})
    if k is not None or out is not None:
        raise UsageError("--k and --out go with --grade FILE")
    saved = None
    if run is not None:
        saved = RunDir.open(run)
        trained = saved.config().encoder.name
        if encoder not in (None, trained):
            raise UsageError(
                f"--encoder {encoder}: the adapter in {str(run)!r} was trained with {trained!r}; leave it out"
            )
        if not (saved.adapter / "adapter_config.json").is_file():
            raise UsageError(f"{str(run)!r}: has no adapter yet (was its training interrupted?)")
        file = file or saved.path / "config.json"
    config = configure(file, flags, sets)

    from pte_cli.eval.run import evaluate_saved

    result = asdict(evaluate_saved(config, saved))
    settings = {
        "run": str(run) if run else None,
        "model": config.model.name,
        "encoder": config.encoder.name if run else "none",
        "evict": config.evict.model_dump(mode="json"),
        "task": config.task.model_dump(mode="json"),
        "temperature": 0.0,
    }
    if json:
        ui.print_json({**settings, **result})
        return
    title = f"{run or config.model.name}: {conditions(config)}, encoder {settings['encoder']}, greedy"
    ui.out().print(ui.accuracy_table(title, {"result": result}))
