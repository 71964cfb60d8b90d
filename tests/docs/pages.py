"""The documentation's pages, and what is fenced in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def fenced(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return re.findall(r"^```([^\n]*)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """The text of every block in this language."""
    return [text for given, text in fenced(page) if given == language]


def commands(page: Path) -> list[list[str]]:
    """The words of every command of the page's shell blocks, in order."""
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [shlex.split(part, comments=True) for line in lines for part in line.split(" && ") if part.strip()]
