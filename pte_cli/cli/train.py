"""`pte train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pte_cli.cli import complete, ui
from pte_cli.cli.options import (
    OUTPUT,
    BudgetTokens,
    Data,
    Device,
    Encoder,
    Entries,
    Evict,
    File,
    Frac,
    Json,
    Model,
    Problems,
    Rewards,
    Sets,
    TrustCode,
    conditions,
    configure,
)
from pte_cli.cli.training import listener, planned_sizes, refuse_beside_resume, resumable
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.model.source import BUILT_IN
from pte_cli.runs import RunDir, default_out, is_main_process
from pte_cli.tasks.data.dataset import Dataset, load_dataset
from pte_cli.tasks.data.rendered import RenderedDataset

OPTIMISATION = "Optimisation"


def train(
    encoder: Encoder = None,
    evict: Evict = None,
    frac: Frac = None,
    budget: BudgetTokens = None,
    rank: Annotated[
        int | None, typer.Option(metavar="RANK", help="LoRA rank. \\[32]", rich_help_panel="Method")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.words("sft", "grpo", "sft+grpo"),
            help="sft, grpo or sft+grpo. \\[sft]",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    sft_steps: Annotated[
        int | None,
        typer.Option(metavar="STEPS", help="Steps on worked examples. \\[400]", rich_help_panel=OPTIMISATION),
    ] = None,
    grpo_steps: Annotated[
        int | None,
        typer.Option(metavar="STEPS", help="Steps of reinforcement learning. \\[40]", rich_help_panel=OPTIMISATION),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Completions per problem. \\[8]", rich_help_panel=OPTIMISATION)
    ] = None,
    loss_type: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.words("grpo", "dr_grpo", "dapo", "bnpo", "gspo", "cispo"),
            help="grpo, dr_grpo, dapo, bnpo, gspo or cispo. \\[dapo]",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(metavar="WEIGHT", help="Weight of the KL to the base model. \\[0]", rich_help_panel=OPTIMISATION),
    ] = None,
    grad: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.words("exact", "truncated"),
            help="exact: through the cache and what was evicted too; or truncated. \\[exact]",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    gradient_checkpointing: Annotated[
        bool | None,
        typer.Option(
            "--gradient-checkpointing",
            metavar="",
            help="Less memory, about a third more computation in training. \\[off]",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile",
            metavar="",
            help="Decoding steps as machine code; a minute or more until it pays. \\[off]",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    model: Model = None,
    trust_remote_code: TrustCode = None,
    data: Data = None,
    reward: Rewards = None,
    entries: Entries = None,
    problems: Problems = None,
    device: Device = None,
    seed: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Seed of everything random. \\[0]", rich_help_panel=OUTPUT)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The run's folder. \\[runs/TIME-...]", rich_help_panel=OUTPUT)
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            autocompletion=complete.runs,
            help="A run's folder: go on from its last checkpoint, with its settings.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(metavar="STEPS", help="Steps between checkpoints. \\[50]", rich_help_panel=OUTPUT)
    ] = None,
    track: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            autocompletion=complete.words("tensorboard", "trackio", "wandb"),
            help="Also log to tensorboard, trackio or wandb; several with commas.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    file: File = None,
    sets: Sets = None,
    show_prompt: Annotated[
        bool,
        typer.Option(
            "--show-prompt",
            metavar="",
            help="Show the first prompt as the model sees it, train nothing.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar="", help="Check and show the settings, train nothing.", rich_help_panel=OUTPUT
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Train an adapter under a bounded KV cache; rollout and training see the same context."""
    flags = {
        "encoder.name": encoder,
        "evict.policy": evict,
        "evict.frac": frac,
        "evict.budget": budget,
        "adapter.rank": rank,
        "train.objective": objective,
        "sft.steps": sft_steps,
        "grpo.steps": grpo_steps,
        "grpo.group_size": group_size,
        "grpo.loss_type": loss_type,
        "grpo.beta": beta,
        "train.gradient": grad,
        "train.save_every": save_every,
        "train.trackers": track,
        "model.name": model,
        "model.device": device,
        "model.trust_remote_code": trust_remote_code,
        "train.gradient_checkpointing": gradient_checkpointing,
        "sampling.compile": compile,
        "data.source": data,
        "reward.names": reward or None,
        "task.options.entries": entries,
        "eval.problems": problems,
        "seed": seed,
        "out": str(out) if out else None,
    }
    if entries is not None and data is not None:
        raise UsageError(f"--entries {entries}: belongs to the task; with --data there is none")
    saved = None
    if resume is not None:
        refuse_beside_resume({"--config": file, "--set": sets or None, **flags})
        saved = resumable(resume)
        file = saved.path / "config.json"
    config = configure(file, flags, sets, dry_run=dry_run)
    path = saved.path if saved else Path(config.out) if config.out else default_out(config)
    if saved is None and is_main_process():
        RunDir(path).check_free()
    dataset = None
    if config.data.source is not None:
        rows = load_dataset(config)  # what is wrong with the rows is said before the slow imports below
        ui.err().print(describe_data(rows), soft_wrap=True)
        if not dry_run or show_prompt:
            from pte_cli.rollout.prepare import read_data

            dataset = read_data(config, rows)
            ui.err().print(describe_prompts(dataset), soft_wrap=True)
    if show_prompt:
        show_first_prompt(config, dataset, json)
        return
    if dry_run:
        show_plan(config, path, json)
        return
    run = saved or (RunDir.create(path, config) if is_main_process() else RunDir(path))
    console = ui.err()
    if is_main_process():
        console.print(f"run {path}: {describe(config)}", soft_wrap=True)

    from pte_cli.eval.run import train_and_evaluate

    with ui.only_results_on_stdout(), ui.StepProgress() as progress:
        try:
            result = train_and_evaluate(config, run, listener(progress, config), dataset)
        except UsageError:
            if saved is None and is_main_process():
                run.discard()
            raise
    if not is_main_process():
        return
    if json:
        ui.print_json(result)
        return
    if result["after"] is None:
        ui.out().print(f"{describe(config)}\nnot measured: no held-out rows with an answer", soft_wrap=True)
    else:
        ui.out().print(ui.accuracy_table(describe(config), {"before": result["before"], "after": result["after"]}))
    minutes = result["seconds"]["training"] / 60
    ui.out().print(
        f"\ntrained {result['steps']} steps in {minutes:.1f} minutes; adapter in {run.adapter}",
        soft_wrap=True,
    )
    ui.next_step(f"pte report {path}, or pte eval {path}")


def describe(config: RunConfig) -> str:
    """One line that says what is trained."""
    return f"{config.train.objective} with --encoder {config.encoder.name} {conditions(config)}"


def describe_data(dataset: Dataset) -> str:
    """One line that says what of the data is used."""
    return (
        f"data: {len(dataset.train)} rows to train on, {len(dataset.held_out)} held out; {dataset.columns}; "
        f"rewards: {', '.join(dataset.rewards) or 'none'}"
    )


def describe_prompts(dataset: RenderedDataset) -> str:
    """One line that says how the prompts look to the model."""
    dropped = f"; {dataset.dropped} rows dropped as too long" if dataset.dropped else ""
    return f"prompts: style {dataset.style}, the longest has {dataset.longest} tokens{dropped}"


def show_first_prompt(config: RunConfig, dataset: RenderedDataset | None, json: bool) -> None:
    """The first prompt of the data: its text on stdout exactly as it was tokenised, or everything as JSON."""
    if dataset is None:
        raise UsageError("--show-prompt: shows a prompt of your data; give --data")
    first = dataset.train[0]
    document = {
        "row": first.row.place,
        "style": dataset.style,
        "text": first.prompt.text,
        "ids": list(first.prompt.ids),
        "tokens": len(first.prompt.ids),
        "budget": config.evict.budget,
    }
    if json:
        ui.print_json(document)
        return
    ui.err().print(f"{first.row.place}, style {dataset.style}, {len(first.prompt.ids)} tokens:", soft_wrap=True)
    sys.stdout.write(f"{first.prompt.text}\n")


def show_plan(config: RunConfig, path: Path, json: bool) -> None:
    """The resolved settings, and where the run would go."""
    document: dict[str, Any] = {
        "run": str(path),
        "identity": config.identity(),
        "config": config.model_dump(mode="json"),
    }
    # The built-in model needs no forecast, and its dry run stays free of torch.
    sizes = None if config.model.name == BUILT_IN else planned_sizes(config)
    if sizes is not None:
        document["sizes"] = sizes
    if json:
        ui.print_json(document)
        return
    console = ui.out()
    console.print(f"would train {describe(config)}\nrun {path}, identity {config.identity()}", soft_wrap=True)
    for section, values in document["config"].items():
        if isinstance(values, dict):
            shown = ", ".join(f"{key}={value}" for key, value in values.items())
            console.print(f"  {section:9} {shown}", soft_wrap=True)
    if sizes is not None:
        console.print(ui.sizes_table(config.model.name, sizes))
    ui.next_step("the same without --dry-run")
