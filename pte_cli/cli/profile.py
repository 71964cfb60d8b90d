"""`pte profile`: memory, speed, floating-point operations or a trace of one training step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pte_cli.cli import complete, ui
from pte_cli.cli.options import (
    OUTPUT,
    Device,
    Encoder,
    Evict,
    File,
    Frac,
    Json,
    Sets,
    TrustCode,
    configure,
)
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError, did_you_mean
from pte_cli.model.families import FAMILIES
from pte_cli.model.presets import PREFIX
from pte_cli.model.source import BUILT_IN, check_trainable, describe_model
from pte_cli.runs import check_writable

if TYPE_CHECKING:
    from pte_cli.profile.arms import Question

REPORTS = ("memory", "speed", "flops", "trace")
GRADIENTS = ("truncated", "exact")
LENGTHS = (128, 256, 512)
STEP = "The step"
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGT]i?B)", re.IGNORECASE)
POWERS = "BKMGT"


def profile(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="tiny (built in), a folder, a GGUF file, a hub id, or preset:NAME (no weights). \\[tiny]",
        ),
    ] = None,
    report: Annotated[
        str,
        typer.Option(metavar="NAME", autocompletion=complete.words(*REPORTS), help="memory, speed, flops or trace."),
    ] = "memory",
    length: Annotated[
        list[int] | None,
        typer.Option(
            metavar="TOKENS", help="Tokens per completion; repeatable. \\[128, 256, 512]", rich_help_panel=STEP
        ),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            metavar="TOKENS",
            help="Cached tokens per layer and head, prompt included; repeatable. \\[48]",
            rich_help_panel=STEP,
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, metavar="COUNT", help="Completions at a time.", rich_help_panel=STEP)] = 8,
    prompt: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Tokens of each prompt.", rich_help_panel=STEP)
    ] = 16,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="Also find the longest and the most rows that fit, e.g. 24GiB.", rich_help_panel=STEP
        ),
    ] = None,
    no_measure: Annotated[
        bool,
        typer.Option(
            "--no-measure",
            metavar="",
            help="Predict memory only. \\[measure too, where the model has weights]",
            rich_help_panel=STEP,
        ),
    ] = False,
    gradient: Annotated[
        str,
        typer.Option(
            metavar="NAME", autocompletion=complete.words(*GRADIENTS), help="exact or truncated.", rich_help_panel=STEP
        ),
    ] = "exact",
    gradient_checkpointing: Annotated[
        bool | None,
        typer.Option(
            "--gradient-checkpointing",
            metavar="",
            help="Keep one layer's activations at a time. \\[off]",
            rich_help_panel=STEP,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.words("float32", "bfloat16", "float16", "float64"),
            help="float32, bfloat16, float16 or float64. \\[float32; presets bfloat16]",
            rich_help_panel=STEP,
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(metavar="RANK", help="LoRA rank. \\[32]", rich_help_panel=STEP)] = None,
    encoder: Encoder = None,
    evict: Evict = None,
    frac: Frac = None,
    device: Device = None,
    trust_remote_code: TrustCode = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder for a page (HTML), a figure (PNG) and the trace.", rich_help_panel=OUTPUT
        ),
    ] = None,
    file: File = None,
    sets: Sets = None,
    json: Json = False,
) -> None:
    """What one training step needs: full-cache LoRA, LoRA under the budget, and that with the encoder, side by side.

    Memory is predicted by running the code on fake tensors, for any model, and measured where there are weights.
    """
    flags = {
        "model.name": model,
        "model.dtype": dtype,
        "model.device": device,
        "model.trust_remote_code": trust_remote_code,
        "train.gradient_checkpointing": gradient_checkpointing,
        "adapter.rank": rank,
        "encoder.name": encoder,
        "evict.policy": evict,
        "evict.frac": frac,
        "evict.budget": min(budget) if budget else None,
    }
    check_choice("--report", report, REPORTS)
    check_choice("--gradient", gradient, GRADIENTS)
    limit = None if memory is None else parse_size(memory)
    for count in length or ():
        if count < 2:
            raise UsageError(f"--length {count}: a completion needs at least 2 tokens")
    defaults = {"model.dtype": "bfloat16"} if (model or "").startswith(PREFIX) else None
    config = configure(file, flags, sets, defaults=defaults, dry_run=True, asks_task=False)
    if report in ("speed", "trace"):
        check_has_weights(config, report)
    if limit is not None and report != "memory":
        raise UsageError(f"--memory {memory}: goes with --report memory")
    if report == "trace" and out is None:
        raise UsageError("--report trace: writes files; name a folder for them with --out")
    described = check_describable(config) if report in ("memory", "flops") else {}
    if out is not None:
        from pte_cli.profile.plots import check_plots

        check_plots()
        check_writable("--out", out)

    from pte_cli.profile.arms import Question, arms_of

    question = Question(
        arms=arms_of(config),
        lengths=sorted(set(length or LENGTHS)),
        budgets=sorted(set(budget or [config.evict.budget])),
        rows=rows,
        prompt=prompt,
        gradient=gradient,
        accelerator=on_accelerator(config),
    )
    check_windows(question)
    with ui.only_results_on_stdout():
        if report == "memory":
            from pte_cli.profile.memory import memory_report

            found = memory_report(
                question, described, measure=not (no_measure or weightless(config)), memory=limit, tell=ui.err().print
            )
        elif report == "flops":
            from pte_cli.profile.flops import flops_report

            found = flops_report(question, described)
        elif report == "speed":
            from pte_cli.profile.speed import speed_report

            found = speed_report(question, ui.err().print)
        else:
            from pte_cli.profile.trace import trace_report

            found = trace_report(question, out)
    found = {"model": config.model.name, "settings": describe(config, question), **found}
    show(found, out, json)


def show(found: dict[str, Any], out: Path | None, json: bool) -> None:
    """Tables or JSON on stdout, files in `out`."""
    from pte_cli.profile.tables import tables

    if out is not None:
        from pte_cli.profile.page import write_files

        found["files"] = {**found.get("files", {}), **write_files(found, out)}
    if json:
        ui.print_json(found)
        return
    console = ui.out()
    console.print(f"{found['model']}: {found['settings']}", soft_wrap=True)
    for report_table in tables(found):
        table = Table(title=report_table.title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for i, name in enumerate(report_table.columns):
            table.add_column(name, justify="right" if i else "left", no_wrap=True)
        for row in report_table.rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    for kind, path in found.get("files", {}).items():
        ui.err().print(f"{kind}: {path}", soft_wrap=True)
    ui.next_step(f"pte train {model_flag(found['model'])}--dry-run")


def model_flag(name: str) -> str:
    """`--model NAME ` for the commands that come next; nothing for the built-in model."""
    return "" if name == BUILT_IN else f"--model {name} "


def describe(config: RunConfig, question: Question) -> str:
    """One line that says what is profiled."""
    checkpointing = ", gradient checkpointing" if config.train.gradient_checkpointing else ""
    return (
        f"{config.model.dtype}, rank {config.adapter.rank}, {question.rows} rows, prompt {question.prompt}, "
        f"frac {config.evict.frac:g}, {question.gradient} gradient{checkpointing}"
    )


def weightless(config: RunConfig) -> bool:
    """Whether the model is a preset, which has sizes but no weights."""
    return config.model.name.startswith(PREFIX)


def check_choice(option: str, given: str, known: tuple[str, ...]) -> None:
    """UsageError for a value that is none of `known`."""
    if given not in known:
        raise UsageError(f"{option} {given}: {did_you_mean(given, known)}")


def parse_size(text: str) -> int:
    """Bytes of `24GiB`, `80GB` or `1024 MiB`. UsageError for anything else."""
    match = SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--memory {text!r}: expected a number and a unit, for example 24GiB")
    unit = match[2].upper()
    return int(float(match[1]) * (1024 if "I" in unit else 1000) ** POWERS.index(unit[0]))


def check_has_weights(config: RunConfig, report: str) -> None:
    """UsageError for a preset, with which nothing can be run."""
    if weightless(config):
        raise UsageError(
            f"--report {report}: runs the model, and {config.model.name!r} has no weights; "
            "use a folder with its safetensors, or --report memory or flops"
        )
    check_trainable(config.model)


def check_describable(config: RunConfig) -> dict[str, Any]:
    """The model's config.json. UsageError where its steps can't be predicted from it."""
    described = describe_model(config.model)
    kind = described.get("model_type")
    if kind not in FAMILIES:
        raise UsageError(
            f"model.name = {config.model.name!r}: its sizes are known only once it is loaded (type {kind}); "
            "use --report speed or trace"
        )
    if config.model.quantization != "none":
        raise UsageError(
            f"model.quantization = {config.model.quantization!r}: predictions are for weights in model.dtype; "
            "leave it out, or use --report speed or trace"
        )
    return described


def check_windows(question: Question) -> None:
    """UsageError for a budget that the prompt leaves no window in."""
    from pte_cli.api import pinned_length
    from pte_cli.budget import window
    from pte_cli.rollout.prepare import build_policy

    for curve in question.curves():
        if curve.budget is not None:
            window(curve.budget, question.prompt, pinned_length(build_policy(curve.arm.config), question.prompt))


def on_accelerator(config: RunConfig) -> bool:
    """Whether training would run on an accelerator; a preset's would."""
    if config.model.device != "auto":
        return config.model.device != "cpu"
    if weightless(config):
        return True
    import torch

    return torch.accelerator.is_available()
