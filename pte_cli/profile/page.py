"""A report as files: PNG, JSON and one HTML page that needs nothing but itself."""

from __future__ import annotations

import io
import json
from html import escape
from pathlib import Path
from typing import Any

from pte_cli.errors import UsageError
from pte_cli.profile.plots import figure
from pte_cli.profile.tables import ReportTable, tables

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1100px; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
p { margin-top: .25rem; color: #555; }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; font-size: .875rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { padding: .2rem .75rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
pre { overflow: auto; max-height: 24rem; background: #f6f6f6; padding: .75rem; font-size: .8rem; }
"""


def write_files(report: dict[str, Any], folder: Path) -> dict[str, str]:
    """`REPORT.png`, `.html` and `.json` in `folder`; their paths by kind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {str(folder)!r}: {error.strerror}; choose a folder that can be written") from None
    paths = {kind: folder / f"{report['report']}.{kind}" for kind in ("png", "html", "json")}
    made, svg = figure(report), io.StringIO()
    made.savefig(paths["png"], dpi=150)
    made.savefig(svg, format="svg")
    text = json.dumps(report, indent=2)
    paths["json"].write_text(text + "\n", encoding="utf-8")
    paths["html"].write_text(page(report, svg.getvalue(), text), encoding="utf-8")
    return {kind: str(path) for kind, path in paths.items()}


def page(report: dict[str, Any], svg: str, data: str) -> str:
    """The HTML document: figure, tables, and the JSON they come from."""
    title = f"{report['model']}: {report['report']}"
    shown = "\n".join(_table(table) for table in tables(report))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pte profile, {escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(report["settings"])}</p>
{svg[svg.index("<svg") :]}
{shown}
<details><summary>All figures as JSON</summary><pre>{escape(data)}</pre></details>
</body>
</html>
"""


def _table(table: ReportTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table><caption>{escape(table.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )
