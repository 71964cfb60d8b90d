"""Progressive Thought Encoding: reinforcement learning of reasoning models with a bounded KV cache.

This module is what plugin authors import (`hookimpl`, the specs in `pte_cli.api`). It imports no torch, so
`pte --help` answers at once.
"""

from __future__ import annotations

import importlib

import pluggy
import wrapt

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("pte")
"""Marks a function of a plugin module as one of the hooks in `pte_cli.api.hookspecs`."""


@wrapt.when_imported("peft")
def _register_with_peft(_peft: object) -> None:
    """Make `PeftModel.from_pretrained` know our adapters, whichever of the two packages is imported first."""
    importlib.import_module("pte_cli.model.adapter")  # registers itself with PEFT


__all__ = ["__version__", "hookimpl"]
