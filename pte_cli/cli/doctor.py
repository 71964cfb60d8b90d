"""`pte doctor`."""

from __future__ import annotations

from typing import Any

import typer

from pte_cli.cli import ui
from pte_cli.cli.options import Json

GIB = 2**30


def doctor(json: Json = False) -> None:
    """What is there to work with, and what is missing for which feature. Exit code 1 where pte can't work at all."""
    from pte_cli.doctor import examine

    with ui.only_results_on_stdout():
        found = examine()
    if json:
        ui.print_json(found)
    else:
        show(found)
    if found["problems"]:
        raise typer.Exit(1)


def show(found: dict[str, Any]) -> None:
    """One table: a line for each thing that was looked at, and whether it is as it should be."""
    table = ui.table(["", "what", "found"])
    for kind, what, shown in rows(found):
        table.add_row(kind, what, shown)
    ui.out().print(table)
    for problem in found["problems"]:
        ui.err().print(f"problem: {problem}", soft_wrap=True)
    ui.next_step("pte train --dry-run" if not found["problems"] else "pte doctor, once that is mended")


def rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(state, what, found): `ok`, `-` for something optional that is not there, `PROBLEM`."""
    lines = [("ok", "pte, Python", f"{found['pte']}, {found['python']} ({found['executable']})")]
    for row in found["packages"]:
        shown = f"{row['version'] or 'not installed'} (needs {row['needs']})"
        lines.append(("ok" if row["fits"] else "PROBLEM", row["name"], shown))
    for row in found["devices"]:
        size = "" if row["bytes"] is None else f", {row['bytes'] / GIB:.1f} GiB"
        lines.append(("ok", f"device {row['device']}", f"{row['name']}{size}"))
    plugins = found["plugins"]
    lines.append(("ok", "plugins", f"{plugins['found']} found"))
    lines += [("-", f"plugin {e['entry_point']} of {e['distribution']}", e["reason"]) for e in plugins["errors"]]
    lines += [("-", "plugins", warning) for warning in plugins["warnings"]]
    for row in found["folders"]:
        shown = f"{row['path']}, {row['free_bytes'] / GIB:.1f} GiB free"
        lines.append(("ok" if row["writable"] else "PROBLEM", f"folder for {row['for']}", shown))
    hub = found["hub"]
    reason = f": {hub['reason']}" if hub["reason"] else ""
    lines.append(("ok" if hub["state"] == "reachable" else "-", "hub", f"{hub['state']} ({hub['endpoint']}){reason}"))
    for row in found["features"]:
        missing = f"missing: {', '.join(row['missing'])}; {row['install']}" if row["missing"] else "there"
        lines.append(("-" if row["missing"] else "ok", f"{row['extra']}: {row['for']}", missing))
    return lines
