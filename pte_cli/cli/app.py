"""The `pte` program: its commands, and errors as one line and an exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from pte_cli import __version__
from pte_cli.cli.doctor import doctor
from pte_cli.cli.eval import evaluate
from pte_cli.cli.export import export_run
from pte_cli.cli.generate import generate
from pte_cli.cli.plugins import plugins
from pte_cli.cli.profile import profile
from pte_cli.cli.report import report
from pte_cli.cli.runs import runs
from pte_cli.cli.sweep import sweep
from pte_cli.cli.train import train
from pte_cli.errors import PteError

TRAIN, RUNS, SETUP = "Train and measure", "Runs", "Set-up"
EPILOG = (
    "Values in \\[brackets] are defaults. Exit codes: 0 done, 1 failed, 2 wrong usage, "
    "3 some runs of a sweep failed, 130 interrupted, 141 the output's reader left."
)

app = typer.Typer(
    name="pte",
    help="Train reasoning models with a bounded KV cache (Progressive Thought Encoding).",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", rich_help_panel=TRAIN)(train)
app.command("eval", rich_help_panel=TRAIN)(evaluate)
app.command("generate", rich_help_panel=TRAIN)(generate)
app.command("sweep", rich_help_panel=TRAIN)(sweep)
app.command("profile", rich_help_panel=TRAIN)(profile)
app.add_typer(runs, rich_help_panel=RUNS)
app.command("report", rich_help_panel=RUNS)(report)
app.command("export", rich_help_panel=RUNS)(export_run)
app.add_typer(plugins, rich_help_panel=SETUP)
app.command("doctor", rich_help_panel=SETUP)(doctor)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pte {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=show_version, is_eager=True, help="Show the version and exit."),
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
        code = app(standalone_mode=False, prog_name="pte")
    except PteError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        sys.stderr.write(misspelt(error, sys.argv[1:]))
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a folder that went away: not ours to mend, and no traceback helps
        where = f"{str(error.filename)!r}: " if error.filename is not None else ""
        sys.stderr.write(f"error: {where}{error.strerror or error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        sys.stderr.write("interrupted\n")
    sys.exit(code or 0)


INTERRUPTED = 130


def misspelt(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """What was wrong with a command line before any command saw it, in one line; the help where nothing was given."""
    message = error.format_message().rstrip()
    if not message:
        return ""  # rich has shown the help already
    if "\n" in message:
        return f"{message}\n"
    message = re.sub(r" \(Possible options: (.*)\)$", r"; did you mean \1?", message)
    message = re.sub(r"\. Did you mean", "; did you mean", message)
    option = next((name for name in getattr(getattr(error, "param", None), "opts", ()) if name in arguments), None)
    if option is not None and ": " in message:  # typer names the option and what was wrong, not what was given
        value = next(iter(arguments[arguments.index(option) + 1 :]), "")
        reason = message.partition(": ")[2]
        message = f"{option} {value!r}: {reason[0].lower()}{reason[1:]}"
    where = getattr(getattr(error, "ctx", None), "command_path", "pte")
    return f"error: {message[0].lower()}{message[1:].rstrip('.')}; see {where} --help\n"
