"""The reference pages, written by the code they describe: commands, settings, and the options of the built-in plugins.

A Sphinx extension: while the site is built, each page of PAGES gets its tables below its introduction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pte_cli.cli.app import app as program
from pte_cli.config import RunConfig
from pte_cli.registry import BUILTIN, KINDS, load_registry

BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def commands() -> str:
    """Every command with its arguments and options."""
    return "\n".join(_command("pte", typer.main.get_command(program)))


def settings() -> str:
    """Every setting of a run by its dotted name."""
    sections = {name: f.default for name, f in RunConfig.model_fields.items() if isinstance(f.default, BaseModel)}
    own = {name: f for name, f in RunConfig.model_fields.items() if name not in sections}
    lines = ["## Of the run itself", "", *_fields(own)]
    for name, section in sections.items():
        lines += [f"## {name}", "", *_fields(_flat(section, f"{name}."))]
    return "\n".join(lines)


def plugin_options() -> str:
    """Every built-in plugin with the options it takes."""
    lines: list[str] = []
    registry = load_registry()
    for kind in KINDS.values():
        title = f"{kind.title[0].upper()}{kind.title[1:]}"
        lines += [f"## {title}", "", f"Chosen by `{kind.setting}`.", ""]
        for found in registry.found:
            if found.kind is not kind or found.distribution != BUILTIN:
                continue
            options = found.spec.options.model_fields
            lines += [f"### {found.spec.name}", "", f"{_cell(found.spec.summary)}.", ""]
            lines += _fields(options) if options else ["No options.", ""]
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "reference-cli": commands,
    "reference-config": settings,
    "reference-plugins": plugin_options,
}


def _command(path: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    inner = getattr(command, "commands", {})
    words = [path, *(["COMMAND"] if inner else [_argument(p) for p in arguments]), "[OPTIONS]"]
    yield from (f"## {path}", "", (command.help or "").strip(), "", "```text", " ".join(words), "```", "")
    if arguments:
        yield from _table(
            ("argument", "what it is"), ((_code(_argument(p)), _with_default(*_help(p.help))) for p in arguments)
        )
    panels: dict[str, list[Any]] = {}
    for option in options:
        panels.setdefault(option.rich_help_panel or "Options", []).append(option)
    for panel, members in panels.items():
        rows = []
        for option in members:
            text, default = _help(option.help)
            given = option.default if option.default not in (None, False) and not callable(option.default) else ""
            names = ", ".join(_code(name) for name in (*option.opts, *option.secondary_opts))
            rows.append((names, _code(option.metavar or ""), default or _code(given), text))
        yield from _table((panel, "value", "default", "what it does"), rows)
    for name, child in inner.items():
        yield from _command(f"{path} {name}", child)


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _help(text: str | None) -> tuple[str, str]:
    r"""What an option does, and its default, which help texts end with in `\[brackets]`."""
    found = re.fullmatch(r"(.*?)(?: \\?\[([^\[\]]*)\])?", text or "", flags=re.DOTALL)
    return _cell(found[1].replace("\\[", "[")), _cell(found[2] or "")


def _with_default(text: str, default: str) -> str:
    return f"{text} Default: {default}." if default else text


def _flat(section: BaseModel, prefix: str) -> dict[str, FieldInfo]:
    """The fields of a section and of those inside it."""
    found: dict[str, FieldInfo] = {}
    for name, field in type(section).model_fields.items():
        if isinstance(field.default, BaseModel):
            found |= _flat(field.default, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = field
    return found


def _fields(fields: dict[str, FieldInfo]) -> list[str]:
    rows = (
        (_code(name), _code(_type(field.annotation)), _default(field), _cell(_meaning(field)))
        for name, field in fields.items()
    )
    return list(_table(("setting", "type", "default", "what it is"), rows))


def _type(annotation: Any) -> str:
    """A type as one would say it: `float or none`, `'a', 'b'`, `list of str`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return "none"
    if str(origin) == "typing.Literal":
        return ", ".join(str(value) for value in inner)
    if origin in (tuple, list):
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return "table"
    if inner:  # a union
        return " or ".join(_type(one) for one in inner)
    return getattr(annotation, "__name__", str(annotation))


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "must be given"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return _code(str(value).lower())
    if isinstance(value, tuple | list | dict):
        return _code(", ".join(map(str, value))) if value else "empty"
    return _code(value)


def _meaning(field: FieldInfo) -> str:
    """The description, and the range where numbers have one."""
    bounds = [
        f"{words} {value}"
        for rule in field.metadata
        for name, words in BOUNDS.items()
        if (value := getattr(rule, name, None)) is not None
    ]
    return "; ".join(part for part in (field.description, " and ".join(bounds)) if part)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = tuple(head)
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _code(value: Any) -> str:
    return f"`{value}`".replace("|", "\\|") if value != "" else ""


def _cell(text: str) -> str:
    """Text for a table: one line, of its markup only `code` is read."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([|*_<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _fill(app: Any, page: str, source: list[str]) -> None:
    if page in PAGES:
        source[0] = f"{source[0]}\n" + PAGES[page]()


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", _fill)
    # What the code says may have changed where the page has not.
    app.connect("env-get-outdated", lambda *_: list(PAGES))
    return {"version": "1", "parallel_read_safe": True}
