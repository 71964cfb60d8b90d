"""What is wrong with a setting, in one line that names it, its value and what would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from pte_cli.errors import did_you_mean

Model = type[BaseModel]
"""The settings, as a model whose fields are settings or sections, which are models again."""


def setting_names(settings: Model, prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings, `evict.frac` or `seed`."""
    for name, info in settings.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from setting_names(info.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def explain(error: ValidationError, settings: Model) -> str:
    """The first problem in words: `evict.frac = 1.5: must be at most 1`."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    name, given, context = ".".join(path), first["input"], first.get("ctx", {})
    if first["type"] == "extra_forbidden" and len(path) == 1:
        inner = next(iter(given.items()), None) if isinstance(given, dict) else None
        name, given = (f"{name}.{inner[0]}", inner[1]) if inner else (name, given)
        return f"{name} = {given!r}: unknown setting; {_meant(name, settings)}"
    if first["type"] == "extra_forbidden":
        return f"{name} = {given!r}: unknown setting; {did_you_mean(path[-1], _section(path, settings).model_fields)}"
    words = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    if bound := next((key for key in words if key in context), None):
        return f"{name} = {given!r}: must be {words[bound]} {context[bound]}{_range(path, settings)}"
    if first["type"] == "model_type":
        inside = ", ".join(_field(path, settings).annotation.model_fields)
        return f"{name} = {given!r}: is a section; set one of its settings: {inside}"
    if first["type"] in ("string_pattern_mismatch", "tuple_type", "too_short"):
        return f"{name} = {given!r}: expected {_range(path, settings)[2:-1]}"
    if first["type"] == "literal_error":
        return f"{name} = {given!r}: must be {context['expected']}"
    return f"{name} = {given!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _meant(name: str, settings: Model) -> str:
    """The settings that a name of no section can have meant: of that last name, else of a similar one."""
    last, names = name.rpartition(".")[2], list(setting_names(settings))
    same = [known for known in names if known.rpartition(".")[2] == last]
    if same:
        return f"did you mean {' or '.join(map(repr, same))}?"
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return did_you_mean(name.partition(".")[0], settings.model_fields)


def _range(path: list[str], settings: Model) -> str:
    """What the setting is, after its bound: ` (share of the window ...)`."""
    described = _field(path, settings).description
    return f" ({described})" if described else ""


def _field(path: list[str], settings: Model) -> Any:
    """pydantic's description of a setting or section."""
    return _section(path, settings).model_fields[path[-1]]


def _section(path: list[str], settings: Model) -> Any:
    """The section that a setting is in."""
    section: Any = settings
    for part in path[:-1]:
        section = section.model_fields[part].annotation
    return section
