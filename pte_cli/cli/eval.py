"""`pte eval`: held-out problems of the task, benchmarks (`--bench`), or recorded completions (`--grade`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pte_cli.cli import complete
from pte_cli.cli.heldout import evaluate_held_out
from pte_cli.cli.options import (
    BENCHMARKS,
    GENERATION,
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
    MaxNewTokens,
    Model,
    Problems,
    PromptStyle,
    Sets,
    TopP,
    TrustCode,
    configure,
    open_run,
    refuse_untrained,
)
from pte_cli.errors import UsageError


def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", autocompletion=complete.runs, help="A run's folder. Without one: the model as it is."
        ),
    ] = None,
    encoder: Encoder = None,
    evict: Evict = None,
    frac: Frac = None,
    budget: BudgetTokens = None,
    model: Model = None,
    trust_remote_code: TrustCode = None,
    entries: Entries = None,
    problems: Problems = None,
    device: Device = None,
    bench: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            autocompletion=complete.benchmarks,
            help="math500, olympiadbench, minerva, amc23, aime24, aime25, gsm8k or a .jsonl file; several with commas.",
            rich_help_panel=BENCHMARKS,
        ),
    ] = None,
    bench_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with NAME.jsonl for each. \\[the hub]", rich_help_panel=BENCHMARKS),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="PROBLEMS", help="Only the first problems.", rich_help_panel=BENCHMARKS)
    ] = None,
    samples: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Of each problem. \\[1]", rich_help_panel=BENCHMARKS)
    ] = None,
    k: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Which pass@k, e.g. 1,4. \\[1 and all]", rich_help_panel=GRADING),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The difference from an evaluation written with --out (its folder, or the run's it is in).",
            rich_help_panel=BENCHMARKS,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T", help="0 is greedy. \\[0; several samples: sampling.temperature]", rich_help_panel=GENERATION
        ),
    ] = None,
    top_p: TopP = None,
    max_new_tokens: MaxNewTokens = None,
    prompt_style: PromptStyle = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="NUMBER", help="Which held-out problems, or of sampling. \\[0]", rich_help_panel=OUTPUT
        ),
    ] = None,
    grade: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Only grade recorded completions (JSON Lines); no model.", rich_help_panel=GRADING
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where it is recorded: a new folder; with --bench one that is resumed, with --grade a file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            autocompletion=complete.words("jsonl", "parquet"),
            help="jsonl or parquet, of the samples. \\[jsonl]",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    file: File = None,
    sets: Sets = None,
    json: Json = False,
) -> None:
    """Accuracy on held-out problems of the task, or on benchmarks, at a budget, policy and encoder of your choice."""
    flags = {
        "encoder.name": encoder,
        "evict.policy": evict,
        "evict.frac": frac,
        "evict.budget": budget,
        "model.name": model,
        "model.device": device,
        "model.trust_remote_code": trust_remote_code,
        "sampling.max_new_tokens": max_new_tokens,
    }
    of_task = {"task.options.entries": entries, "eval.problems": problems, "eval.seed": seed}
    of_bench = {
        "--bench-dir": bench_dir,
        "--limit": limit,
        "--samples": samples,
        "--compare": compare,
        "--temperature": temperature,
        "--top-p": top_p,
        "--prompt-style": prompt_style,
        "--format": form,
    }
    if grade is not None:
        from pte_cli.cli.grade import grade_recorded

        others = {"RUN": run, "--config": file, "--set": sets or None, "--bench": bench, **flags, **of_task, **of_bench}
        return grade_recorded(grade, k, out, json, others)
    if bench is None:
        refuse(of_bench, "goes with --bench")
        refuse({"--k": k}, "goes with --bench or --grade")
        flags |= of_task
    else:
        refuse({"--entries": entries, "--problems": problems}, "is for held-out problems of the task, not for --bench")
    trusted = bool(trust_remote_code) or file is not None
    saved = open_run(run, encoder, trusted=trusted) if run is not None else None
    file = file or (saved.path / "config.json" if saved else None)
    if bench is None:
        return evaluate_held_out(configure(file, flags, sets), saved, out, json)

    from pte_cli.cli.bench import DEFAULTS, Asked, evaluate_benchmarks

    if saved is None:
        refuse_untrained(encoder)
    config = configure(file, flags, sets, defaults=DEFAULTS, asks_task=False)
    asked = Asked(
        bench, bench_dir, limit, samples, k, temperature, top_p, seed, prompt_style, out, form, compare
    )  # fmt: skip
    return evaluate_benchmarks(config, saved, asked, json)


def refuse(options: dict[str, Any], why: str) -> None:
    """UsageError for the first of `options` that was given."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} {value}: {why}")
