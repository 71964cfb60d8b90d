"""The hooks a plugin may implement. Each returns specs; nothing heavy is imported until one is built."""

from __future__ import annotations

import pluggy

from pte_cli.api.encoder import EncoderSpec
from pte_cli.api.eviction import EvictionSpec

hookspec = pluggy.HookspecMarker("pte")


@hookspec
def pte_eviction_policies() -> list[EvictionSpec]:  # type: ignore[empty-body]
    """The eviction policies this plugin offers (`--evict NAME`)."""


@hookspec
def pte_encoders() -> list[EncoderSpec]:  # type: ignore[empty-body]
    """The encoders this plugin offers (`--encoder NAME`)."""
