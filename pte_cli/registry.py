"""Finds the strategies: every installed distribution's entry points in the group `pte`, each loaded on its own.

A plugin that fails to load is remembered as an error and never stops the program. Built-in strategies come the
same way as anyone else's, and their names can't be taken by another distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any, Generic, TypeVar

import pluggy
from pydantic import BaseModel, ValidationError

from pte_cli.api import API_VERSION, EncoderSpec, EvictionSpec, hookspecs
from pte_cli.errors import UsageError, did_you_mean

GROUP = "pte"
BUILTIN = "pte-cli"

Spec = TypeVar("Spec", EvictionSpec, EncoderSpec)


@dataclass(frozen=True)
class Found(Generic[Spec]):
    """A spec and where it came from. `qualified` always names exactly one strategy."""

    spec: Spec
    distribution: str

    @property
    def qualified(self) -> str:
        return f"{self.distribution}:{self.spec.name}"


@dataclass(frozen=True)
class PluginError:
    """Why an entry point or one of its specs was left out."""

    distribution: str
    entry_point: str
    reason: str


class Registry:
    """What was found: `evictions`, `encoders` and `errors`. Immutable after `load_registry`."""

    def __init__(
        self,
        evictions: tuple[Found[EvictionSpec], ...],
        encoders: tuple[Found[EncoderSpec], ...],
        errors: tuple[PluginError, ...],
    ) -> None:
        self.evictions = evictions
        self.encoders = encoders
        self.errors = errors

    def eviction(self, name: str) -> EvictionSpec:
        """The eviction policy called `name` (or `distribution:name`); UsageError when there is none or several."""
        return _pick("evict.policy", name, self.evictions)

    def encoder(self, name: str) -> EncoderSpec:
        """The encoder called `name` (or `distribution:name`); UsageError when there is none or several."""
        return _pick("encoder.name", name, self.encoders)


def _pick(setting: str, name: str, found: tuple[Found[Spec], ...]) -> Spec:
    matches = [f for f in found if name in (f.spec.name, f.qualified)]
    if not matches:
        raise UsageError(f"{setting} = {name!r}: no such plugin; {did_you_mean(name, {f.spec.name for f in found})}")
    builtin = [f for f in matches if f.distribution == BUILTIN]
    if builtin:
        return builtin[0].spec
    if len(matches) > 1:
        raise UsageError(
            f"{setting} = {name!r}: several plugins have this name; say which: "
            + " or ".join(sorted(f.qualified for f in matches))
        )
    return matches[0].spec


def check_options(setting: str, spec: EvictionSpec | EncoderSpec, options: dict[str, Any]) -> BaseModel:
    """The strategy's own options model filled from `options`; UsageError names the option and what was wrong."""
    try:
        return spec.options.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "options"
        if first["type"] == "extra_forbidden":
            known = list(spec.options.model_fields)
            hint = did_you_mean(key, known) if known else f"{spec.name!r} takes no options"
            raise UsageError(f"{setting}.{key} = {first['input']!r}: unknown option; {hint}") from None
        raise UsageError(f"{setting}.{key} = {first['input']!r}: {first['msg']}") from None


def _entry_points() -> list[tuple[str, EntryPoint]]:
    """(distribution, entry point) of the group, each distribution once even when it is on the path twice."""
    found: dict[tuple[str, str], EntryPoint] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"] or "unknown"
        for entry in distribution.entry_points:
            if entry.group == GROUP:
                found.setdefault((name, entry.name), entry)
    return [(name, entry) for (name, _), entry in sorted(found.items())]


@cache
def load_registry() -> Registry:
    """Load every plugin of this environment once."""
    return build_registry(_entry_points())


def build_registry(entries: list[tuple[str, EntryPoint]]) -> Registry:
    """A registry of the given (distribution, entry point) pairs; each failure becomes a `PluginError`."""
    evictions: list[Found[EvictionSpec]] = []
    encoders: list[Found[EncoderSpec]] = []
    errors: list[PluginError] = []
    for distribution, entry in entries:

        def fail(reason: str, distribution: str = distribution, entry: EntryPoint = entry) -> None:
            errors.append(PluginError(distribution, entry.name, reason))

        manager = pluggy.PluginManager("pte")
        manager.add_hookspecs(hookspecs)
        try:
            manager.register(entry.load(), name=entry.name)
            manager.check_pending()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may even call sys.exit() while it is imported
            fail(f"{type(error).__name__}: {error}")
            continue
        evictions += _collect(manager.hook.pte_eviction_policies, EvictionSpec, distribution, fail)
        encoders += _collect(manager.hook.pte_encoders, EncoderSpec, distribution, fail)
    return Registry(tuple(evictions), tuple(encoders), tuple(errors))


def _collect(
    hook: Callable[[], list[list[Spec]]], kind: type[Spec], distribution: str, fail: Callable[[str], None]
) -> list[Found[Spec]]:
    try:
        specs = [spec for result in hook() for spec in result]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        fail(f"{type(error).__name__}: {error}")
        return []
    good: list[Found[Spec]] = []
    for spec in specs:
        if not isinstance(spec, kind):
            fail(f"returned {type(spec).__name__}, expected {kind.__name__}")
        elif spec.api != API_VERSION:
            fail(f"{spec.name!r} was written for plugin API {spec.api}; this is API {API_VERSION}")
        elif not (isinstance(spec.options, type) and issubclass(spec.options, BaseModel)):
            fail(f"options of {spec.name!r} are not a pydantic model")
        else:
            good.append(Found(spec, distribution))
    return good
