"""Everything a report consists of, in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pte_cli.errors import PteError
from pte_cli.report.cells import Question
from pte_cli.report.page import page
from pte_cli.report.plots import can_draw, draw
from pte_cli.report.series import pictures
from pte_cli.report.summary import Summary, summarize
from pte_cli.report.tables import write_tables


@dataclass(frozen=True)
class Written:
    """A report: what it says, and its files. drawn: False where matplotlib is missing."""

    summary: Summary
    page: Path
    files: tuple[Path, ...]
    drawn: bool


def write_report(question: Question, folder: Path) -> Written:
    """Read the runs, and write report.json, arms.csv, runs.csv, the pictures and index.html into `folder`.

    Pictures of an earlier report are removed. PteError where no run is finished.
    """
    summary = summarize(question)
    if not summary.arms:
        raise PteError(f"{question.folder}: nothing to report; no run is finished that measured anything")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    tables = write_tables(summary, folder)
    shown = pictures(summary)
    drawn = can_draw()
    images = draw(shown, folder) if drawn else []
    html = folder / "index.html"
    html.write_text(page(summary, [(p.title, file) for p, file in zip(shown, images, strict=False)]), encoding="utf-8")
    return Written(summary, html, (*tables, *images, html), drawn)
