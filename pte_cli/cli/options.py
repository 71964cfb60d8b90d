"""Options that several commands share, and turning them into a RunConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pte_cli.checks import check_config
from pte_cli.cli import ui
from pte_cli.config import RunConfig, load_config
from pte_cli.registry import Registry, load_registry

METHOD = "Method"
TASK = "Task and model"
OUTPUT = "Output"

Evict = Annotated[
    str | None,
    typer.Option(
        "--evict",
        help="Eviction policy: full, sliding, sink, importance or a plugin. [sliding]",
        rich_help_panel=METHOD,
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        "--encoder", help="What becomes of evicted tokens: pte, none, ttt or a plugin. [pte]", rich_help_panel=METHOD
    ),
]
BudgetTokens = Annotated[
    int | None,
    typer.Option("--budget", help="Cached tokens per layer and head, prompt included. [48]", rich_help_panel=METHOD),
]
Frac = Annotated[
    float | None,
    typer.Option("--frac", help="Share of the window evicted when it is full. [0.25]", rich_help_panel=METHOD),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="tiny (built in) or a folder with safetensors. [tiny]", rich_help_panel=TASK),
]
Entries = Annotated[
    int | None,
    typer.Option("--entries", help="Pairs per problem, the difficulty (task.entries). [12]", rich_help_panel=TASK),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="Your own: a JSONL, JSON, CSV or Parquet file, a folder of them, gym:NAME or a hub id. [the task]",
        rich_help_panel=TASK,
    ),
]
Rewards = Annotated[
    list[str] | None,
    typer.Option("--reward", help="Reward plugin for --data; repeatable. [math-verify]", rich_help_panel=TASK),
]
Problems = Annotated[
    int | None,
    typer.Option("--problems", help="Held-out problems to measure on. [256]", rich_help_panel=TASK),
]
Device = Annotated[
    str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps. [auto]", rich_help_panel=TASK)
]
File = Annotated[
    Path | None,
    typer.Option("--config", help="Settings from a TOML file or a run's config.json.", rich_help_panel=OUTPUT),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, e.g. adapter.rank=16, or option of a strategy, e.g. encoder.normalize=row. Repeatable.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=OUTPUT)]


def configure(file: Path | None, flags: dict[str, Any], sets: list[str] | None) -> RunConfig:
    """Flags by dotted key (None: not given) over file and environment, checked as far as goes without a model."""
    report_plugins(load_registry())
    return check_config(load_config(file=file, flags=flags, sets=sets or []))


def report_plugins(registry: Registry) -> None:
    """One line on stderr for each plugin that was left out, and each entry of PTE_PLUGINS that names nothing."""
    for error in registry.errors:
        ui.err().print(f"plugin {error.entry_point} of {error.distribution} left out: {error.reason}", soft_wrap=True)
    for warning in registry.warnings:
        ui.err().print(warning, soft_wrap=True)


def conditions(config: RunConfig) -> str:
    """The policy and its bound as a person reads them: `--evict sliding, budget 48, frac 0.25`."""
    bound = "" if config.evict.policy == "full" else f", budget {config.evict.budget}, frac {config.evict.frac:g}"
    return f"--evict {config.evict.policy}{bound}"
