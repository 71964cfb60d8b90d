"""`pte generate`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pte_cli.cli import complete, ui
from pte_cli.cli.options import (
    GENERATION,
    TASK,
    BudgetTokens,
    Device,
    Encoder,
    Evict,
    File,
    Frac,
    Json,
    MaxNewTokens,
    Model,
    PromptStyle,
    Sets,
    TopP,
    TrustCode,
    conditions,
    configure,
    open_run,
    prompting,
    refuse_untrained,
    sampling,
)
from pte_cli.errors import UsageError
from pte_cli.tasks.prompts import is_text, render

DEFAULTS = {"evict.budget": 4096, "sampling.max_new_tokens": 512}
"""Of the bare model; a run brings its own."""


def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; without one, or with -, stdin.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", autocompletion=complete.runs, help="A run's folder: its adapter.", rich_help_panel=TASK
        ),
    ] = None,
    model: Model = None,
    trust_remote_code: TrustCode = None,
    encoder: Encoder = None,
    evict: Evict = None,
    frac: Frac = None,
    budget: BudgetTokens = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 is greedy.", rich_help_panel=GENERATION)] = 0.0,
    top_p: TopP = None,
    seed: Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Of sampling.", rich_help_panel=GENERATION)] = 0,
    prompt_style: PromptStyle = None,
    device: Device = None,
    file: File = None,
    sets: Sets = None,
    json: Json = False,
) -> None:
    """Complete a prompt under a bounded cache, token by token."""
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
    trusted = bool(trust_remote_code) or file is not None
    saved = open_run(run, encoder, trusted=trusted) if run is not None else None
    if saved is None:
        refuse_untrained(encoder)
    file = file or (saved.path / "config.json" if saved else None)
    config = configure(file, flags, sets, defaults=DEFAULTS, asks_task=False)
    sampled = sampling(config, temperature, top_p)
    style, system = prompting(config, prompt_style)
    text = read_prompt(prompt)

    from pte_cli.rollout import generate as generating
    from pte_cli.rollout.prepare import load

    with ui.only_results_on_stdout():
        loaded = load(config, adapter=saved.adapter if saved else None)
    if (word := loaded.codec.unknown_word(text.split())) is not None:
        raise UsageError(f"the prompt: the model's tokenizer has no token for {word!r}")
    rendered = render(loaded.codec.tokenizer, text, style, system)
    arguments = (loaded, config.evict, sampled, rendered.ids, seed)
    if json:
        result = generating.generate(*arguments)
        ui.print_json(
            {
                "run": str(run) if run else None,
                "model": config.model.name,
                "encoder": config.encoder.name if run else "none",
                "evict": config.evict.model_dump(mode="json"),
                "temperature": sampled.temperature,
                "top_p": sampled.top_p,
                "max_new_tokens": sampled.max_new_tokens,
                "seed": seed,
                "prompt": rendered.text,
                "prompt_tokens": len(rendered.ids),
                **asdict(result),
            }
        )
        return
    try:
        result = generating.generate(*arguments, on_text=write)
        write("\n")
    except BrokenPipeError:
        # Whoever read the text has enough of it. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt:
        write("\n")
        raise
    ui.err().print(
        f"{len(result.tokens)} tokens, finish {result.finish}, {result.evictions} evictions, "
        f"{result.peak_cache_bytes / 2**20:.2f} MiB of cache ({conditions(config)})",
        soft_wrap=True,
    )
    ui.next_step(f"pte eval {run}" if run else "pte train")


BROKEN_PIPE = 141
"""What a shell reports of a program that SIGPIPE ended."""


def read_prompt(prompt: str | None) -> str:
    """The argument, or all of stdin. UsageError for an empty prompt, or where nothing is piped in."""
    if prompt in (None, "-"):
        if sys.stdin.isatty():
            raise UsageError('no prompt: give it as an argument (pte generate "...") or pipe it in')
        try:
            prompt = sys.stdin.read().rstrip("\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"the prompt on stdin is not UTF-8 text ({error.reason})") from None
    if not prompt or not prompt.strip():
        raise UsageError("the prompt is empty")
    if not is_text(prompt):
        raise UsageError(f"the prompt {prompt!r}: is not UTF-8 text")
    return prompt


def write(text: str) -> None:
    """To stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
