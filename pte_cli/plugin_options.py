"""A strategy's own options: whatever the settings hold, validated by the plugin's pydantic model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from pte_cli.errors import UsageError, did_you_mean


class Optioned(Protocol):
    """Any spec: a name, and the pydantic model of its options."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> type[BaseModel]: ...


def check_options(
    setting: str, spec: Optioned, options: Mapping[str, Any], settings: Collection[str] = ()
) -> BaseModel:
    """The strategy's own options model filled from `options`; UsageError names the option and what was wrong.

    setting: `evict.options`. settings: the section's own settings, where an unknown option may be a misspelt one.
    """
    try:
        try:
            return spec.options.model_validate(options)
        except ValidationError as error:
            return spec.options.model_validate(_as_text_meant(options, error))
    except ValidationError as error:
        raise UsageError(_explain(setting, spec, settings, error)) from None


def _as_text_meant(options: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
    """`options` with values read the other way a flag's text can be meant: 7 as "7", "a,b" as ["a", "b"]."""
    changed = dict(options)
    for problem in error.errors():
        given = problem["input"]
        if len(problem["loc"]) != 1:
            continue
        [key] = problem["loc"]
        if problem["type"] == "string_type" and isinstance(given, int | float) and not isinstance(given, bool):
            changed[str(key)] = str(given)
        elif problem["type"] in ("list_type", "tuple_type", "set_type", "frozen_set_type") and isinstance(given, str):
            changed[str(key)] = [part.strip() for part in given.split(",")]
    return changed


def _explain(setting: str, spec: Optioned, settings: Collection[str], error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join([setting, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        key, known = str(first["loc"][-1]), list(spec.options.model_fields)
        none = f"{spec.name!r} takes no options"
        if settings:
            hint = did_you_mean(key, [*known, *settings]) + ("" if known else f"; {none}")
            return f"{setting.partition('.')[0]}.{key} = {first['input']!r}: unknown setting; {hint}"
        return f"{name} = {first['input']!r}: unknown option; {did_you_mean(key, known) if known else none}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{name} = {first['input']!r}: {message}" if first["loc"] else f"{setting}: {message}"
