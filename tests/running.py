"""The command line in this process: what `python -m pte_cli` does, without importing torch anew each time."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass

from pte_cli.cli.app import main


@dataclass(frozen=True)
class Done:
    """As `subprocess.run` returns it."""

    returncode: int
    stdout: str
    stderr: str


def pte(*arguments: str, cwd, stdin: str = "") -> Done:
    """Run `pte` with these arguments in the folder `cwd`."""
    stdout, stderr = io.StringIO(), io.StringIO()
    before = sys.argv, sys.stdin
    code = 0
    try:
        sys.argv, sys.stdin = ["pte", *arguments], io.StringIO(stdin)
        with contextlib.chdir(cwd), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            main()
    except SystemExit as done:
        code = done.code or 0
    finally:
        sys.argv, sys.stdin = before
    return Done(code, stdout.getvalue(), stderr.getvalue())
