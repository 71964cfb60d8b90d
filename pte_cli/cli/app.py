"""The `pte` program: its commands, and errors as one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Annotated

import typer

from pte_cli import __version__
from pte_cli.cli.eval import evaluate
from pte_cli.cli.export import export_run
from pte_cli.cli.generate import generate
from pte_cli.cli.plugins import plugins
from pte_cli.cli.profile import profile
from pte_cli.cli.sweep import sweep
from pte_cli.cli.train import train
from pte_cli.errors import PteError

app = typer.Typer(
    name="pte",
    help="Train reasoning models with a bounded KV cache (Progressive Thought Encoding).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train)
app.command("eval")(evaluate)
app.command("generate")(generate)
app.command("export")(export_run)
app.command("sweep")(sweep)
app.command("profile")(profile)
app.add_typer(plugins)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pte {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some runs of a sweep failed, 130 interrupted, 141 whoever read the
    output closed it.
    """
    # What libraries say about their own deprecations is not the user's business.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")
    # Schedulers and `pte sweep` end a run so: it says that it was interrupted, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except PteError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
