"""Reports as HTML pages that need nothing else: pictures are inside them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from pte_cli.report.summary import Summary
from pte_cli.report.tables import notes, tables

Images = Sequence[tuple[str, Path]]
"""(title, PNG file)."""


def page(summary: Summary, pictures: Images) -> str:
    """The HTML of a sweep's report."""
    return render(
        "sweep.html",
        pictures,
        title=summary.question.title,
        notes=notes(summary),
        tables=tables(summary),
    )


def render(template: str, pictures: Images, **values: Any) -> str:
    """The HTML of one of the templates in this folder. Whatever is put into it is escaped."""
    environment = Environment(
        loader=FunctionLoader(lambda name: (files("pte_cli.report") / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    images = [(title, base64.b64encode(file.read_bytes()).decode()) for title, file in pictures]
    return environment.get_template(template).render(pictures=images, **values)
