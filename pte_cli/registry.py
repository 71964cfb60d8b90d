"""Finds the strategies: every installed distribution's entry points in the group `pte`, each loaded on its own.

A plugin that fails to load is remembered as an error and never stops the program. Built-in strategies come the
same way as anyone else's, and their names can't be taken by another distribution.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any

import pluggy
from pydantic import BaseModel

from pte_cli.api import (
    API_VERSION,
    EncoderSpec,
    EvictionSpec,
    LauncherSpec,
    RewardSpec,
    TaskSpec,
    hookspecs,
)
from pte_cli.errors import PteError, UsageError, did_you_mean
from pte_cli.plugin_options import check_options

GROUP = "pte"
BUILTIN = "pte-cli"
ALLOWED = "PTE_PLUGINS"
"""The variable that names which distributions may be loaded. Unset: all of them. Built-ins always are."""

Spec = EvictionSpec | EncoderSpec | RewardSpec | TaskSpec | LauncherSpec


@dataclass(frozen=True)
class Kind:
    """One kind of plugin: the hook that announces it, its spec, and what a built one must have.

    setting: the setting that chooses one. section: the settings section whose `options` are its options.
    """

    name: str
    title: str
    hook: str
    spec: type[Spec]
    setting: str
    section: str
    members: tuple[str, ...]


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "evict",
            "eviction policy",
            "pte_eviction_policies",
            EvictionSpec,
            "evict.policy",
            "evict",
            ("granularity", "bounded", "score"),
        ),
        Kind(
            "encoder",
            "encoder",
            "pte_encoders",
            EncoderSpec,
            "encoder.name",
            "encoder",
            ("rotated_keys", "init", "absorb", "core", "parameters"),
        ),
        Kind("reward", "reward", "pte_rewards", RewardSpec, "reward.names", "reward", ("__call__",)),
        Kind(
            "task", "task", "pte_tasks", TaskSpec, "task.name", "task", ("words", "shortest_prompt", "sample", "score")
        ),
        Kind("launcher", "launcher", "pte_launchers", LauncherSpec, "launch.engine", "launch", ("submit",)),
    )
}
"""Every kind of plugin by the name that `--kind` takes."""


def kind_of(spec: Spec) -> Kind:
    """The kind of plugin that a spec announces."""
    return next(kind for kind in KINDS.values() if isinstance(spec, kind.spec))


@dataclass(frozen=True)
class Found:
    """A spec and where it came from. `qualified` always names exactly one strategy of its kind."""

    spec: Spec
    distribution: str
    version: str = ""
    module: str = ""

    @property
    def kind(self) -> Kind:
        return kind_of(self.spec)

    @property
    def qualified(self) -> str:
        return f"{self.distribution}:{self.spec.name}"


@dataclass(frozen=True)
class PluginError:
    """Why an entry point or one of its specs was left out: one line, and the file and line it comes from."""

    distribution: str
    entry_point: str
    reason: str
    where: str = ""


@dataclass(frozen=True)
class Registry:
    """What was found, what was left out and why, and entries of PTE_PLUGINS that name nothing."""

    found: tuple[Found, ...] = ()
    errors: tuple[PluginError, ...] = ()
    warnings: tuple[str, ...] = ()

    def of_kind(self, kind: str) -> tuple[Found, ...]:
        """Every strategy of one kind."""
        return tuple(found for found in self.found if found.kind.name == kind)

    @property
    def evictions(self) -> tuple[Found, ...]:
        return self.of_kind("evict")

    @property
    def encoders(self) -> tuple[Found, ...]:
        return self.of_kind("encoder")

    def eviction(self, name: str) -> EvictionSpec:
        """The eviction policy called `name` (or `distribution:name`); UsageError when there is none or several."""
        return self._spec("evict", name)

    def encoder(self, name: str) -> EncoderSpec:
        """The encoder called `name`; errors as above."""
        return self._spec("encoder", name)

    def reward(self, name: str) -> RewardSpec:
        """The reward called `name`; errors as above."""
        return self._spec("reward", name)

    def task(self, name: str) -> TaskSpec:
        """The task called `name`; errors as above."""
        return self._spec("task", name)

    def launcher(self, name: str) -> LauncherSpec:
        """The launcher called `name`; errors as above."""
        return self._spec("launcher", name)

    def find(self, name: str, kind: str | None = None) -> Found:
        """The one plugin called `name`, of whatever kind unless one is given; UsageError names the choices."""
        if kind is not None:
            return _pick(f"--kind {kind}", name, self.of_kind(kind))
        kinds = {found.kind.name for found in self.found if name in (found.spec.name, found.qualified)}
        if len(kinds) > 1:
            raise UsageError(
                f"{name!r} is the name of plugins of several kinds; add --kind {' or '.join(sorted(kinds))}"
            )
        return _pick("plugin", name, self.found)

    def _spec(self, kind: str, name: str) -> Any:
        return _pick(KINDS[kind].setting, name, self.of_kind(kind)).spec


def _pick(setting: str, name: str, found: Sequence[Found]) -> Found:
    matches = [f for f in found if name in (f.spec.name, f.qualified)]
    if not matches:
        raise UsageError(f"{setting} = {name!r}: no such plugin; {did_you_mean(name, {f.spec.name for f in found})}")
    builtin = [f for f in matches if f.distribution == BUILTIN]
    if builtin:
        return builtin[0]
    if len(matches) > 1:
        raise UsageError(
            f"{setting} = {name!r}: several plugins have this name; say which: "
            + " or ".join(sorted(f.qualified for f in matches))
        )
    return matches[0]


def build(spec: Spec, options: Mapping[str, Any] | BaseModel, *sizes: Any) -> Any:
    """The strategy that `spec` announces. options: as given, or checked already; sizes: an encoder's `EncoderShape`.

    Raises UsageError for a wrong option, PteError when the plugin's own `build` fails or returns something else.
    """
    kind = kind_of(spec)
    checked = options if isinstance(options, BaseModel) else check_options(f"{kind.section}.options", spec, options)
    blame = f"{kind.title} {spec.name!r} with {kind.section}.options = {checked.model_dump()!r}"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            made = spec.build(checked, *sizes)
    except PteError:
        raise
    except Exception as error:
        raise PteError(f"{blame}: its build() failed: {_line(error)}{_at(error)}") from error
    missing = [name for name in kind.members if not hasattr(made, name)]
    if missing:
        raise PteError(f"{blame}: its build() returned {type(made).__name__} without {', '.join(missing)}")
    return made


# ---- loading ------------------------------------------------------------------------------------------------


@cache
def load_registry() -> Registry:
    """Load every plugin of this environment that PTE_PLUGINS allows, once."""
    return build_registry(_entry_points(), os.environ.get(ALLOWED))


@dataclass
class _Loading:
    """What has been found so far."""

    found: list[Found] = field(default_factory=list)
    errors: list[PluginError] = field(default_factory=list)


def build_registry(entries: Iterable[tuple[str, EntryPoint]], allowed: str | None = None) -> Registry:
    """A registry of the given (distribution, entry point) pairs; each failure becomes a `PluginError`.

    allowed: the text of PTE_PLUGINS, `distribution` or `distribution:name` separated by commas; None allows all.
    """
    allow = _Allowed(allowed)
    loading = _Loading()
    for distribution, entry in entries:
        if allow.may_import(distribution):
            _load(distribution, entry, allow, loading)
    return Registry(tuple(loading.found), tuple(loading.errors), tuple(allow.unused()))


def _load(distribution: str, entry: EntryPoint, allow: _Allowed, loading: _Loading) -> None:
    """Import one entry point, call its hooks, keep the good specs and remember why the others are not."""

    def fail(reason: str, where: str = "") -> None:
        loading.errors.append(PluginError(distribution, entry.name, reason, where))

    manager = pluggy.PluginManager("pte")
    manager.add_hookspecs(hookspecs)

    def register() -> None:
        manager.register(entry.load(), name=entry.name)
        manager.check_pending()

    if _guarded(register, fail) is None:
        return
    version = entry.dist.version if entry.dist is not None else ""
    for kind in KINDS.values():
        hook = getattr(manager.hook, kind.hook)
        results = _guarded(lambda hook=hook: [spec for result in hook() for spec in result], fail)
        for spec in results.value if results is not None else ():
            problem = _problem(kind, spec)
            found = Found(spec, distribution, version, entry.module) if problem is None else None
            if found is None:
                fail(problem or "")
            elif any(f.qualified == found.qualified and f.kind == kind for f in loading.found):
                fail(f"announces a second {kind.title} called {spec.name!r}")
            elif allow.may_use(found):
                loading.found.append(found)


@dataclass(frozen=True)
class _Result:
    value: Any


def _guarded(call: Callable[[], Any], fail: Callable[[str, str], None]) -> _Result | None:
    """What a plugin's code returns, or None after telling `fail` what it raised; it can't write to our stdout."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return _Result(call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may even call sys.exit() while it is imported
        fail(_line(error), _frame(error))
        return None


def _problem(kind: Kind, spec: Any) -> str | None:
    """What is wrong with an announced spec, or None."""
    if not isinstance(spec, kind.spec):
        return f"returned {type(spec).__name__}, expected {kind.spec.__name__}"
    if not (isinstance(spec.name, str) and re.fullmatch(r"\w[\w.-]*", spec.name)):
        return f"{kind.title} {spec.name!r}: a name must be letters, digits, '-', '_' or '.'"
    if spec.api != API_VERSION:
        return f"{spec.name!r} was written for plugin API {spec.api}; this is API {API_VERSION}"
    if not (isinstance(spec.options, type) and issubclass(spec.options, BaseModel)):
        return f"options of {spec.name!r} are not a pydantic model"
    return None


def _line(error: BaseException) -> str:
    """`Type: message` on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _frame(error: BaseException) -> str:
    """`file:line` of the last frame of an error, or of the text that could not be parsed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    machinery = ("<frozen", os.path.dirname(importlib.__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(machinery)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _at(error: BaseException) -> str:
    where = _frame(error)
    return f" ({where})" if where else ""


class _Allowed:
    """The allow-list: `distribution` lets all of a distribution in, `distribution:name` one strategy of it."""

    def __init__(self, text: str | None) -> None:
        self.everything = text is None
        self.entries = [entry.strip() for entry in (text or "").split(",") if entry.strip()]
        self.used: set[str] = set()

    def _matching(self, distribution: str) -> list[str]:
        return [entry for entry in self.entries if _normal(entry.partition(":")[0]) == _normal(distribution)]

    def may_import(self, distribution: str) -> bool:
        entries = self._matching(distribution)
        self.used.update(entry for entry in entries if ":" not in entry)
        return self.everything or distribution == BUILTIN or bool(entries)

    def may_use(self, found: Found) -> bool:
        entries = self._matching(found.distribution)
        named = [entry for entry in entries if entry.partition(":")[2] == found.spec.name]
        self.used.update(named)
        whole = any(":" not in entry for entry in entries)
        return self.everything or found.distribution == BUILTIN or whole or bool(named)

    def unused(self) -> list[str]:
        """One line for each entry that names nothing that is installed."""
        unknown = [entry for entry in self.entries if entry not in self.used]
        return [f"{ALLOWED}: {entry!r} names no installed plugin" for entry in unknown]


def _normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _entry_points() -> list[tuple[str, EntryPoint]]:
    """(distribution, entry point) of the group; of two distributions of one name the first, which is imported."""
    seen: set[str] = set()
    found: list[tuple[str, EntryPoint]] = []
    for distribution in distributions():
        name = distribution.metadata["Name"] or "unknown"
        if _normal(name) not in seen:
            seen.add(_normal(name))
            found += [(name, entry) for entry in distribution.entry_points if entry.group == GROUP]
    return sorted(found, key=lambda item: (item[0], item[1].name))
