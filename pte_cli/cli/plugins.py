"""`pte plugins`: what is installed, what it takes, whether it keeps its contract, and a start for one's own."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from pte_cli.cli import complete, ui
from pte_cli.cli.options import Json, report_plugins
from pte_cli.config import assignment
from pte_cli.errors import UsageError, did_you_mean
from pte_cli.registry import KINDS, Found, Registry, load_registry
from pte_cli.scaffold import write_plugin

plugins = typer.Typer(name="plugins", help="Find, inspect, check and write plugins.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="PLUGIN", autocompletion=complete.plugins(), help="A plugin's name, or DISTRIBUTION:NAME."),
]
Kind = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", autocompletion=complete.kinds, help=f"One of {', '.join(KINDS)}."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of the plugin. Repeatable."),
]


@plugins.command("list")
def show_all(
    kind: Kind = None,
    errors: Annotated[
        bool, typer.Option("--errors", metavar="", help="What was left out, why, and where it failed.")
    ] = False,
    json: Json = False,
) -> None:
    """Every plugin that was found; a name that several distributions use needs its qualified spelling."""
    registry = _registry(kind)
    found = [f for f in registry.found if kind in (None, f.kind.name)]
    if json:
        left_out = [vars(error) for error in registry.errors]
        ui.print_json({"plugins": [_row(f) for f in found], "errors": left_out, "warnings": list(registry.warnings)})
    elif errors:
        _print_errors(registry)
    else:
        _print_table([_row(f) for f in found], ("kind", "name", "qualified", "version", "summary"))
        ui.next_step("pte plugins list --errors" if registry.errors else "pte plugins info NAME")


@plugins.command("info")
def show_one(name: Name, kind: Kind = None, json: Json = False) -> None:
    """What a plugin does, where it comes from, and its options."""
    found = _registry(kind).find(name, kind)
    module = importlib.import_module(found.module) if found.module else None
    document = {
        **_row(found),
        "module": found.module,
        "file": inspect.getsourcefile(module) if module else None,
        "doc": inspect.getdoc(module) if module else None,
        "options": found.spec.options.model_json_schema(),
    }
    if json:
        ui.print_json(document)
        return
    console = ui.out()
    console.print(f"{found.kind.title} {found.spec.name}: {found.spec.summary}", soft_wrap=True)
    console.print(f"from {found.qualified} {found.version}, {document['file']}\n", soft_wrap=True)
    console.print(document["doc"] or "no description", soft_wrap=True)
    fields = found.spec.options.model_fields
    if fields:
        console.print(f"\noptions, --set {found.kind.section}.NAME=VALUE")
        _print_table([_option(*item) for item in fields.items()], ("name", "type", "default", "description"))
    else:
        console.print("\nno options")
    ui.next_step(f"pte plugins check {name}")


@plugins.command("check")
def check(name: Name, kind: Kind = None, sets: Options = None, json: Json = False) -> None:
    """Run the contract suite on a plugin: one line per check; exit code 1 when one fails."""
    found = _registry(kind).find(name, kind)

    with ui.only_results_on_stdout():
        from pte_cli.testing import run_checks

        outcomes = run_checks(found.spec, options=dict(assignment(item) for item in sets or []))
    failed = sum(not outcome.passed for outcome in outcomes)
    if json:
        checks = [vars(outcome) for outcome in outcomes]
        ui.print_json({**_row(found), "passed": not failed, "checks": checks})
    else:
        for outcome in outcomes:
            reason = f": {outcome.reason}" if outcome.reason else ""
            ui.out().print(f"{'pass' if outcome.passed else 'FAIL'}  {outcome.check}{reason}", soft_wrap=True)
        summary = f"{failed} of {len(outcomes)} checks failed" if failed else f"all {len(outcomes)} checks passed"
        ui.err().print(f"{found.kind.title} {found.qualified}: {summary}", soft_wrap=True)
        usable = not failed and found.kind.name in ("evict", "encoder")
        ui.next_step(f"pte train --{found.kind.name} {name} --dry-run" if usable else f"pte plugins info {name}")
    if failed:
        raise typer.Exit(1)


@plugins.command("new")
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the package and of the plugin, such as my-policy.")
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="KIND",
            autocompletion=complete.words("evict", "encoder", "reward"),
            help="evict, encoder or reward.",
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Folder to write. \\[./NAME]")] = None,
    json: Json = False,
) -> None:
    """Write a package with a working plugin, its tests and an entry point. Nothing is overwritten."""
    folder = out or Path(name)
    files = write_plugin(name, kind, folder)
    if json:
        ui.print_json({"name": name, "kind": kind, "folder": str(folder), "files": [str(file) for file in files]})
        return
    for file in files:
        ui.out().print(str(file), soft_wrap=True)
    ui.err().print(f"next: pip install -e {folder} && pte plugins check {name}", soft_wrap=True)


def _registry(kind: str | None) -> Registry:
    """What is installed, what was left out reported; UsageError for a kind that is none."""
    if kind is not None and kind not in KINDS:
        raise UsageError(f"--kind {kind!r}: no such kind; {did_you_mean(kind, KINDS)}")
    registry = load_registry()
    report_plugins(registry)
    return registry


def _row(found: Found) -> dict[str, str]:
    return {
        "kind": found.kind.name,
        "name": found.spec.name,
        "qualified": found.qualified,
        "version": found.version,
        "summary": found.spec.summary,
    }


def _option(name: str, info: FieldInfo) -> dict[str, str]:
    kind: Any = info.annotation
    shown = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
    default = "required" if info.is_required() else repr(info.get_default(call_default_factory=True))
    return {"name": name, "type": shown, "default": default, "description": info.description or ""}


def _print_table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> None:
    table = ui.table(columns)
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    ui.out().print(table)


def _print_errors(registry: Registry) -> None:
    console = ui.out()
    for error in registry.errors:
        console.print(f"{error.entry_point} of {error.distribution}", soft_wrap=True)
        console.print(f"  {error.reason}", soft_wrap=True)
        if error.where:
            console.print(f"  at {error.where}", soft_wrap=True)
    for warning in registry.warnings:
        console.print(warning, soft_wrap=True)
    if not (registry.errors or registry.warnings):
        console.print("no plugin was left out")
