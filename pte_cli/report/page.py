"""The report as one HTML page that needs nothing else: pictures are inside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from pte_cli.report.summary import Summary
from pte_cli.report.tables import notes, tables


def page(summary: Summary, pictures: Sequence[tuple[str, Path]]) -> str:
    """The page's HTML. pictures: (title, PNG file)."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("pte_cli.report") / "page.html").read_text(encoding="utf-8"))
    return template.render(
        title=summary.question.title,
        notes=notes(summary),
        tables=tables(summary),
        pictures=[(title, base64.b64encode(file.read_bytes()).decode()) for title, file in pictures],
    )
