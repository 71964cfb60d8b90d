"""`pte eval` without more: accuracy on held-out problems of the task."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pte_cli.cli import ui
from pte_cli.cli.options import conditions
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.runs import RunDir


def evaluate_held_out(config: RunConfig, run: RunDir | None, out: Path | None, json: bool) -> None:
    """Measure a run, or the bare model, greedily, and print the result; record it in the new folder `out`."""
    into = RunDir.create(out, config) if out is not None else None

    from pte_cli.eval.run import evaluate_saved

    with ui.only_results_on_stdout(), ui.StepProgress() as progress:
        try:
            result = asdict(evaluate_saved(config, run, into, progress.measured))
        except UsageError:
            if into is not None:
                into.discard()
            raise
    settings = {
        "run": str(run.path) if run else None,
        "model": config.model.name,
        "encoder": config.encoder.name if run else "none",
        "evict": config.evict.model_dump(mode="json"),
        "task": config.task.model_dump(mode="json"),
        "temperature": 0.0,
    }
    if json:
        ui.print_json({**settings, **result})
        return
    title = f"{run.path if run else config.model.name}: {conditions(config)}, encoder {settings['encoder']}, greedy"
    ui.out().print(ui.accuracy_table(title, {"result": result}))
    ui.next_step(f"pte report {out}" if out else f"pte generate ... --run {run.path}" if run else "pte train")
