"""The `pte` program: its commands, and errors as one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

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


WRONG_COMMAND_LINE: Any = typer.BadParameter.__base__
"""What typer raises for a command line that it can't read."""


def command_line_error(error: Any, arguments: Sequence[str]) -> str:
    """The error in one line that names the option, what was given and where to look."""
    said = str(error.format_message())
    if not said:  # help was asked for by giving no command, and has been printed
        return ""
    option = next((name for name in getattr(getattr(error, "param", None), "opts", ()) if name in arguments), None)
    if option is not None and ": " in said:
        value = next(iter(arguments[arguments.index(option) + 1 :]), "")
        reason = said.partition(": ")[2]
        said = f"{option} {value!r}: {reason[0].lower()}{reason[1:]}"
    return f"error: {said.rstrip('.?')}; see {error.ctx.command_path if error.ctx else 'pte'} --help\n"


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
        # Outside its standalone mode typer raises what is wrong with the command line, instead of drawing a box.
        sys.exit(app(prog_name="pte", standalone_mode=False) or 0)
    except WRONG_COMMAND_LINE as error:
        sys.stderr.write(command_line_error(error, sys.argv[1:]))
        sys.exit(error.exit_code)
    except PteError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a folder that went away: not ours to mend, and no traceback helps
        where = f"{str(error.filename)!r}: " if error.filename is not None else ""
        sys.stderr.write(f"error: {where}{error.strerror or error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
