"""What the shell offers after a flag: names that are known without loading a model. Imports no torch.

typer calls each of these with what has been typed so far, and keeps those that begin with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pte_cli.config import CHOICES, RunConfig
from pte_cli.errors import UsageError
from pte_cli.eval.benchmarks import BENCHMARKS
from pte_cli.registry import KINDS, load_registry
from pte_cli.report.runs import find_runs
from pte_cli.setting_errors import setting_names

Completer = Callable[[str], list[str]]


def words(*known: str) -> Completer:
    """One of these, or several with commas where the last one is being typed."""

    def offered(incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in known]

    return offered


def plugins(kind: str | None = None) -> Callable[[], list[tuple[str, str]]]:
    """(name, summary) of every plugin of a kind, or of any."""

    def offered() -> list[tuple[str, str]]:
        found = load_registry().found
        return [(f.spec.name, f.spec.summary) for f in found if kind in (None, f.kind.name)]

    return offered


def assignments() -> list[str]:
    """`evict.frac=` for every setting, and `evict.n_sink=` for every option of an installed strategy."""
    names = dict.fromkeys(setting_names(RunConfig))
    for found in load_registry().found:
        if found.kind.section in CHOICES:
            names |= dict.fromkeys(f"{found.kind.section}.{option}" for option in found.spec.options.model_fields)
    return [f"{name}=" for name in names]


def runs(incomplete: str) -> list[str]:
    """Folders of runs in the folder typed so far, and those below it."""
    typed = Path(incomplete)
    root = typed if incomplete.endswith("/") or not incomplete else typed.parent
    try:
        return [str(path) for path in find_runs(root)]
    except (UsageError, OSError):
        return []


def benchmarks(incomplete: str) -> list[str]:
    """What `--bench` knows by name."""
    return words(*BENCHMARKS)(incomplete)


def kinds() -> list[str]:
    """What `--kind` takes."""
    return list(KINDS)
