"""Options that several commands share, and turning them into a RunConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pte_cli.checks import check_config
from pte_cli.cli import complete, ui
from pte_cli.config import RunConfig, SamplingConfig, load_config, validate
from pte_cli.errors import UsageError
from pte_cli.registry import Registry, load_registry
from pte_cli.runs import RunDir
from pte_cli.tasks.prompts import check_style

METHOD = "Method"
TASK = "Task and model"
OUTPUT = "Output"
GRADING = "Recorded completions"
GENERATION = "Generation"
BENCHMARKS = "Benchmarks"

Evict = Annotated[
    str | None,
    typer.Option(
        "--evict",
        metavar="NAME",
        autocompletion=complete.plugins("evict"),
        help="Eviction policy: full, sliding, sink, importance or a plugin. \\[sliding]",
        rich_help_panel=METHOD,
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="NAME",
        autocompletion=complete.plugins("encoder"),
        help="What becomes of evicted tokens: pte, none, ttt or a plugin. \\[pte]",
        rich_help_panel=METHOD,
    ),
]
BudgetTokens = Annotated[
    int | None,
    typer.Option(
        "--budget",
        metavar="TOKENS",
        help="Cached tokens per layer and head, prompt included. \\[48]",
        rich_help_panel=METHOD,
    ),
]
Frac = Annotated[
    float | None,
    typer.Option(
        "--frac", metavar="SHARE", help="Share of the window evicted when it is full. \\[0.25]", rich_help_panel=METHOD
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="tiny (built in), a folder, a GGUF file, a hub id, or preset:NAME with --dry-run. \\[tiny]",
        rich_help_panel=TASK,
    ),
]
TrustCode = Annotated[
    bool | None,
    typer.Option(
        "--trust-remote-code",
        metavar="",
        help="Run the code that a model brings with it. \\[off]",
        rich_help_panel=TASK,
    ),
]
Entries = Annotated[
    int | None,
    typer.Option(
        "--entries",
        metavar="PAIRS",
        help="Pairs per problem, the difficulty (task.entries). \\[12]",
        rich_help_panel=TASK,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="Your own: a JSONL, JSON, CSV or Parquet file, a folder of them, gym:NAME or a hub id. \\[the task]",
        rich_help_panel=TASK,
    ),
]
Rewards = Annotated[
    list[str] | None,
    typer.Option(
        "--reward",
        metavar="NAME",
        autocompletion=complete.plugins("reward"),
        help="Reward plugin for --data; repeatable. \\[math-verify]",
        rich_help_panel=TASK,
    ),
]
Problems = Annotated[
    int | None,
    typer.Option(
        "--problems", metavar="PROBLEMS", help="Held-out problems to measure on. \\[256]", rich_help_panel=TASK
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        autocompletion=complete.words("auto", "cpu", "cuda", "mps"),
        help="auto, cpu, cuda, cuda:N or mps. \\[auto]",
        rich_help_panel=TASK,
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings from a TOML file or a run's config.json.", rich_help_panel=OUTPUT
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=complete.assignments,
        help="Any setting, e.g. adapter.rank=16, or option of a strategy, e.g. encoder.normalize=row. Repeatable.",
        rich_help_panel=OUTPUT,
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        metavar="TOKENS",
        help="Longest completion. \\[a run's; bare model: 512, a benchmark 3072]",
        rich_help_panel=GENERATION,
    ),
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", metavar="SHARE", help="Nucleus of sampling. \\[1: off]", rich_help_panel=GENERATION),
]
PromptStyle = Annotated[
    str | None,
    typer.Option(
        "--prompt-style",
        metavar="STYLE",
        autocompletion=complete.words("plain", "chat", "qwen-math", "r1-distill", "auto"),
        help="plain, chat, qwen-math, r1-distill or auto. \\[auto: chat where the tokenizer has a template]",
        rich_help_panel=GENERATION,
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="One JSON document on stdout.", rich_help_panel=OUTPUT)]


def configure(
    file: Path | None,
    flags: dict[str, Any],
    sets: list[str] | None,
    *,
    defaults: dict[str, Any] | None = None,
    dry_run: bool = False,
    asks_task: bool = True,
) -> RunConfig:
    """Flags by dotted key (None: not given) over file and environment, checked as far as goes without a model.

    defaults: where the command's differ from training's. asks_task: whether the prompts are the task's.
    """
    report_plugins(load_registry())
    config = load_config(file=file, flags=flags, sets=sets or [], defaults=defaults)
    return check_config(config, dry_run=dry_run, asks_task=asks_task)


def open_run(run: Path, encoder: str | None = None, *, trusted: bool = False) -> RunDir:
    """A run that has its adapter. UsageError where it has none, or `encoder` is not what it was trained with.

    trusted: whether code that its model brings may run. That a run's own settings say so is not enough: it may come
    from someone else.
    """
    saved = RunDir.open(run)
    settings = saved.config()
    trained = settings.encoder.name
    if settings.model.trust_remote_code and not trusted:
        raise UsageError(
            f"{str(run)!r}: its model {settings.model.name!r} brings code of its own; look at it, and add "
            "--trust-remote-code to run it"
        )
    if encoder not in (None, trained):
        raise UsageError(f"--encoder {encoder}: the adapter in {str(run)!r} was trained with {trained!r}; leave it out")
    saved.check_adapter()
    return saved


def prompting(config: RunConfig, style: str | None) -> tuple[str, str | None]:
    """The prompt style asked for, else that of the run's data, and its system prompt. UsageError for an unknown one."""
    if style is None:
        return config.data.style, config.data.system
    check_style(style)
    return style, None


def refuse_untrained(encoder: str | None) -> None:
    """UsageError where an encoder is asked for without a run: it has nothing trained to encode with."""
    if encoder not in (None, "none"):
        raise UsageError(f"--encoder {encoder}: comes with a run, trained; the bare model has none")


def sampling(config: RunConfig, temperature: float, top_p: float | None) -> SamplingConfig:
    """The sampling settings with these in place. UsageError for a value that can't be, or a top-p without effect.

    Apart from `config`: a run's settings may not have temperature 0, which is what evaluation mostly wants.
    """
    given = {"temperature": temperature} | ({} if top_p is None else {"top_p": top_p})
    found = validate({"sampling": {**config.sampling.model_dump(), **given}}).sampling
    if temperature == 0 and top_p not in (None, 1):
        raise UsageError(f"--top-p {top_p:g}: greedy generation always takes the likeliest token; add --temperature")
    return found


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
