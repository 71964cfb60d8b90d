"""The errors that the command line turns into one line and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PteError(Exception):
    """Something went wrong that the user can act on: printed as one line, exit code 1."""

    exit_code = 1


class UsageError(PteError):
    """A setting is wrong: the message names the setting, its value and what would work. Exit code 2."""

    exit_code = 2


def first_lines(error: Exception, count: int = 1) -> str:
    """The first lines of what an error says, as one; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines[:count]) if lines else type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A ` (did you mean ...?)` suffix when `name` is close to a known one, else the list of what is known."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}? Known: {', '.join(known)}"
    return f"known: {', '.join(known)}"
