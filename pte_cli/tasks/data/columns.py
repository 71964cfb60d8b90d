"""Which column is the prompt, which the reference, which a recorded completion."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pte_cli.config import ColumnsConfig
from pte_cli.errors import UsageError, did_you_mean
from pte_cli.tasks.data.files import Raw

KNOWN = {
    "prompt": ("prompt", "problem", "question", "messages"),
    "answer": ("answer", "solution"),
    "completion": ("completion", "response"),
}
"""What each is called where the settings don't say, the first that is there."""
RESERVED = ("prompts", "completions", "completion_ids", "finish")
"""Names of arguments that rewards are called with."""


@dataclass(frozen=True)
class Columns:
    """The chosen columns; None for what the data does not have."""

    prompt: str
    answer: str | None
    completion: str | None

    def __str__(self) -> str:
        pairs = [("prompt", self.prompt), ("answer", self.answer), ("completion", self.completion)]
        return ", ".join(f"{role} = {name}" for role, name in pairs if name is not None)


def choose_columns(rows: Sequence[Raw], settings: ColumnsConfig) -> Columns:
    """The columns as set, else those with a usual name. UsageError where one is not there, or has a reserved name."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    for name in names:
        if name in RESERVED:
            raise UsageError(f"data.source: a column is called {name!r}, as an argument of rewards is; rename it")
    prompt = _choose("prompt", settings.prompt, names)
    if prompt is None:
        raise UsageError(
            f"data.columns.prompt: no column called {' or '.join(KNOWN['prompt'])}; "
            f"say which of these it is: {', '.join(names)}"
        )
    return Columns(prompt, _choose("answer", settings.answer, names), _choose("completion", settings.completion, names))


def _choose(role: str, wanted: str | None, names: Collection[str]) -> str | None:
    if wanted is None:
        return next((name for name in KNOWN[role] if name in names), None)
    if wanted not in names:
        raise UsageError(f"data.columns.{role} = {wanted!r}: no such column; {did_you_mean(wanted, names)}")
    return wanted
