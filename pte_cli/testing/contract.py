"""The frame of a contract: a class of checks that runs under pytest and without it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import SkipTest

from pte_cli.errors import PteError
from pte_cli.registry import KINDS, Spec, build, load_registry


@dataclass(frozen=True)
class Outcome:
    """How one check ended. reason: why it failed, or why it does not apply (then it passed)."""

    check: str
    passed: bool
    reason: str = ""


class CheckFailed(AssertionError):
    """A check failed; the message says what the plugin did and what the contract asks for."""


def require(condition: bool, reason: str) -> None:
    """CheckFailed with `reason` unless `condition`."""
    if not condition:
        raise CheckFailed(reason)


class Contract:
    """Base of the contracts: which plugin is checked, with which options. Every method `test_*` is a check.

    plugin: a plugin's name, `distribution:name`, or its spec. options: its options, as `--set` would give them.
    """

    kind: ClassVar[str]
    plugin: ClassVar[str | Spec]
    options: ClassVar[Mapping[str, Any]] = {}

    def spec(self) -> Spec:
        """The spec of the plugin that is checked."""
        if isinstance(self.plugin, str):
            return load_registry().find(self.plugin, self.kind).spec
        require(isinstance(self.plugin, KINDS[self.kind].spec), f"plugin is no {KINDS[self.kind].spec.__name__}")
        return self.plugin

    def make(self, *sizes: Any) -> Any:
        """A new one of the plugin."""
        return build(self.spec(), self.options, *sizes)

    @classmethod
    def checks(cls) -> list[str]:
        """The names of the checks, in the order they are written, without `test_`."""
        classes = reversed(cls.__mro__)
        names = dict.fromkeys(name for each in classes for name in vars(each) if name.startswith("test_"))
        return [name.removeprefix("test_") for name in names]

    def outcome(self, check: str) -> Outcome:
        """Run one check. Whatever the plugin raises is a failure with its file and line."""
        try:
            getattr(self, f"test_{check}")()
        except SkipTest as skip:
            return Outcome(check, True, f"does not apply: {skip}")
        except (CheckFailed, PteError) as failure:
            return Outcome(check, False, str(failure))
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return Outcome(check, False, f"{text} ({frame.filename}:{frame.lineno})")
        return Outcome(check, True)
